r"""Mixtures and products of squared neural families on one base, which are such families again."""

__all__ = ["mixture", "product", "same_base"]

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..activations import Cis, Cos, Exp, Sin
from ..bases import Base
from ..bases.base import TensorLike
from ..network import Network
from ..numerics.linalg import broadcast_shapes
from .snefy import SNEFY


def mixture(weights: TensorLike, components: Sequence[SNEFY]) -> SNEFY:
    r"""Creates the mixture :math:`\sum_c \pi_c p_c` of squared neural families on one base.

    .. math:: V = \mathrm{blockdiag}\left( \sqrt{\pi_c / Z_c} \, V_c \right), \quad
        W = (W_1, \ldots, W_C), \quad b = (b_1, \ldots, b_C)

    The square of the stacked network is the sum of the squares of its components. The
    normalising constants :math:`Z_c` are those of Tsuchida, Ong and Sejdinovic, arXiv:2305.13552.

    Arguments:
        weights: The weights :math:`\pi`, not negative, with shape :math:`(*, C)`. They need not
            add up to one.
        components: The :math:`C` families, with one activation and one base.

    Example:
        >>> from pyro_snefy import SNEFY
        >>> parts = [SNEFY(torch.randn(n, 2), None, torch.randn(1, n)) for n in (3, 5)]
        >>> mixture([0.3, 0.7], parts).weight.shape
        torch.Size([8, 2])
    """
    components = list(components)
    _check("mixture", components)
    first = components[0]
    if any(part.activation != first.activation for part in components):
        found = ", ".join(str(part.activation) for part in components)
        raise ValueError(f"mixture: expected components with one activation, got {found}.")
    weight = first.weight
    shares = torch.as_tensor(weights, dtype=weight.dtype, device=weight.device)
    if shares.dim() < 1 or shares.shape[-1] != len(components):
        raise ValueError(
            f"mixture: expected weights with shape (*, {len(components)}), one for each component, "
            f"got {tuple(shares.shape)}."
        )
    if first._validate_args and not ((shares >= 0).all() and (shares.sum(-1) > 0).all()):
        raise ValueError(
            f"mixture: expected weights that are not negative, one of them positive, got {shares}."
        )
    shares = shares / shares.sum(-1, keepdim=True)
    logs = torch.stack(torch.broadcast_tensors(*(part.log_normalizer for part in components)), -1)
    exponent = first.activation.exponent
    if exponent is None:
        roots, shifts = (shares.log() - logs + logs.amin(-1, keepdim=True)).exp().sqrt(), None
    else:  # by the biases, where nothing overflows
        roots, shifts = shares.sqrt(), -logs / (2 * exponent)
    keeps_bias = shifts is not None or any(part.bias is not None for part in components)
    biases = [_bias(part) for part in components] if keeps_bias else None
    if biases is not None and shifts is not None:
        biases = [b + s.unsqueeze(-1) for b, s in zip(biases, shifts.unbind(-1), strict=True)]
    factors = [root[..., None, None] for root in roots.unbind(-1)]
    pairs = list(zip(factors, components, strict=True))
    if all(part.readout is not None for part in components):
        matrix = {"readout": _blocks([r * p.readout for r, p in pairs if p.readout is not None])}
    else:
        matrix = {"gram": _blocks([r.square() * _gram(part) for r, part in pairs])}
    return SNEFY(
        _concatenate([part.weight for part in components], -2),
        None if biases is None else _concatenate(biases, -1),
        activation=first.activation,
        base=first.base,
        validate_args=first._validate_args,
        **matrix,
    )


def product(left: SNEFY, right: SNEFY) -> SNEFY:
    r"""Creates the product of two squared neural families on one base.

    .. math:: p(x) \propto \mu(x) \left\| V_1 \sigma(W_1 t + b_1) \right\|^2
        \left\| V_2 \sigma(W_2 t + b_2) \right\|^2 \propto \frac{p_1(x) \, p_2(x)}{\mu(x)}

    Products of waves are waves, and products of exponentials are exponentials:
    :math:`2 \cos u \cos v = \cos(u - v) + \cos(u + v)`. There are :math:`2 n_1 n_2` neurons for
    ``Cos`` and ``Sin``, and :math:`n_1 n_2` for ``Cis`` and ``Exp``. The normalising constant is
    the one of Tsuchida, Ong and Sejdinovic, arXiv:2305.13552.

    Arguments:
        left: A family with the activation ``Cos``, ``Sin``, ``Cis`` or ``Exp``.
        right: Another one on the same base; a wave like the first, or an exponential like it.

    Example:
        >>> from pyro_snefy import SNEFY
        >>> left, right = (SNEFY(torch.randn(n, 2), None, torch.randn(1, n)) for n in (3, 5))
        >>> product(left, right).weight.shape
        torch.Size([30, 2])
    """
    _check("product", [left, right])
    first, second = left.activation, right.activation
    if isinstance(first, Exp) and isinstance(second, Exp):
        ratio = second.scale / first.scale
        weight = _sums(left.weight, ratio * right.weight)
        bias = _sums(_bias(left).unsqueeze(-1), ratio * _bias(right).unsqueeze(-1)).squeeze(-1)
        matrices = [_matrix(left), _matrix(right)]
    elif isinstance(first, Cis) and isinstance(second, Cis):
        weight = _sums(left.weight, right.weight)
        bias = _sums(_bias(left).unsqueeze(-1), _bias(right).unsqueeze(-1)).squeeze(-1)
        matrices = [_matrix(left), _matrix(right)]
    elif isinstance(first, Cos | Sin | Cis) and isinstance(second, Cos | Sin | Cis):
        return _product_of_cosines(left, right)
    else:
        raise NotImplementedError(
            f"product: no closed form for {first} times {second}. Expected two of Cos, Sin and "
            "Cis, or Exp twice."
        )
    name, (one, other) = _common(left, right, matrices)
    return SNEFY(
        weight,
        bias,
        activation=first,
        base=left.base,
        validate_args=left._validate_args,
        **{name: _kronecker(one, other)},
    )


