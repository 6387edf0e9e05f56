r"""Lookup of values by two types, such as an activation and a base."""

__all__ = ["Dispatcher"]

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Dispatcher(Generic[Value]):
    r"""A table of values for pairs of types, with lookup of the most specific pair.

    A pair matches two types if they are subclasses of its types. Among the pairs that match, the
    closest first type wins, then the closest second type. Closeness is the position in the method
    resolution order.

    Example:
        >>> table = Dispatcher[str]()
        >>> table.add(int, object, "an integer and anything")
        >>> table.find(bool, str)
        'an integer and anything'
    """

    def __init__(self) -> None:
        self._registered: dict[tuple[type, type], Value] = {}
        self._found: dict[tuple[type, type], Value | None] = {}

    def __iter__(self) -> Iterator[tuple[type, type]]:
        return iter(self._registered)

    def add(self, first: type, second: type, value: Value) -> None:
        """Registers a value for a pair of types."""
        self._registered[first, second] = value
        self._found.clear()  # the most specific pair may have changed

    def register(self, first: type, second: type) -> Callable[[Value], Value]:
        """Returns a decorator that registers the decorated value for a pair of types."""

        def decorator(value: Value) -> Value:
            self.add(first, second, value)
            return value

        return decorator

    def find(self, first: type, second: type) -> Value | None:
        """Returns the value of the most specific pair that matches, or None without a match."""
        key = first, second
        if key not in self._found:
            distances = {
                (first.__mro__.index(a), second.__mro__.index(b)): value
                for (a, b), value in self._registered.items()
                if issubclass(first, a) and issubclass(second, b)
            }
            self._found[key] = distances[min(distances)] if distances else None
        return self._found[key]
