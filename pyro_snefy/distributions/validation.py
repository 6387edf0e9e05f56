r"""Checks of the arguments of a squared neural family."""

__all__ = [
    "NO_ENTROPY",
    "Levels",
    "as_levels",
    "check_bounds",
    "check_box",
    "check_events",
    "check_expansion",
    "check_gram",
    "check_inner_levels",
    "check_normalizer",
    "check_one_coordinate",
    "check_shapes",
    "check_types",
    "check_values",
]

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Size, Tensor

from ..activations import Activation
from ..bases import Base
from ..constraints import is_real
from ..kernels import Kernel, Pairwise
from ..network import Network
from ..numerics.forms import Form, Readout
from ..numerics.linalg import broadcast_shapes

_SHAPES = {"weight": "(*, n, D)", "bias": "(*, n)", "readout": "(*, m, n)", "gram": "(*, n, n)"}


def check_shapes(arguments: Mapping[str, Tensor | None], base: Base) -> Size:
    r"""Checks the shapes of the arguments against each other; returns the batch shape."""
    weight = arguments["weight"]
    assert weight is not None
    n = weight.shape[-2]
    batches = {"base": base.batch_shape}
    ends: dict[str, tuple[int, ...]] = {
        "weight": (n, base.num_statistics),
        "bias": (n,),
        "readout": (n,),  # and any number of rows
        "gram": (n, n),
    }
    for name, value in arguments.items():
        if value is None:
            continue
        end, shape = ends[name], value.shape
        rank = 1 if name == "bias" else 2
        if len(shape) < rank or shape[len(shape) - len(end) :] != end:
            sizes = f"n={n} of weight and D={base.num_statistics} of {base}"
            raise ValueError(
                f"SNEFY: expected {name} with shape {_SHAPES[name]}, where {sizes}, "
                f"got {tuple(shape)}."
            )
        batches[name] = shape[: len(shape) - rank]
    try:
        return broadcast_shapes(*batches.values())
    except RuntimeError:
        shapes = ", ".join(f"{name}: {tuple(shape)}" for name, shape in batches.items())
        raise ValueError(
            f"SNEFY: expected batch shapes that broadcast against each other, got {shapes}."
        ) from None


def check_types(arguments: Mapping[str, Tensor | None], activation: Activation, base: Base) -> None:
    r"""Checks that all tensors are of one floating point dtype, on one device.

    A complex activation takes a complex readout or gram, too.
    """
    weight = arguments["weight"]
    assert weight is not None
    if not weight.is_floating_point():
        raise ValueError(f"SNEFY: expected a real floating point weight, got {weight.dtype}.")
    kind, device = weight.dtype, weight.device
    for value in (*arguments.values(), *base.values()):
        if not (value is None or (value.dtype == kind and value.device == device)):
            _check_each_type(arguments, activation, base)
            return


def _check_each_type(
    arguments: Mapping[str, Tensor | None], activation: Activation, base: Base
) -> None:
    weight = arguments["weight"]
    assert weight is not None
    kind, device = weight.dtype, weight.device
    own = ((name, value) for name, value in arguments.items() if value is not None)
    for name, value in chain(own, ((f"base.{name}", value) for name, value in base.tensors())):
        dtype = value.dtype
        if value.is_complex() and name in ("readout", "gram"):
            if not activation.is_complex:
                raise ValueError(
                    f"SNEFY: expected a real {name} with {activation}, got {dtype}; "
                    "Cis is the activation for complex ones."
                )
            dtype = value.real.dtype  # unlike dtype.to_real(), known to torch.compile
        if dtype != kind or value.device != device:
            raise ValueError(
                f"SNEFY: expected {name} of dtype {weight.dtype} on {weight.device} like weight, "
                f"got {value.dtype} on {value.device}."
            )


@torch.no_grad()
def check_values(arguments: Mapping[str, Tensor | None], constraint: Any, base: Base) -> None:
    """Checks that arguments are finite, no form is zero, and the weight suits the base."""
    name = "readout" if arguments["gram"] is None else "gram"
    matrix = arguments[name]
    assert matrix is not None
    if not (matrix.shape[-1] and matrix.shape[-2]):
        raise ValueError(f"SNEFY: expected a {name} that is not empty, got {tuple(matrix.shape)}.")
    # A sum is finite if all terms are, and the logarithm of zero is not. Where rounding makes it
    # infinite, a closer look decides.
    total = torch.linalg.vector_norm(matrix, dim=(-2, -1)).log().sum()
    for value in (arguments["weight"], arguments["bias"]):
        total = total if value is None else total + value.sum()
    if not math.isfinite(total):
        for other, value in arguments.items():
            if value is not None and not value.isfinite().all():
                raise ValueError(f"SNEFY: expected a finite {other}, got {value}.")
        if not matrix.any(-1).any(-1).all():
            raise ValueError(f"SNEFY: expected a {name} that is not zero, got {matrix}.")
    weight = arguments["weight"]
    if not (is_real(constraint) or constraint.check(weight).all()):
        raise ValueError(
            f"SNEFY: expected weight in the natural parameter space of {base}, "
            f"{_rows_in_words(constraint)}, got {weight}."
        )
    if arguments["gram"] is not None:
        check_gram(matrix)