def _product_of_cosines(left: SNEFY, right: SNEFY) -> SNEFY:
    networks = [_cosines(left._network), _cosines(right._network)]
    (first, second), matrices = networks, [network.form.matrix for network in networks]
    name, (one, other) = _common(left, right, matrices)
    matrix = _kronecker(one, other)
    if name == "readout":
        matrix = torch.cat([matrix / 2] * 2, dim=-1)
    else:
        matrix = torch.cat([torch.cat([matrix / 4] * 2, dim=-1)] * 2, dim=-2)
    weights, biases = (
        [_sums(x, sign * y) for sign in (-1, 1)]
        for x, y in (
            (first.weight, second.weight),
            (first.bias.unsqueeze(-1), second.bias.unsqueeze(-1)),
        )
    )
    return SNEFY(
        torch.cat(weights, dim=-2),
        torch.cat(biases, dim=-2).squeeze(-1),
        activation=Cos(),
        base=left.base,
        validate_args=left._validate_args,
        **{name: matrix},
    )


def _cosines(network: Network) -> Network:
    # The same network with cosines: sin z = cos(z - π / 2).
    if isinstance(network.activation, Sin):
        return replace(network, activation=Cos(), bias=network.bias - torch.pi / 2)
    return network.real()


def _check(name: str, families: Sequence[SNEFY]) -> None:
    if not families or not all(isinstance(family, SNEFY) for family in families):
        raise TypeError(f"{name}: expected squared neural families, got {families!r}.")
    first = families[0]
    for other in families[1:]:
        if not same_base(first.base, other.base):
            raise ValueError(
                f"{name}: expected families on one base, got {first.base} and {other.base}, which "
                "differ in kind, in shape or in their tensors."
            )
        if other.weight.dtype != first.weight.dtype:
            raise ValueError(
                f"{name}: expected families of one dtype, got {first.weight.dtype} and "
                f"{other.weight.dtype}."
            )


def same_base(left: Base, right: Base) -> bool:
    """Whether two bases are one, or equal by value."""
    if left is right:
        return True
    if type(left) is not type(right) or repr(left) != repr(right):
        return False
    pairs = zip(left.tensors(), right.tensors(), strict=True)
    return all(x is y or torch.equal(x, y) for (_, x), (_, y) in pairs)


def _bias(family: SNEFY) -> Tensor:
    zeros = family.weight.new_zeros(family.weight.shape[-2:-1])
    return zeros if family.bias is None else family.bias


def _matrix(family: SNEFY) -> Tensor:
    matrix = family.gram if family.readout is None else family.readout
    assert matrix is not None
    return matrix


def _gram(family: SNEFY) -> Tensor:
    matrix = _matrix(family)
    return matrix if family.readout is None else matrix.mH @ matrix


def _common(left: SNEFY, right: SNEFY, matrices: list[Tensor]) -> tuple[str, list[Tensor]]:
    # Two readouts, or else two grams.
    if left.readout is not None and right.readout is not None:
        return "readout", matrices
    pairs = zip((left, right), matrices, strict=True)
    return "gram", [x if family.readout is None else x.mH @ x for family, x in pairs]


def _sums(left: Tensor, right: Tensor) -> Tensor:
    # All sums of a row of one matrix and a row of another, (*, n_1 n_2, D).
    return (left.unsqueeze(-2) + right.unsqueeze(-3)).flatten(-3, -2)


def _kronecker(left: Tensor, right: Tensor) -> Tensor:
    # torch.kron with batch dimensions.
    blocks = left[..., :, None, :, None] * right[..., None, :, None, :]
    return blocks.flatten(-4, -3).flatten(-2)


def _concatenate(values: Sequence[Tensor], dim: int) -> Tensor:
    rank = -dim
    batch = broadcast_shapes(*(x.shape[: x.dim() - rank] for x in values))
    return torch.cat([x.expand(batch + x.shape[x.dim() - rank :]) for x in values], dim)


def _blocks(matrices: Sequence[Tensor]) -> Tensor:
    # A block-diagonal matrix.
    width = sum(x.shape[-1] for x in matrices)
    start, rows = 0, []
    for x in matrices:
        after = width - start - x.shape[-1]
        rows.append(torch.nn.functional.pad(x, (start, after)))
        start += x.shape[-1]
    return _concatenate(rows, -2)
