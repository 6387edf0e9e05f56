r"""First values from data: bases by moments, neurons that vary where the events are."""

__all__ = [
    "centred_members",
    "checked_events",
    "complete_rows",
    "fit_base",
    "fit_tails",
    "spread_neurons",
]

import math
from functools import singledispatch

import torch
from torch import Tensor

from ..activations import Activation, Exp, FourierActivation, Snake
from ..bases import (
    Base,
    Bernoulli,
    Binomial,
    DirichletFamily,
    Discrete,
    GammaFamily,
    Gaussian,
    GaussianMixture,
    Geometric,
    Laplace,
    Logistic,
    Mixture,
    NegativeBinomial,
    NormalFamily,
    Poisson,
    PoissonFamily,
    Product,
    SmoothBox,
    SmoothBoxMixture,
    Standardized,
    StudentT,
    UniformAngle,
    UniformSphere,
)
from .mixtures import normal_mixture
from .rows import as_tensor
from .statistics import random_rows, robust_location_scale, spread, subsample

_ROUNDS = 50  # of expectation maximisation: first values need not have converged
# Half the length of a box, if its edges are smeared by 0.5 and its variance is one: 0.75 + 0.25.
_HALF = 1.5
_ENOUGH = 100  # complete rows: moments of fewer are too noisy


def checked_events(caller: str, base: Base, x: Tensor, like: Tensor) -> Tensor:
    r"""Events in the dtype and device of a tensor; raises unless they are events of the base."""
    x = x if isinstance(x, Tensor) else as_tensor(caller, "x", x, like)
    if x.dim() < 1 or x.shape[1:] != base.event_shape or not len(x):
        event = ", ".join(map(str, ("N", *base.event_shape)))
        raise ValueError(
            f"{caller}: expected x with shape ({event}) and N >= 1, got {tuple(x.shape)}."
        )
    x = x.to(like.device)
    if x.isinf().any():
        raise ValueError(
            f"{caller}: expected a finite x, got {int(x.isinf().sum())} values that are not."
        )
    missing = x.isnan().reshape(len(x), -1).any(-1)
    inside = base.contains(x) | missing
    if not inside.all():
        row = int(inside.int().argmin())
        raise ValueError(
            f"{caller}: expected x in the support {base.support}, got {x[row]} in row {row}."
        )
    if x.isnan().all(0).any():
        raise ValueError(
            f"{caller}: expected x with values of every coordinate, got one with NaN alone."
        )
    return base.cast(x, like.dtype)


def complete_rows(x: Tensor) -> Tensor:
    r"""The complete events, if there are at least 100 or if events are scalars.

    Otherwise each NaN is replaced by a random observed value of the same coordinate, which
    preserves the distribution of each coordinate.
    """
    missing = x.isnan()
    complete = ~(missing.any(-1) if x.dim() > 1 else missing)
    if complete.all() or complete.sum() >= _ENOUGH or x.dim() == 1:
        return x[complete]
    columns = []
    for column, gaps in zip(x.unbind(-1), missing.unbind(-1), strict=True):
        observed = column[~gaps]
        drawn = observed[torch.randint(len(observed), column.shape, device=x.device)]
        columns.append(torch.where(gaps, drawn, column))
    return torch.stack(columns, dim=-1)


@singledispatch
def fit_base(base: Base, x: Tensor) -> Base:
    r"""A base of the same type and shapes, fitted to events without NaN by moments.

    A base without tensors to learn, or with a batch shape, is returned as it is.
    """
    return base


@fit_base.register
def _gaussian(base: Gaussian, x: Tensor) -> Gaussian:
    if base.batch_shape:
        return base
    loc = _shaped(x.mean(0), base.loc)
    if base.scale_tril is not None:
        # In units of the spread, so that the covariance of many units is well conditioned.
        white = (x - x.mean(0)) / spread(x)
        covariance = torch.cov(white.mT, correction=0).reshape(x.shape[1:] * 2)
        # A constant coordinate has variance zero there, and gets its spread of one.
        constant = covariance.diagonal() < 0.5
        ridge = torch.where(constant, 1.0, 1e-6).diag_embed()
        tril = spread(x).unsqueeze(-1) * torch.linalg.cholesky(covariance + ridge)
        return Gaussian(loc, scale_tril=_shaped(tril, base.scale_tril), validate_args=False)
    assert base.scale is not None
    scale = _shaped(spread(x), base.scale)
    return Gaussian(loc, scale, event_dim=base.event_dim, validate_args=False)