def check_gram(gram: Tensor) -> None:
    """Checks that a gram is Hermitian and positive semi-definite, up to rounding."""
    largest = gram.abs().amax((-2, -1), keepdim=True)
    tolerance = 1e3 * torch.finfo(gram.dtype).eps
    if not ((gram - gram.mH).abs() <= tolerance * largest).all():
        kind = "Hermitian" if gram.is_complex() else "symmetric"
        raise ValueError(f"SNEFY: expected a {kind} gram, got {gram}.")
    wide = gram.to(torch.promote_types(gram.dtype, torch.float64))
    smallest = torch.linalg.eigvalsh(wide)[..., 0]
    if not (smallest >= -gram.shape[-1] * tolerance * largest[..., 0, 0]).all():
        raise ValueError(
            "SNEFY: expected a positive semi-definite gram, "
            f"got one with the eigenvalue {smallest}."
        )


@torch.no_grad()
def check_normalizer(log_normalizer: Tensor, network: Network, neurons: Kernel, name: str) -> None:
    r"""Checks that the :math:`Z` of a network with a given kernel is positive and finite.

    Neurons that cancel each other leave a rounding error of either sign in place of zero. The
    argument to blame is named in the message.
    """
    valid = math.isfinite(log_normalizer.sum())
    # A batch of weights or readouts would need a kernel each: too much for a check.
    one = network.weight.dim() == 2 and network.form.matrix.dim() == 2
    if one and not network.base.batch_shape:
        rows = network.bias.reshape(-1, network.width)
        least = log_normalizer.argmin()  # if any Z of the batch is noise, this one is
        bias = rows[least % len(rows)].double()
        noise = 4 * network.width * torch.finfo(torch.float64).eps
        log_norm = _log_norms(network, neurons, bias)
        bound = (_log_diagonal(network.form) + log_norm).logsumexp(-1)
        valid = valid and bool(log_normalizer.min() - bound > math.log(noise))
    if not valid:
        raise ValueError(
            f"SNEFY: expected a {name} with a positive and finite normalising constant Z, got "
            f"log Z = {log_normalizer}, of neurons that are zero or cancel each other."
        )


def _log_norms(network: Network, neurons: Kernel, bias: Tensor) -> Tensor:
    if isinstance(neurons, Pairwise):  # n entries of the kernel, and not its n^2
        return replace(network, bias=bias).log_norms()
    return neurons.log_diagonal(bias)


def _log_diagonal(form: Form) -> Tensor:
    # The logarithms of the M_ii.
    matrix = form.matrix.double()
    if isinstance(form, Readout):
        return 2 * torch.linalg.vector_norm(matrix, dim=-2).log()
    return matrix.diagonal(dim1=-2, dim2=-1).log()


def check_expansion(batch_shape: Size, target: Size) -> None:
    """Checks that a batch shape expands to another, as in :meth:`torch.Tensor.expand`."""
    pairs = zip(reversed(batch_shape), reversed(target), strict=False)
    if len(target) < len(batch_shape) or any(own not in (1, size) for own, size in pairs):
        raise RuntimeError(
            f"Expected a batch shape to which {tuple(batch_shape)} expands, got {tuple(target)}."
        )


def _rows_in_words(constraint: Any) -> str:
    while hasattr(constraint, "base_constraint"):
        constraint = constraint.base_constraint
    columns = getattr(constraint, "cseq", None)  # of torch's constraints.cat
    return f"its columns {' and '.join(map(str, columns))}" if columns else str(constraint)


def check_one_coordinate(event_shape: Size, law: Base) -> None:
    """Checks that an event has one coordinate, as distribution functions take."""
    if event_shape.numel() == 1:
        return
    lines = [k for k in range(event_shape[0]) if _has_marginal(law, k)]
    hint = f"try marginal([k]) with k in {lines}" if lines else f"{law} has no marginal laws"
    raise NotImplementedError(
        "Expected an event with one coordinate, as distribution functions and modes take, got "
        f"event_shape {tuple(event_shape)}; {hint}."
    )


