r"""Checks of closed forms, for kernels and bases that are added from outside the package."""

__all__ = ["check_kernel", "integrate"]

import math
from collections.abc import Callable, Iterator, Sequence
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import constraints, transform_to

from .activations import Activation, Identity, Snake
from .bases import (
    Base,
    Binomial,
    DirichletFamily,
    Discrete,
    FourierBase,
    Interval,
    LaplaceBase,
    Mixture,
    Product,
    ProjectedGaussian,
    Standardized,
    StudentT,
    UniformAngle,
    UniformCube,
)
from .bases.mixture import BatchedMixture
from .constraints import is_real, unit_sphere
from .distributions import SNEFY
from .kernels import closed_form
from .network import Network

Function = Callable[[Tensor], Tensor]
# Events and the logarithm of the volume element, from parameters with shape (N, p).
Map = Callable[[Tensor], tuple[Tensor, Tensor]]


class _Block(NamedTuple):
    # Some coordinates of an event: a curve or surface, or a set of points with shape (K, d).
    edges: list[Tensor]
    map: Map | None
    points: Tensor | None
    inverse: Function | None = None  # parameters of events with one coordinate


_Region = list[_Block]

# Edges of panels about a peak, in standard deviations, if there is one coordinate or two.
_LADDER = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0, 40.0)
_SHORT = (0.0, 1.0, 2.5, 5.0, 10.0, 30.0)
_MOST_EDGES = 28  # of each of two coordinates
_MOST_COUNTS = 50_000
_MOST_POINTS = 200_000  # evaluations of a density
_PANEL = 7  # nodes of the rule that the rule of fifteen nodes is compared with
_STANDARD_ERRORS = 5.0
_DRAWS = 100_000


class _Neurons(NamedTuple):
    activation: Activation
    weight: Tensor  # (n, D)
    bias: Tensor | None  # (n,), or None where a preactivation depends on other factors too


def _peaks(base: Any, neurons: _Neurons) -> tuple[Tensor, Tensor]:
    # Means and standard deviations, (P, d), of the base, or of its tilts by pairs of exponentials.
    weight, exponent = neurons.weight, neurons.activation.exponent
    own: Any = base.components if isinstance(base, BatchedMixture) else base
    try:
        if exponent is not None and isinstance(own, LaplaceBase):
            pairs = (weight.unsqueeze(-2) + weight.unsqueeze(-3)).flatten(0, 1)
            mean, covariance = own.member_moments(exponent * pairs)
        else:
            mean, covariance = own.mean(weight), own.covariance(weight)
    except (AttributeError, NotImplementedError):
        mean = weight.new_zeros(math.prod(base.event_shape))
        covariance = torch.eye(len(mean), dtype=weight.dtype)
    scale = covariance.detach().diagonal(dim1=-2, dim2=-1).sqrt()
    mean, scale = torch.broadcast_tensors(mean.detach(), scale)
    mean, scale = mean.reshape(-1, mean.shape[-1]), scale.reshape(-1, mean.shape[-1])
    found = mean.isfinite().all(-1) & scale.isfinite().all(-1)
    return mean[found], scale[found]


def _ladders(base: Any, neurons: _Neurons) -> list[Tensor]:
    # Edges of panels for each coordinate of a base whose statistic is its event.
    mean, scale = _peaks(base, neurons)
    d = mean.shape[-1]
    one = torch.tensor(_LADDER if d == 1 else _SHORT, dtype=mean.dtype)
    steps = torch.cat([-one.flip(0), one[1:]])
    columns = (mean.unsqueeze(-1) + scale.unsqueeze(-1) * steps).unbind(-2)  # d of (P, S)
    edges = [column.flatten() for column in columns]
    if d == 1 and neurons.bias is not None and neurons.weight.shape[-1] == 1:
        zeros = -neurons.bias / neurons.weight[:, 0]  # where kinks are
        reach = edges[0].abs().amax()
        edges[0] = torch.cat([edges[0], zeros[zeros.abs() <= reach]])
    return [_tidy(x, d) for x in edges]


def _tidy(edges: Tensor, d: int) -> Tensor:
    edges = edges[edges.isfinite()].unique()
    if d > 1 and len(edges) > _MOST_EDGES:
        edges = edges[torch.linspace(0, len(edges) - 1, _MOST_EDGES).round().long()]
    return edges