@fit_base.register
def _student_t(base: StudentT, x: Tensor) -> StudentT:
    # Expectation maximisation with the given degrees of freedom (Liu and Rubin 1995): events far
    # away count less.
    if base.batch_shape:
        return base
    x = subsample(x)
    rows = x if base.event_dim else x.unsqueeze(-1)
    loc, scale = rows.median(0).values, spread(rows)
    white = (rows - loc) / scale
    d = rows.shape[-1]
    # A constant coordinate has variance zero, and gets its spread of one.
    constant = white.square().mean(0) < 1e-6
    ridge = torch.where(constant, 1.0, 1e-6).diag_embed()
    mean, matrix = torch.zeros_like(loc), torch.eye(d, dtype=x.dtype, device=x.device)
    for _ in range(_ROUNDS):
        factor = torch.linalg.cholesky(matrix)
        offsets = white - mean
        square = torch.linalg.solve_triangular(factor, offsets.mT, upper=False).square().sum(0)
        shares = ((base.df + d) / (base.df + square)).unsqueeze(-1)  # (N, 1)
        mean = (shares * white).sum(0) / shares.sum()
        offsets = white - mean
        matrix = (shares * offsets).mT @ offsets / len(x) + ridge
        if base.scale_tril is None:
            matrix = matrix.diagonal().diag_embed()
    loc, factor = loc + scale * mean, scale.unsqueeze(-1) * torch.linalg.cholesky(matrix)
    if base.scale_tril is not None:
        tril = _shaped(factor, base.scale_tril)
        return StudentT(base.df, _shaped(loc, base.loc), scale_tril=tril, validate_args=False)
    assert base.scale is not None
    scale = factor.diagonal()
    if not base.event_dim:
        loc, scale = loc.squeeze(-1), scale.squeeze(-1)
    loc, scale = _shaped(loc, base.loc), _shaped(scale, base.scale)
    return StudentT(base.df, loc, scale, event_dim=base.event_dim, validate_args=False)


@fit_base.register
def _laplace(base: Laplace, x: Tensor) -> Laplace:
    if base.batch_shape:
        return base
    loc = x.median(0).values
    scale = (x - loc).abs().mean(0)
    scale = torch.where(scale > 0, scale, 1.0)
    return Laplace(_shaped(loc, base.loc), _shaped(scale, base.scale), validate_args=False)


@fit_base.register
def _logistic(base: Logistic, x: Tensor) -> Logistic:
    if base.batch_shape:
        return base
    scale = spread(x) * (math.sqrt(3) / math.pi)
    return Logistic(_shaped(x.mean(0), base.loc), _shaped(scale, base.scale), validate_args=False)


@fit_base.register
def _gaussian_mixture(base: GaussianMixture, x: Tensor) -> GaussianMixture:
    if base.batch_shape:
        return base
    if base.is_concentric:
        return _concentric(base, x)
    x = subsample(x)
    count = max(base.logits.shape[-1], *base.gaussians.batch_shape[-1:])
    found = normal_mixture(x, count, full=base.scale_tril is not None)
    tensors = zip(found.tensors(), base.tensors(), strict=True)
    fitted = iter([_shaped(value, like) for (_, value), (_, like) in tensors])
    return base.map(lambda _: next(fitted))


@fit_base.register
def _smooth_box(base: SmoothBox, x: Tensor) -> SmoothBox:
    if base.batch_shape:
        return base
    loc, half = x.mean(0), _HALF * spread(x)
    low, high = _shaped(loc - half, base.low), _shaped(loc + half, base.high)
    scale = _shaped(spread(x) / 2, base.scale)
    return SmoothBox(low, high, scale, event_dim=base.event_dim, validate_args=False)


@fit_base.register
def _smooth_box_mixture(base: SmoothBoxMixture, x: Tensor) -> SmoothBoxMixture:
    if base.batch_shape:
        return base
    count = max(base.logits.shape[-1], *base.components.batch_shape[-1:])
    found = normal_mixture(subsample(x), count)
    assert found.scale is not None
    half = _HALF * found.scale
    tensors = (found.logits, found.loc - half, found.loc + half, found.scale / 2)
    fitted = iter(
        [_shaped(value, like) for value, (_, like) in zip(tensors, base.tensors(), strict=True)]
    )
    return base.map(lambda _: next(fitted))


def _concentric(base: GaussianMixture, x: Tensor) -> GaussianMixture:
    # The ratios of the scales stay: they say how heavy the tails are.
    assert base.scale is not None
    loc, scale = robust_location_scale(x)
    ratio = base.scale / base.scale.amin(-1 - base.event_dim, keepdim=True)
    return GaussianMixture(
        base.logits,
        loc.unsqueeze(-1 - base.event_dim),
        _shaped(scale, ratio[..., :1, :] if base.event_dim else ratio[..., 0]) * ratio,
        event_dim=base.event_dim,
        validate_args=False,
    )


