r"""Statistics of events, for first values of parameters."""

__all__ = ["spread"]

import torch
from torch import Tensor


def spread(x: Tensor) -> Tensor:
    r"""The standard deviation of each coordinate where it is not NaN, and 1 if it is constant."""
    loc = x.nanmean(0)
    scale = (x - loc).square().nanmean(0).sqrt()
    # The mean of equal numbers differs from them by its rounding.
    return torch.where(scale > 4 * torch.finfo(x.dtype).eps * loc.abs(), scale, 1.0)