def _inside(edges: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.cat([edges, torch.stack([low, high])]).clamp(low, high).unique()


def _plain(u: Tensor) -> tuple[Tensor, Tensor]:
    return u, u.new_zeros(len(u))


def _same(x: Tensor) -> Tensor:
    return x


@singledispatch
def _regions(base: Any, neurons: _Neurons) -> list[_Region]:
    # Disjoint pieces of the support: a rule for each kind of support.
    support = base.support
    inner = getattr(support, "base_constraint", support)
    weight = neurons.weight
    if base.is_discrete and support is constraints.nonnegative_integer:
        mean, scale = _peaks(base, neurons)
        count = int((mean + 40 * scale).amax()) + 100
        if count > _MOST_COUNTS:
            raise NotImplementedError(f"A sum over {count} counts, more than {_MOST_COUNTS}.")
        return [[_Block([], None, torch.arange(count, dtype=weight.dtype).unsqueeze(-1))]]
    if is_real(support):
        return [[_Block([x], _plain, None, _same) for x in _ladders(base, neurons)]]
    if support is constraints.positive:
        return [[_Block([_log_ladder(*_peaks(base, neurons))], _exponential, None, Tensor.log)]]
    if support is unit_sphere:
        return [[_sphere(base.event_shape[0], weight)]]
    if isinstance(inner, type(constraints.interval(0, 1))):
        low, high = (
            torch.as_tensor(x, dtype=weight.dtype).expand(base.event_shape or (1,)).reshape(-1)
            for x in (inner.lower_bound, inner.upper_bound)
        )
        ladders = zip(_ladders(base, neurons), low, high, strict=True)
        return [[_Block([_inside(x, a, b)], _plain, None, _same) for x, a, b in ladders]]
    raise NotImplementedError(f"No quadrature over {support}.")


def _log_ladder(mean: Tensor, scale: Tensor) -> Tensor:
    tails = mean.new_tensor([-650.0, -200.0, -80.0, -30.0, -10.0, -4.0, -2.0, -1.0, 1.0, 2.0, 4.0])
    steps = torch.tensor(_LADDER, dtype=mean.dtype)
    near = (scale / mean).clamp(max=1.0) * torch.cat([-steps, steps])
    return (mean.log() + torch.cat([tails.expand(len(mean), -1), near], -1)).unique()


def _exponential(u: Tensor) -> tuple[Tensor, Tensor]:
    return u.exp(), u.squeeze(-1)


def _sphere(d: int, like: Tensor) -> _Block:
    if d > 3:
        raise NotImplementedError(f"No quadrature over the sphere in {d} dimensions.")
    angles = torch.linspace(-math.pi, math.pi, 49 if d == 2 else 13, dtype=like.dtype)
    if d == 2:
        # Where neurons without a bias are zero.
        zeros = torch.atan2(like[:, 1], like[:, 0]).unsqueeze(-1) + angles.new_tensor(
            [-3, -1, 1, 3]
        ) * (math.pi / 2)
        angles = torch.cat([angles, zeros.flatten().clamp(-math.pi, math.pi)]).unique()
        return _Block([angles], lambda u: (torch.cat([u.cos(), u.sin()], -1), 0 * u[:, 0]), None)

    def height(u: Tensor) -> tuple[Tensor, Tensor]:
        z, angle = u.split(1, -1)
        radius = (1 - z.square()).clamp(min=0).sqrt()
        return torch.cat([radius * angle.cos(), radius * angle.sin(), z], -1), 0 * u[:, 0]

    return _Block([torch.linspace(-1, 1, 9, dtype=like.dtype), angles], height, None)


@_regions.register
def _(base: Binomial, neurons: _Neurons) -> list[_Region]:
    count = int(base.total_count.max())
    if count > _MOST_COUNTS:
        raise NotImplementedError(f"A sum over {count} counts, more than {_MOST_COUNTS}.")
    points = torch.arange(count + 1, dtype=neurons.weight.dtype)
    return [[_Block([], None, points.unsqueeze(-1))]]


@_regions.register
def _(base: UniformAngle, neurons: _Neurons) -> list[_Region]:
    (angles,) = _sphere(2, neurons.weight).edges
    return [[_Block([angles], _plain, None, _same)]]


@_regions.register
def _(base: StudentT, neurons: _Neurons) -> list[_Region]:
    # Beyond the reach is a mass of 1e-10, which waves must not make too expensive to resolve.
    df = float(base.df) - (2.0 if isinstance(neurons.activation, Snake | Identity) else 0.0)
    scale, loc = base.matrix()[..., 0, 0].sqrt(), base.mean(neurons.weight)
    reach = math.sqrt(float(base.df)) * 1e10 ** (1 / df) if df > 0.1 else math.inf
    turns = neurons.activation.resolution * float((neurons.weight * scale).abs().amax()) * reach
    if base.num_statistics > 1 or turns > 4e4:
        raise NotImplementedError(f"No quadrature over the tails of {base}.")
    edge = math.asinh(reach)
    edges = torch.linspace(-edge, edge, 49, dtype=scale.dtype)

    def stretched(u: Tensor) -> tuple[Tensor, Tensor]:
        return loc + scale * u.sinh(), (scale * u.cosh()).log().squeeze(-1)

    return [[_Block([edges], stretched, None, lambda x: ((x - loc) / scale).asinh())]]


@_regions.register
def _(base: Discrete, neurons: _Neurons) -> list[_Region]:
    points = base.points if base.event_dim else base.points.unsqueeze(-1)
    return [[_Block([], None, points.unique(dim=0))]]


@_regions.register
def _(base: Interval, neurons: _Neurons) -> list[_Region]:
    (ladder,) = _ladders(base, neurons)
    return [
        [_Block([_inside(ladder, low, high)], _plain, None, _same)]
        for low, high in zip(base.low, base.high, strict=True)
    ]


@_regions.register
def _(base: UniformCube, neurons: _Neurons) -> list[_Region]:
    def normal(u: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.special.erfc(-u * math.sqrt(0.5)) / 2
        return x, (-u.square() / 2 - math.log(2 * math.pi) / 2).squeeze(-1)

    latent = base.latent(neurons.weight)
    mean, scale = _peaks(latent, neurons)
    # Beyond eight standard deviations Φ(u) is one in float64.
    if (mean + 6 * scale > 8).any():
        raise NotImplementedError("Mass next to 1 that no quadrature in float64 resolves.")
    ladders = _ladders(latent, neurons)
    return [
        [
            _Block([_tidy(x.clamp(-37.0, 8.0), 1)], normal, None, torch.special.ndtri)
            for x in ladders
        ]
    ]


@_regions.register
def _(base: ProjectedGaussian, neurons: _Neurons) -> list[_Region]:
    if base.event_shape[0] != 2:
        raise NotImplementedError(f"No quadrature over {base}.")

    def polar(u: Tensor) -> tuple[Tensor, Tensor]:
        radius, angle = u.split(1, -1)
        return torch.cat([radius * angle.cos(), radius * angle.sin()], -1), u[:, 0].log()

    angles = torch.linspace(-math.pi, math.pi, 25, dtype=neurons.weight.dtype)
    radii = neurons.weight.new_tensor([0.0, 1.0, 2.0, 4.0, 9.0])
    return [[_Block([radii, angles], polar, None)]]


@_regions.register
def _(base: DirichletFamily, neurons: _Neurons) -> list[_Region]:
    d = base.event_shape[0]
    if d > 3:
        raise NotImplementedError(f"No quadrature over {base}.")

    def stick(u: Tensor) -> tuple[Tensor, Tensor]:
        # A stick that is broken d - 1 times, with the logits of the shares as parameters.
        rest, total, pieces = torch.ones_like(u[:, 0]), torch.zeros_like(u[:, 0]), []
        for column in u.unbind(-1):
            share, left = column.sigmoid(), (-column).sigmoid()
            pieces.append(rest * share)
            total = total + rest.log() + share.log() + left.log()
            rest = rest * left
        return torch.stack([*pieces, rest], -1), total

    edges = neurons.weight.new_tensor([0.0, 2.0, 5.0, 12.0, 30.0, 80.0, 200.0])
    return [[_Block([torch.cat([-edges[1:].flip(0), edges])] * (d - 1), stick, None)]]


@_regions.register
def _(base: Standardized, neurons: _Neurons) -> list[_Region]:
    loc, scale = (x.reshape(-1) for x in torch.broadcast_tensors(base.loc, base.scale))

    def moved(block: _Block, part: slice) -> _Block:
        own, stretch = loc[part], scale[part]

        def place(u: Tensor) -> tuple[Tensor, Tensor]:
            assert block.map is not None
            x, log_volume = block.map(u)
            return own + stretch * x, log_volume + stretch.log().sum()

        def back(x: Tensor) -> Tensor:
            assert block.inverse is not None
            return block.inverse((x - own) / stretch)

        points = None if block.points is None else own + stretch * block.points
        inverse = None if block.inverse is None else back
        return _Block(block.edges, None if block.map is None else place, points, inverse)

    out = []
    for region in _regions(base.base, neurons):
        start, blocks = 0, []
        for block in region:
            stop = start + _length(block)
            blocks.append(moved(block, slice(start, stop)))
            start = stop
        out.append(blocks)
    return out


def _length(block: _Block) -> int:
    # The number of coordinates of a block.
    if block.map is None:
        assert block.points is not None
        return block.points.shape[-1]
    return block.map(torch.stack([x[:1] for x in block.edges], -1))[0].shape[-1]


@_regions.register
def _(base: Product, neurons: _Neurons) -> list[_Region]:
    weights = neurons.weight.split(base.statistics, dim=-1)
    regions: list[_Region] = [[]]
    bias = neurons.bias if len(base.bases) == 1 else None
    for part, weight in zip(base.bases, weights, strict=True):
        own = _regions(part, _Neurons(neurons.activation, weight, bias))
        regions = [[*left, *right] for left in regions for right in own]
    return regions


@_regions.register
def _(base: Mixture, neurons: _Neurons) -> list[_Region]:
    # One region for all diffuse parts, with the edges of all, and one for all atoms.
    regions = [region for part in base.bases for region in _regions(part, neurons)]
    atoms = [region for region in regions if all(block.points is not None for block in region)]
    diffuse = [region for region in regions if all(block.map is _plain for block in region)]
    if len(atoms) + len(diffuse) < len(regions) or any(len(region) > 1 for region in atoms):
        raise NotImplementedError(f"No quadrature over {base}.")
    out: list[_Region] = []
    if diffuse:
        columns = zip(*diffuse, strict=True)
        d = len(diffuse[0])
        edges = [_tidy(torch.cat([block.edges[0] for block in column]), d) for column in columns]
        out.append([_Block([x], _plain, None, _same) for x in edges])
    if atoms:
        points = torch.cat([block.points for (block,) in atoms if block.points is not None])
        out.append([_Block([], None, points.unique(dim=0))])
    return out


def _cut(block: _Block, breaks: Tensor | None) -> list[Tensor]:
    # The edges of a block, with the breaks among them.
    if breaks is None or block.inverse is None:
        return block.edges
    (edges,) = block.edges
    cuts = block.inverse(breaks.to(edges.dtype))
    cuts = cuts[(cuts > edges[0]) & (cuts < edges[-1])]
    return [torch.cat([edges, cuts]).unique()]


def _events(region: _Region, u: Tensor) -> tuple[Tensor, Tensor]:
    # Events with shape (A, N, d) for the A combinations of points, and log-volumes, (N,).
    pieces: list[Tensor] = []
    log_volume, start, combinations = u.new_zeros(len(u)), 0, 1
    for block in region:
        if block.map is None:
            assert block.points is not None
            x = block.points.unsqueeze(1)  # (K, 1, d)
            pieces = [piece.repeat_interleave(len(x), 0) for piece in pieces]
            x = x.repeat(combinations, 1, 1)
            combinations = len(x)
        else:
            stop = start + len(block.edges)
            x, more = block.map(u[:, start:stop])
            log_volume, start, x = log_volume + more, stop, x.unsqueeze(0)
        pieces.append(x)
    shape = (combinations, len(u))
    pieces = [piece.expand(*shape, piece.shape[-1]) for piece in pieces]
    return torch.cat(pieces, -1), log_volume


def _kronrod() -> tuple[Tensor, Tensor, Tensor]:
    # Fifteen nodes: a rule of seven nodes, and eight more (Kronrod; QUADPACK's qk15).
    nodes = np.array(
        [
            0.991455371120812639206854697526329,
            0.949107912342758524526189684047851,
            0.864864423359769072789712788640926,
            0.741531185599394439863864773280788,
            0.586087235467691130294144691693013,
            0.405845151377397166906606412076961,
            0.207784955007898467600689403773245,
        ]
    )
    weights = np.array(
        [
            0.022935322010529224963732008058970,
            0.063092092629978553290700663189204,
            0.104790010322250183839876322541518,
            0.140653259715525918745189590510238,
            0.169004726639267902826583426598550,
            0.190350578064785409913256402421014,
            0.204432940075298892414161999234649,
        ]
    )
    nodes = np.concatenate([-nodes, [0.0], nodes[::-1]])
    full = np.concatenate([weights, [0.209482141084727828012999174891714], weights[::-1]])
    few = np.zeros(15)
    few[1::2] = np.polynomial.legendre.leggauss(_PANEL)[1]
    return torch.from_numpy(nodes), torch.from_numpy(full), torch.from_numpy(few)


def _grid(columns: Sequence[Tensor]) -> Tensor:
    return torch.cartesian_prod(*columns).reshape(-1, len(columns))


def _adaptive(
    function: Function, edges: list[Tensor], rtol: float, most: int
) -> tuple[Tensor, Tensor]:
    # The integral of a function from (N, p) to (N, Q) over cells, which are halved along each of
    # their sides until two rules agree, and a bound on the error.
    p = len(edges)
    low, high = _grid([x[:-1] for x in edges]), _grid([x[1:] for x in edges])
    nodes, full, few = _kronrod()
    grid = _grid([nodes] * p)
    rules = torch.stack([_grid([rule] * p).prod(-1) for rule in (full, few)])  # (2, 15^p)
    total = error = size = torch.zeros((), dtype=torch.float64)
    count, parents = 0, None
    while len(low):
        centre, half = (low + high) / 2, (high - low) / 2
        x = centre.unsqueeze(1) + half.unsqueeze(1) * grid  # (C, 15^p, p)
        values = function(x.flatten(0, 1)).unflatten(0, x.shape[:2])  # (C, 15^p, Q)
        count += x.shape[0] * x.shape[1]
        volume = half.prod(-1, keepdim=True)
        fine, coarse = (torch.einsum("k,ckq->cq", rule, values) * volume for rule in rules)
        wrong = (fine - coarse).abs()
        if p > 1:
            # As in QUADPACK. A jump may look smooth to this estimate, so not for one coordinate.
            absolute = fine.abs().clamp(min=1e-300)
            wrong = absolute * torch.minimum(wrong / absolute, (200 * wrong / absolute).pow(1.5))
        if parents is not None:
            # A jump between the last node of a cell and its end is seen by the cell before.
            halves = fine.unflatten(0, (-1, len(parents))).sum(0)
            lost = (halves - parents).abs() / 2**p
            wrong = torch.maximum(wrong, lost.repeat(2**p, 1))
        size = torch.maximum(size, (total + fine.sum(0)).abs())
        goal = rtol * size.clamp(min=1e-300) / len(low)
        split = (wrong > goal).any(-1)
        if count + 2**p * int(split.sum()) * len(grid) > most:
            split = torch.zeros_like(split)
        total = total + fine[~split].sum(0)
        error = error + wrong[~split].sum(0)
        low, high, centre, parents = low[split], high[split], centre[split], fine[split]
        sides = _grid([torch.tensor([False, True])] * p)  # which half of each side
        low, high = (
            torch.cat([torch.where(side, centre, low) for side in sides]),
            torch.cat([torch.where(side, high, centre) for side in sides]),
        )
    return total, error


@torch.no_grad()
def integrate(
    law: SNEFY,
    function: Function | None = None,
    *,
    log_density: Function | None = None,
    breaks: Tensor | None = None,
    rtol: float = 1e-9,
) -> tuple[Tensor, Tensor]:
    r"""Integrates a function against the density of a squared neural family.

    .. math:: \int f(x) \, p(x) \, dx

    The rule is adaptive: a cell is halved until Gauss quadrature with seven nodes and Kronrod's
    extension of it to fifteen agree. Discrete coordinates are summed over.

    Arguments:
        law: The family, without batch dimensions.
        function: A function from events, with shape :math:`(N, \text{event})`, to values, with
            shape :math:`(N, Q)`. None stands for one, so that the integral is the total mass.
        log_density: A function from events to log-densities, instead of the ``log_prob`` of the
            law; the law then only says where to look.
        breaks: Where the function jumps, with shape :math:`(J,)`, if events have one coordinate.
        rtol: The relative error to aim for.

    Returns:
        The integrals and bounds on their errors, each with shape :math:`(Q,)`.

    Raises:
        NotImplementedError: If there are more than two continuous coordinates, or the support is
            of no known kind.

    Example:
        >>> law = SNEFY(torch.randn(3, 1), torch.randn(3), torch.randn(2, 3))
        >>> mass, error = integrate(law)
        >>> mass
        tensor([1.0000], dtype=torch.float64)
    """
    if law.batch_shape:
        raise ValueError(f"integrate: expected no batch shape, got {tuple(law.batch_shape)}.")
    base = law.base.map(Tensor.double)
    bias = torch.zeros_like(law.weight[:, 0]) if law.bias is None else law.bias
    neurons = _Neurons(law.activation, law.weight.double(), bias.double())
    tensors = {name: getattr(law, name) for name in ("weight", "bias", "readout", "gram")}
    # Panels may reach beyond the support, where the density is zero.
    law = SNEFY(activation=law.activation, base=law.base, validate_args=False, **tensors)
    total = error = torch.zeros((), dtype=torch.float64)
    for region in _regions(base, neurons):
        edges = [x for block in region for x in _cut(block, breaks)]
        if len(edges) > 2:
            raise NotImplementedError(f"No quadrature over {len(edges)} coordinates.")
        atoms = math.prod(len(block.points) for block in region if block.points is not None)

        def density(u: Tensor, region: _Region = region) -> Tensor:
            x, log_volume = _events(region, u)
            x = x.reshape(x.shape[:2] + base.event_shape)
            log_prob = (law.log_prob if log_density is None else log_density)(x)  # (A, N)
            log_prob = log_prob + log_volume
            values = log_prob.exp().unsqueeze(-1)
            if function is not None:
                values = values * function(x.flatten(0, 1)).unflatten(0, x.shape[:2])
            return torch.where(log_prob.unsqueeze(-1) > -torch.inf, values, 0.0).sum(0)

        if edges:
            value, wrong = _adaptive(density, edges, rtol, max(20_000, _MOST_POINTS // atoms))
            total, error = total + value, error + wrong
        else:
            total = total + density(neurons.weight.new_zeros((1, 0))).squeeze(0)
            error = error + torch.zeros_like(total)
    return total, error


def _draws(network: Network) -> tuple[Tensor, Tensor]:
    # Events of the base over its total mass, and the mass.
    base: Any = network.latent().base
    zeros = network.weight.new_zeros((_DRAWS, base.num_statistics))
    events = network.from_latent(base.sample_member(zeros))
    if isinstance(base, FourierBase):
        return events, base.mass(zeros)
    return events, base.log_partition(zeros[:1]).exp().squeeze()


class _Check:
    # What one call of check_kernel needs in each of its parts.
    def __init__(
        self, activation: Activation, base: Base, width: int, readout_dim: int, scale: float
    ) -> None:
        self.activation, self.base = activation, base
        self.width, self.readout_dim, self.scale = width, readout_dim, scale
        self.has_bias = closed_form(activation, base, bias=True)

    def fail(self, what: str) -> None:
        raise AssertionError(f"check_kernel: {self.activation} on {self.base}: {what}")

    def parameters(
        self,
        weights: tuple[int, ...] = (),
        biases: tuple[int, ...] = (),
        rows: tuple[int, ...] = (),
    ) -> dict[str, Tensor | None]:
        n, double = self.width, torch.float64
        weight = self.scale * torch.randn((*weights, n, self.base.num_statistics), dtype=double)
        constraint = self.base.weight_constraint(self.activation)
        weight = weight if is_real(constraint) else transform_to(constraint)(weight)
        readout = torch.randn((*rows, self.readout_dim, n), dtype=double)
        if self.activation.is_complex:
            readout = torch.complex(readout, torch.randn_like(readout))
        bias = torch.randn((*biases, n), dtype=double) if self.has_bias else None
        return {"weight": weight, "bias": bias, "readout": readout}

    def law(self, **parameters: Tensor | None) -> SNEFY:
        weight = parameters.pop("weight")
        assert weight is not None
        base = self.base.map(lambda x: x.to(weight.dtype))
        return SNEFY(
            weight, activation=self.activation, base=base, validate_args=False, **parameters
        )

    def mass(self, law: SNEFY, events: Tensor | None, rtol: float) -> None:
        """The density integrates to one, by quadrature or by Monte Carlo."""
        try:
            if events is not None:
                raise NotImplementedError
            (mass,), (error,) = integrate(law)
            if error <= 1e-3:
                allowed = rtol + 10 * float(error)
                if not abs(float(mass) - 1) <= allowed:
                    self.fail(
                        f"the density integrates to {float(mass):.10g}, expected 1 within "
                        f"{allowed:.2g}, by quadrature, whose error is about {float(error):.1g}. "
                        f"{_show(law)}"
                    )
                return
        except NotImplementedError:
            pass
        mass = torch.ones((), dtype=torch.float64)
        if events is None:
            events, mass = _draws(law._network)
        elif isinstance(self.base, FourierBase):
            mass = self.base.mass(law.weight)
        z = self.base.statistic(events) @ law.weight.mT
        neurons = self.activation(z if law.bias is None else z + law.bias)
        assert law.readout is not None
        square = (neurons.to(law.readout.dtype) @ law.readout.mT).abs().square().sum(-1)
        average = square.mean() * mass / law.log_normalizer.exp()
        error = _STANDARD_ERRORS * square.std() / len(square) ** 0.5 / square.mean()
        if not abs(float(average) - 1) <= float(error):
            self.fail(
                f"the mean of |V σ(W t + b)|^2 over {len(square)} draws of the base is "
                f"{float(average):.6g} Z, expected Z within {float(error):.2g} "
                f"({_STANDARD_ERRORS:g} standard errors). {_show(law)}"
            )

    def matrix(self, law: SNEFY) -> None:
        """The kernel is a matrix of inner products: symmetric, without negative eigenvalues."""
        _, matrix = law._network.kernel().matrix(law._network.bias)
        wrong = float((matrix - matrix.mT).abs().amax() / matrix.abs().amax())
        if not wrong <= 1e-10:
            self.fail(f"the kernel is not symmetric: relative difference {wrong:.2g}. {_show(law)}")
        values = torch.linalg.eigvalsh(matrix)
        if not values[0] >= -1e-10 * values[-1]:
            self.fail(f"the kernel has the eigenvalues {values.tolist()}. {_show(law)}")

    def batch(self) -> None:
        """A batch is a loop over its members, whichever arguments have batch dimensions."""
        for weights, biases, rows in ((2, 1), (3,), ()), ((), (3,), (2, 1)), ((), (2, 3), ()):
            parameters = self.parameters(weights, biases, rows)
            law, ranks = self.law(**parameters), {"weight": 2, "bias": 1, "readout": 2}
            every = {
                name: x.expand(law.batch_shape + x.shape[x.dim() - ranks[name] :])
                for name, x in parameters.items()
                if x is not None
            }
            for index in np.ndindex(*law.batch_shape):
                alone = self.law(**{name: x[index] for name, x in every.items()})
                allowed = 1e-9 * (1 + float(alone.condition_number))
                found, expected = float(law.log_normalizer[index]), float(alone.log_normalizer)
                if not (found == expected or abs(found - expected) <= allowed):
                    self.fail(
                        f"log Z of member {index} of a batch is {found:.12g}, expected "
                        f"{expected:.12g} as for the member alone. Batch shapes: weight {weights}, "
                        f"bias {biases}, readout {rows}. {_show(alone)}"
                    )

    def gradients(self, parameters: dict[str, Tensor | None]) -> None:
        """Derivatives of log Z along random directions are those of finite differences."""
        for name, value in parameters.items():
            if value is None:
                continue
            leaf = value.clone().requires_grad_()
            log_normalizer = self.law(**{**parameters, name: leaf}).log_normalizer
            if not log_normalizer.requires_grad:  # such as by the weights of steps on points
                log_normalizer = log_normalizer + 0 * leaf.abs().sum()
            (gradient,) = torch.autograd.grad(log_normalizer, leaf, materialize_grads=True)
            if not gradient.isfinite().all():
                self.fail(f"the gradient of log Z by {name} is {gradient.tolist()}.")
            step = 1e-5 * torch.randn_like(value)
            found = float((gradient.conj() * step).real.sum())
            up, down = (
                float(self.law(**{**parameters, name: value + sign * step}).log_normalizer)
                for sign in (0.5, -0.5)
            )
            allowed = 1e-5 * float((gradient.abs() * step.abs()).sum()) + 1e-11 * (1 + abs(up))
            if not abs(found - (up - down)) <= allowed:
                self.fail(
                    f"a step of {name} changes log Z by {up - down:.8g}, but its gradient says "
                    f"{found:.8g}, expected within {allowed:.2g}."
                )

    def single(self, parameters: dict[str, Tensor | None]) -> None:
        """In float32, log Z is what the same parameters give in float64, rounded."""
        rounded = {
            name: None if x is None else x.to(torch.complex64 if x.is_complex() else torch.float32)
            for name, x in parameters.items()
        }
        same = {
            name: None if x is None else x.to(torch.complex128 if x.is_complex() else torch.float64)
            for name, x in rounded.items()
        }
        weight = rounded["weight"]
        assert weight is not None
        self.base = self.base.map(lambda x: x.float().double())
        single, double = self.law(**rounded), self.law(**same)
        found, expected = float(single.log_normalizer), float(double.log_normalizer)
        eps = torch.finfo(torch.float32).eps
        allowed = 4 * eps * (1 + abs(expected))
        if not abs(found - expected) <= allowed:
            self.fail(
                f"log Z in float32 is {found:.9g}, expected {expected:.9g} within {allowed:.2g}, "
                f"from the same parameters in float64. {_show(double)}"
            )


def _show(law: SNEFY) -> str:
    tensors = {"weight": law.weight, "bias": law.bias, "readout": law.readout}
    return ", ".join(
        f"{name}={None if x is None else x.detach().tolist()}" for name, x in tensors.items()
    )


def check_kernel(
    activation: Activation,
    base: Base,
    *,
    width: int = 3,
    readout_dim: int = 2,
    scale: float = 1.0,
    repeats: int = 3,
    seed: int = 0,
    events: Tensor | None = None,
    rtol: float = 1e-6,
) -> None:
    r"""Checks the closed form of a pair of activation and base, such as a new one.

    Random members of the family are held against what is known of all of them:

    - The density integrates to one, :math:`\int p(x) \, dx = 1`. This is by quadrature where
      there are at most two continuous coordinates. Otherwise :math:`Z` is held against the mean
      of :math:`\|V \sigma(W t(x) + b)\|^2` over draws of the base, within five standard errors,
      which a right kernel exceeds once in 1.7 million checks. With 100,000 draws, an error of
      1.6 % of the standard deviation of the squares is seen half of the time.
    - The kernel :math:`K_{ij} = \int \sigma_i \sigma_j \, d\mu` is symmetric and positive
      semi-definite.
    - Members of a batch are what they are alone, whichever arguments have batch dimensions.
    - Gradients of :math:`\log Z` are finite, and agree with finite differences.
    - In float32, :math:`\log Z` is what the same parameters give in float64, rounded.

    Arguments:
        activation: The activation.
        base: The base, in any dtype, without batch dimensions.
        width: The number of neurons.
        readout_dim: The number of rows of the readout.
        scale: The standard deviation of the weights, which is to suit the scale of the base.
        repeats: The number of members.
        seed: The seed of the random numbers. The global generator is left as it is.
        events: Draws from the base over its total mass, with shape :math:`(N, \text{event})`, in
            float64. They are used instead of quadrature, and needed where there is none and the
            base has no ``sample_member``.
        rtol: The relative error of the mass that is allowed, besides the error of quadrature.

    Raises:
        AssertionError: If a check fails. The message has what was expected, what was found, and
            the parameters.

    Example:
        >>> from pyro_snefy.activations import Activation
        >>> from pyro_snefy.bases import Gaussian
        >>> from pyro_snefy.kernels import Pairwise, register_kernel
        >>> class Cube(Activation):
        ...     def __call__(self, z):
        ...         return z**3
        >>> @register_kernel(Cube, Gaussian)
        ... def _cube_gaussian(activation, base, weight):
        ...     c = base.quadratic(weight)
        ...     v = c.diagonal(dim1=-2, dim2=-1)
        ...     shift = (weight * base.mean(weight).unsqueeze(-2)).sum(-1)
        ...
        ...     def evaluate(bias):
        ...         m = bias + shift
        ...         # Hermite expansion: E[z^3], then its derivatives in the mean.
        ...         terms = [m**3 + 3 * m * v, 3 * (m**2 + v), 6 * m, 6 + 0 * m]
        ...         pairs = [x.unsqueeze(-1) * x.unsqueeze(-2) for x in terms]
        ...         return pairs[0] + pairs[1] * c + pairs[2] * c**2 / 2 + pairs[3] * c**3 / 6
        ...
        ...     return Pairwise(evaluate)
        >>> check_kernel(Cube(), Gaussian(torch.tensor([0.5]), torch.tensor([2.0])))
    """
    if base.batch_shape:
        raise ValueError(f"check_kernel: expected no batch shape, got {tuple(base.batch_shape)}.")
    check = _Check(activation, base.map(Tensor.double), width, readout_dim, scale)
    if not closed_form(activation, base, bias=False):
        check.fail("no kernel is registered for this pair; see register_kernel.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for parameters in _members(check, repeats):
            law = check.law(**parameters)
            check.mass(law, events, rtol)
            check.matrix(law)
            check.gradients(parameters)
        check.batch()
        for parameters in _members(check, 1):
            check.single(parameters)


def _members(check: _Check, repeats: int) -> Iterator[dict[str, Tensor | None]]:
    # Members that are not zero: rectifiers may be zero on all of a bounded support.
    for _ in range(repeats):
        for _ in range(100):
            parameters = check.parameters()
            log_normalizer = check.law(**parameters).log_normalizer
            if log_normalizer > -torch.inf:
                break
        if not log_normalizer.isfinite():
            check.fail(f"log Z is {float(log_normalizer)}. {_show(check.law(**parameters))}")
        yield parameters