@fit_base.register
def _poisson(base: Poisson, x: Tensor) -> Poisson:
    return Poisson(_shaped(x.mean(0).clamp(min=1e-3), base.rate), validate_args=False)


@fit_base.register
def _geometric(base: Geometric, x: Tensor) -> Geometric:
    probs = 1 / (1 + x.mean(0).clamp(min=1e-3))
    return Geometric(_shaped(probs, base.probs), validate_args=False)


@fit_base.register
def _negative_binomial(base: NegativeBinomial, x: Tensor) -> NegativeBinomial:
    # The variance is the mean over 1 - q. Where it is less than the mean, q is small.
    mean = x.mean(0).clamp(min=1e-3)
    probs = (1 - mean / spread(x).square()).clamp(0.01, 0.99)
    count = mean * (1 - probs) / probs
    return NegativeBinomial(
        _shaped(count, base.total_count), _shaped(probs, base.probs), validate_args=False
    )


@fit_base.register
def _binomial(base: Binomial, x: Tensor) -> Binomial:
    return Binomial(base.total_count, _share_of(base, x), validate_args=False)


@fit_base.register
def _bernoulli(base: Bernoulli, x: Tensor) -> Bernoulli:
    return Bernoulli(_share_of(base, x), validate_args=False)


def _share_of(base: Binomial, x: Tensor) -> Tensor:
    # Half a success and half a failure more keep probabilities between 0 and 1.
    trials = len(x) * base.total_count
    return _shaped((x.sum(0) + 0.5) / (trials + 1), base.probs)


@fit_base.register
def _discrete(base: Discrete, x: Tensor) -> Discrete:
    if base.tensor_fields["masses"].fixed:
        return base
    matches = x.unsqueeze(-1 - base.event_dim) == base.points
    matches = matches.all(-1) if base.event_dim else matches
    # Half an event more for each point, so that a point without events keeps a positive mass.
    counts = matches.to(x.dtype).sum(0) + 0.5
    masses = _shaped(counts / counts.sum() * base.masses.sum(-1).mean(), base.masses)
    return Discrete(base.points, masses, validate_args=False)


@fit_base.register
def _mixture(base: Mixture, x: Tensor) -> Mixture:
    # Each event is assigned to one part: to a discrete part that has an atom at the event, and
    # otherwise to the part with the largest density there.
    scores = []
    for part in base.bases:
        score = torch.inf if isinstance(part, Discrete) else part.log_density(x)
        scores.append(torch.where(part.contains(x), score, -torch.inf).expand(len(x)))
    owner = torch.stack(scores).argmax(0)
    counts = torch.stack([(owner == k).sum() for k in range(len(scores))]).to(x.dtype)
    parts = [
        fit_base(part, x[owner == k]) if counts[k] > 1 else part
        for k, part in enumerate(base.bases)
    ]
    return Mixture(_shaped((counts + 0.5).log(), base.logits), parts, validate_args=False)


@fit_base.register
def _product(base: Product, x: Tensor) -> Product:
    return Product([fit_base(part, piece) for part, piece in base._pieces(x)])


@fit_base.register
def _standardized(base: Standardized, x: Tensor) -> Standardized:
    loc, scale = _shaped(x.mean(0), base.loc), _shaped(spread(x), base.scale)
    return Standardized(base.base, loc, scale, validate_args=False)


def fit_tails(base: GaussianMixture, x: Tensor) -> GaussianMixture:
    r"""A mixture about one mean, with its weights fitted to standardised events.

    Expectation maximisation (Dempster, Laird and Rubin, 1977) of the weights alone. No weight gets
    smaller than it is, so that tails which no event has seen stay as they are.
    """
    x = subsample(complete_rows(x))
    log_density = base.gaussians.log_density(x.unsqueeze(-1 - base.event_dim))  # (N, K)
    logits = base.log_weights()
    for _ in range(_ROUNDS):
        shares = (logits + log_density).softmax(-1).mean(0)
        logits = torch.maximum(shares.log(), base.log_weights()).log_softmax(-1)
    return GaussianMixture(
        logits,
        base.loc,
        base.scale,
        scale_tril=base.scale_tril,
        event_dim=base.event_dim,
        validate_args=False,
    )


def _shaped(value: Tensor, like: Tensor) -> Tensor:
    # The values in the shape of `like`, as means over the dimensions where `like` has one entry.
    value = value.expand(torch.broadcast_shapes(value.shape, like.shape))
    return value.sum_to_size(like.shape) * (like.numel() / value.numel())


@singledispatch
def centred_members(base: Base, centres: Tensor, x: Tensor) -> Tensor | None:
    r"""Natural parameters of members of an exponential family, each centred at an event.

    .. math:: p_i(x) = \mu(x) \exp(\eta_i \cdot t(x) - A(\eta_i)), \quad
        \mathbb{E}_{p_i}[x] \approx c_i

    Normal, gamma and Dirichlet members have half the variance of the events ``x``. The result is
    None for a base without a rule, which is a probability distribution that
    :func:`spread_neurons` tilts instead.
    """
    return None


