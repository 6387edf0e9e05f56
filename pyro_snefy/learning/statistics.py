r"""Statistics of events, for first values of parameters."""

__all__ = ["clip_far", "spread"]

import torch
from torch import Tensor

_FAR = 20.0  # in units of a standard deviation that outliers hardly move
_ENOUGH = 10_000  # rows for quantiles


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
