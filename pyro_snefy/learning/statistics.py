r"""Statistics of events, for first values of parameters."""

__all__ = [
    "clip_far",
    "correlation_factor",
    "random_rows",
    "robust_location_scale",
    "spread",
    "subsample",
]

import torch
from torch import Tensor

_FAR = 20.0  # in units of a standard deviation that outliers hardly move
_ENOUGH = 10_000  # rows for quantiles, and for first values
_CLIP = 3.0  # robust deviations, for correlations


def spread(x: Tensor) -> Tensor:
    r"""The standard deviation of each coordinate where it is not NaN, and 1 if it is constant."""
    loc = x.nanmean(0)
    scale = (x - loc).square().nanmean(0).sqrt()
    # The mean of equal numbers differs from them by its rounding.
    return torch.where(scale > 4 * torch.finfo(x.dtype).eps * loc.abs(), scale, 1.0)


def clip_far(x: Tensor) -> Tensor:
    r"""The rows, with each coordinate clipped to its median plus or minus 20 robust deviations.

    The robust deviation is half the distance of the 16 % and 84 % quantiles. One row that is a
    million times as far from the others as they are from each other would otherwise decide the
    mean and the standard deviation alone. A coordinate whose quantiles are equal stays as it is.
    """
    levels = torch.tensor([0.16, 0.5, 0.84], dtype=x.dtype, device=x.device)
    low, middle, high = x[:: max(1, len(x) // _ENOUGH)].nanquantile(levels, dim=0)
    reach = torch.where(high > low, _FAR * (high - low) / 2, torch.inf)
    return x.clamp(middle - reach, middle + reach)


def random_rows(x: Tensor, count: int) -> Tensor:
    r"""A given number of events at random, without replacement if there are enough of them."""
    if len(x) >= count:
        index = torch.randperm(len(x), device=x.device)[:count]
    else:
        index = torch.randint(len(x), (count,), device=x.device)
    return x[index]


def subsample(x: Tensor) -> Tensor:
    r"""At most 10,000 of the events, at random: enough for first values."""
    return random_rows(x, min(len(x), _ENOUGH))


def robust_location_scale(x: Tensor) -> tuple[Tensor, Tensor]:
    r"""The median of each coordinate, and half the distance of its 16 % and 84 % quantiles.

    For a normal law, these are mean and standard deviation; outliers hardly move them. Where the
    quantiles are equal, as in data that are mostly zeros, the standard deviation is the scale.
    """
    levels = torch.tensor([0.16, 0.5, 0.84], dtype=x.dtype, device=x.device)
    low, middle, high = subsample(x).nanquantile(levels, dim=0)
    return middle, torch.where(high > low, (high - low) / 2, spread(x))


def correlation_factor(x: Tensor, inputs: Tensor) -> Tensor:
    r"""The factor :math:`L` of the correlations :math:`L L^\top` of events given contexts.

    Errors of a ridge regression on asinh of the inputs are clipped to three robust deviations, and
    correlated. The result is as if ten more rows for each coordinate, and 2 % of all rows, had
    independent coordinates. Rows with gaps do not count.

    Arguments:
        x: Standardised events, with shape :math:`(N, d)`. NaN marks what is not observed.
        inputs: Standardised contexts, with shape :math:`(N, k)`.

    Returns:
        A lower triangular matrix whose rows have norm 1, with shape :math:`(d, d)`.
    """
    dtype, complete = x.dtype, ~x.isnan().any(-1)
    x, inputs = x[complete].double().clamp(-_CLIP, _CLIP), inputs[complete].double().asinh()
    eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    if not len(x):
        return eye.to(dtype)
    design = torch.cat([inputs, torch.ones_like(inputs[:, :1])], dim=-1)
    ridge = torch.eye(design.shape[-1], dtype=x.dtype, device=x.device)
    slopes = torch.linalg.solve(design.mT @ design + ridge, design.mT @ x)
    errors = x - design @ slopes
    loc, scale = robust_location_scale(errors)
    errors = ((errors - loc) / scale).clamp(-_CLIP, _CLIP)
    errors = (errors - errors.mean(0)) / spread(errors)
    share = 0.98 * len(x) / (len(x) + 10 * x.shape[-1])
    correlation = share * (errors.mT @ errors) / len(x)
    return torch.linalg.cholesky(torch.where(eye > 0, 1.0, correlation)).to(dtype)