def _has_marginal(law: Base, dim: int) -> bool:
    try:
        law.marginal([dim])
    except NotImplementedError:
        return False
    return True


NO_ENTROPY = (
    "No closed form for the entropy: the logarithm of a squared network has none. "
    "-d.log_prob(d.sample((10_000,))).mean(0) estimates it without bias."
)

Levels = Tensor | float | Sequence[float]


def as_levels(value: Levels, like: Tensor, batch_shape: Size, validate: bool) -> Tensor:
    r"""Probabilities as a tensor that broadcasts with a batch shape.

    Arguments:
        value: A number, :math:`k` numbers in a sequence, or a tensor. A sequence comes before the
            batch shape, like a sample shape.
        like: A tensor of the dtype and device that numbers are to have.
        batch_shape: The batch shape.
        validate: Whether to check that the values are probabilities.
    """
    numbers = value if isinstance(value, Sequence) else [value]
    if not (isinstance(value, Tensor) or all(isinstance(x, float | int) for x in numbers)):
        raise TypeError(
            f"Expected probabilities as a number, a list of numbers or a Tensor, got {value!r}."
        )
    levels = value
    if not isinstance(levels, Tensor):
        levels = torch.as_tensor(value, dtype=like.dtype, device=like.device)
        levels = levels.reshape(levels.shape + (1,) * (levels.dim() * len(batch_shape)))
    if validate and not bool(((levels >= 0) & (levels <= 1)).all()):
        raise ValueError(f"Expected probabilities between 0 and 1, got {levels}.")
    try:
        broadcast_shapes(levels.shape, batch_shape)
    except RuntimeError:
        raise ValueError(
            f"Expected probabilities that broadcast with the batch shape {tuple(batch_shape)}, got "
            f"shape {tuple(levels.shape)}; every law of the batch has the levels of a list."
        ) from None
    return levels


def check_inner_levels(levels: Tensor) -> None:
    """Checks that probabilities are neither zero nor one."""
    if not bool(((levels > 0) & (levels < 1)).all()):
        raise ValueError(f"Expected levels between 0 and 1, both excluded, got {levels}.")


def check_box(low: Tensor, high: Tensor, event_shape: Size) -> None:
    """Checks the corners of boxes: events without NaN."""
    for name, value in (("low", low), ("high", high)):
        if not isinstance(value, Tensor):
            raise TypeError(f"Expected {name} to be a Tensor, got {value!r}.")
        end = value.shape[max(0, value.dim() - len(event_shape)) :]
        if end != event_shape:
            raise ValueError(
                f"Expected {name} with shape (*, {', '.join(map(str, event_shape))}), "
                f"got {tuple(value.shape)}."
            )
        if bool(value.isnan().any()):
            raise ValueError(f"Expected {name} without NaN, got {value}.")


def check_bounds(
    caller: str, like: Tensor, low: Tensor | float | None, high: Tensor | float | None
) -> tuple[Tensor, Tensor]:
    """Bounds as tensors, infinite where there is none; raises unless lower ones are below."""
    found = []
    for name, value, missing in (("low", low, -math.inf), ("high", high, math.inf)):
        if not (value is None or isinstance(value, Tensor | float | int)):
            raise TypeError(f"{caller}: expected {name} to be a number or a Tensor, got {value!r}.")
        value = missing if value is None else value
        found.append(torch.as_tensor(value, dtype=like.dtype, device=like.device))
    if not bool((found[0] < found[1]).all()):
        raise ValueError(f"{caller}: expected low < high, got low {low} and high {high}.")
    return found[0], found[1]


def check_events(x: Tensor, batch_shape: Size, base: Base) -> None:
    """Checks that x holds events of the support, along its first dimension, for each batch."""
    names = ("N", *map(str, batch_shape), *map(str, base.event_shape))
    shape = batch_shape + base.event_shape
    pairs = zip(x.shape[1:], shape, strict=False)
    if x.dim() != len(shape) + 1 or not len(x) or any(own not in (1, n) for own, n in pairs):
        raise ValueError(
            f"SNEFY: expected x with shape ({', '.join(names)}) and N >= 1, got {tuple(x.shape)}."
        )
    if not base.contains(x).all():
        raise ValueError(f"SNEFY: expected x in the support {base.support}, got {x}.")
