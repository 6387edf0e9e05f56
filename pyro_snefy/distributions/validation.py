r"""Checks of the arguments of a squared neural family."""

__all__ = ["check_normalizer", "check_shapes", "check_types", "check_values"]

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Size, Tensor

from ..activations import Activation, Cis
from ..bases import Base
from ..kernels import kernel
from ..network import Network
from ..numerics.forms import Readout
from ..numerics.linalg import broadcast_shapes

_SHAPES = {"weight": "(*, n, D)", "bias": "(*, n)", "readout": "(*, m, n)", "gram": "(*, n, n)"}


def check_shapes(arguments: Mapping[str, Tensor | None], base: Base) -> Size:
    r"""Checks the shapes of the arguments against each other.

    Arguments:
        arguments: The tensors by name, or None.
        base: The base.

    Returns:
        The batch shape.
    """
    weight = arguments["weight"]
    assert weight is not None
    n = weight.shape[-2]
    batches = {"base": base.batch_shape}
    for name, value in arguments.items():
        if value is None:
            continue
        ends = {"weight": (n, base.num_statistics), "bias": (n,), "gram": (n, n)}
        # A readout has any number of rows.
        end = ends.get(name, (value.shape[-2] if value.dim() > 1 else -1, n))
        if value.dim() < len(end) or tuple(value.shape[value.dim() - len(end) :]) != end:
            sizes = f"n={n} of weight and D={base.num_statistics} of {base}"
            raise ValueError(
                f"SNEFY: expected {name} with shape {_SHAPES[name]}, where {sizes}, "
                f"got {tuple(value.shape)}."
            )
        batches[name] = value.shape[: value.dim() - len(end)]
    try:
        return broadcast_shapes(*batches.values())
    except RuntimeError:
        shapes = ", ".join(f"{name}: {tuple(shape)}" for name, shape in batches.items())
        raise ValueError(
            f"SNEFY: expected batch shapes that broadcast against each other, got {shapes}."
        ) from None


def check_types(arguments: Mapping[str, Tensor | None], activation: Activation, base: Base) -> None:
    r"""Checks that all tensors are of one floating point dtype, on one device.

    Arguments:
        arguments: The tensors by name, or None.
        activation: The activation: Cis allows a complex readout or gram.
        base: The base.
    """
    weight = arguments["weight"]
    assert weight is not None
    if not weight.is_floating_point():
        raise ValueError(f"SNEFY: expected a real floating point weight, got {weight.dtype}.")
    tensors = [(name, value) for name, value in arguments.items() if value is not None]
    tensors += [(f"base.{name}", value) for name, value in base.tensors()]
    for name, value in tensors:
        dtype = value.dtype
        if value.is_complex() and name in ("readout", "gram"):
            if not isinstance(activation, Cis):
                raise ValueError(
                    f"SNEFY: expected a real {name} with {activation}, got {dtype}; "
                    "Cis is the activation for complex ones."
                )
            dtype = value.real.dtype  # unlike dtype.to_real(), known to torch.compile
        if dtype != weight.dtype or value.device != weight.device:
            raise ValueError(
                f"SNEFY: expected {name} of dtype {weight.dtype} on {weight.device} like weight, "
                f"got {value.dtype} on {value.device}."
            )


def check_values(arguments: Mapping[str, Tensor | None], constraint: Any, base: Base) -> None:
    r"""Checks that all numbers are finite and where they should be.

    Arguments:
        arguments: The tensors by name, or None.
        constraint: The constraint of the weight.
        base: The base, for messages.
    """
    for name, value in arguments.items():
        if value is None:
            continue
        if not value.isfinite().all():
            raise ValueError(f"SNEFY: expected a finite {name}, got {value}.")
    weight, readout, gram = arguments["weight"], arguments["readout"], arguments["gram"]
    if not constraint.check(weight).all():
        raise ValueError(
            f"SNEFY: expected weight in the natural parameter space of {base}, {constraint}, "
            f"got {weight}."
        )
    matrix = readout if gram is None else gram
    assert matrix is not None
    if not (matrix != 0).any(-1).any(-1).all():
        name = "readout" if gram is None else "gram"
        raise ValueError(f"SNEFY: expected a {name} that is not zero, got {matrix}.")
    if gram is not None:
        _check_gram(gram)


def _check_gram(gram: Tensor) -> None:
    largest = gram.abs().amax((-2, -1), keepdim=True)
    tolerance = 1e3 * torch.finfo(gram.dtype).eps
    if not ((gram - gram.mH).abs() <= tolerance * largest).all():
        kind = "Hermitian" if gram.is_complex() else "symmetric"
        raise ValueError(f"SNEFY: expected a {kind} gram, got {gram}.")
    smallest = torch.linalg.eigvalsh(gram.to(torch.promote_types(gram.dtype, torch.float64)))[
        ..., 0
    ]
    if not (smallest >= -gram.shape[-1] * tolerance * largest[..., 0, 0]).all():
        raise ValueError(
            "SNEFY: expected a positive semi-definite gram, "
            f"got one with the eigenvalue {smallest}."
        )


def check_normalizer(log_normalizer: Tensor, network: Network, name: str) -> None:
    r"""Checks that a normalising constant is positive and finite.

    Neurons that cancel each other leave a rounding error of either sign instead of zero.

    Arguments:
        log_normalizer: Its logarithm.
        network: The network that it belongs to.
        name: The name of the argument to complain of.
    """
    with torch.no_grad():
        valid = log_normalizer.isfinite()
        # A batch of weights or readouts has a kernel each: too much to compute for a check.
        one = network.weight.dim() == 2 and network.form.matrix.dim() == 2
        if valid.all() and one and not network.base.batch_shape:
            network = network.real()
            rows = network.bias.reshape(-1, network.bias.shape[-1])
            least = log_normalizer.argmin()  # if any constant of the batch is noise, it is this
            noise = 4 * network.weight.shape[-2] * torch.finfo(network.weight.dtype).eps
            bound = _log_diagonal_trace(network._replace(bias=rows[least % len(rows)]))
            valid = log_normalizer.min() > bound + math.log(noise)
    if not valid.all():
        raise ValueError(
            f"SNEFY: expected a {name} with a positive and finite normalising constant Z, got "
            f"log Z = {log_normalizer}, of neurons that are zero or cancel each other."
        )


def _log_diagonal_trace(network: Network) -> Tensor:
    r"""The logarithm of :math:`\sum_i M_{ii} K_{ii}`, the constant without cancellation."""
    matrix, weight, bias = network.form.matrix, network.weight, network.bias
    if isinstance(network.form, Readout):
        diagonal = matrix.square().sum(-2)
    else:
        diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    # Each neuron by itself: n entries of the matrix, and not its square.
    alone = kernel(network.activation, network.base, weight.unsqueeze(-2))
    log_scale, blocks = alone.matrix(bias.unsqueeze(-1))
    log_scale = None if log_scale is None else log_scale.squeeze(-1)
    norms = blocks[..., 0, 0]
    logs = (diagonal * norms).log()
    return (logs if log_scale is None else logs + 2 * log_scale).logsumexp(-1)