@centred_members.register
def _normal_family(base: NormalFamily, centres: Tensor, x: Tensor) -> Tensor:
    variance = spread(x).square() / 2
    return torch.cat([centres / variance, (-0.5 / variance).expand(centres.shape)], dim=-1)


@centred_members.register
def _gamma_family(base: GammaFamily, centres: Tensor, x: Tensor) -> Tensor:
    # A concentration of at least 1 keeps the density finite at zero.
    concentration = (2 * (centres / spread(x)).square()).clamp(min=1.0)
    return torch.stack([concentration - 1, concentration / centres], dim=-1)


@centred_members.register
def _dirichlet_family(base: DirichletFamily, centres: Tensor, x: Tensor) -> Tensor:
    mean = x.mean(0)
    total = (mean * (1 - mean)).sum() / (spread(x).square() / 2).sum() - 1
    return (total.clamp(min=1.0) * centres - 1).clamp(min=0.0)


@centred_members.register
def _poisson_family(base: PoissonFamily, centres: Tensor, x: Tensor) -> Tensor:
    return (centres + 0.5).log().unsqueeze(-1)


@centred_members.register
def _uniform_sphere(base: UniformSphere, centres: Tensor, x: Tensor) -> Tensor:
    # The concentration at which n caps, one for each member, cover the sphere once.
    d = base.num_statistics
    return centres * (d - 1) * len(centres) ** (2 / (d - 1)) / 2


@centred_members.register
def _uniform_angle(base: UniformAngle, centres: Tensor, x: Tensor) -> Tensor:
    return _uniform_sphere(base, base.statistic(centres), x)


@centred_members.register
def _product_family(base: Product, centres: Tensor, x: Tensor) -> Tensor | None:
    pieces = zip(base.bases, base.statistics, base._pieces(centres), base._pieces(x), strict=True)
    blocks = [
        (centred_members(part, middle, values), size)
        for part, size, (_, middle), (_, values) in pieces
    ]
    if all(block is None for block, _ in blocks):
        return None
    # η = 0 leaves a factor that is itself a probability distribution unchanged.
    zeros = [centres.new_zeros(len(centres), size) for _, size in blocks]
    filled = [
        fill if block is None else block for (block, _), fill in zip(blocks, zeros, strict=True)
    ]
    return torch.cat(filled, dim=-1)


def spread_neurons(activation: Activation, statistic: Tensor, count: int) -> tuple[Tensor, Tensor]:
    r"""Random weights and biases of neurons that vary where the events are.

    .. math:: w_i = \frac{g_i \, \epsilon_i}{s \sqrt{D}}, \quad
        b_i = -w_i \cdot t(x_{k_i}) \; (+ 2 \pi u_i \text{ for waves})

    where :math:`\epsilon_i` is standard normal, :math:`s` is the standard deviation of the
    statistics, :math:`x_{k_i}` is a random event, and :math:`u_i` is uniform on :math:`[0, 1)`.
    The gain :math:`g_i` is the standard deviation of the preactivations.
    """
    scale = spread(statistic)
    weight = torch.randn(count, len(scale), dtype=scale.dtype, device=scale.device)
    gain = _gain(activation, torch.rand_like(weight[:, :1]))
    weight = gain * weight / (scale * math.sqrt(len(scale)))
    bias = -(weight * random_rows(statistic, count)).sum(-1)
    if isinstance(activation, FourierActivation):
        bias = bias + 2 * math.pi * torch.rand_like(bias)
    return weight, bias


@singledispatch
def _gain(activation: Activation, uniform: Tensor) -> Tensor:
    # The standard deviation of the preactivations, from uniform numbers. This value and the values
    # below are the best of a few, on mixtures of six normal distributions in 1, 2 and 8 dimensions.
    return torch.full_like(uniform, 2.0)


@_gain.register
def _wave_gain(activation: FourierActivation, uniform: Tensor) -> Tensor:
    # From 1 to 8, uniform on the logarithmic scale: sharp densities need short waves, and smooth
    # densities need long ones.
    return (uniform * math.log(8.0)).exp()


@_gain.register
def _snake_gain(activation: Snake, uniform: Tensor) -> Tensor:
    # sin²(az) = (1 - cos 2az) / 2 is a wave of frequency 2a.
    return (uniform * math.log(8.0)).exp() / (2 * activation.a)


@_gain.register
def _exp_gain(activation: Exp, uniform: Tensor) -> Tensor:
    return torch.full_like(uniform, 1 / activation.scale)
