r"""Values found by the types of an activation and a base."""

__all__ = ["Dispatcher"]

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Dispatcher(Generic[Value]):
    r"""Values registered for pairs of types, of which the most specific one is found.

    The first type of a pair decides first, as in :func:`torch.distributions.kl.register_kl`.
    """

    def __init__(self) -> None:
        self._registered: dict[tuple[type, type], Value] = {}
        self._found: dict[tuple[type, type], Value | None] = {}

    def __iter__(self) -> Iterator[tuple[type, type]]:
        return iter(self._registered)

    def add(self, first: type, second: type, value: Value) -> None:
        """Registers a value."""
        self._registered[first, second] = value
        self._found.clear()  # what is most specific may have changed

    def register(self, first: type, second: type) -> Callable[[Value], Value]:
        """A decorator that registers what it decorates."""

        def decorator(value: Value) -> Value:
            self.add(first, second, value)
            return value

        return decorator

    def find(self, first: type, second: type) -> Value | None:
        """The value of the most specific pair that the types belong to, or None."""
        key = first, second
        if key not in self._found:
            distances = {
                (first.__mro__.index(a), second.__mro__.index(b)): value
                for (a, b), value in self._registered.items()
                if issubclass(first, a) and issubclass(second, b)
            }
            self._found[key] = distances[min(distances)] if distances else None
        return self._found[key]
