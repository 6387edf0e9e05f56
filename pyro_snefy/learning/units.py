r"""Units: parameters are learnt in standardised coordinates, families are in the units of the data.

.. math:: u = \frac{x - l}{s}, \quad \sigma(W t(u) + b) = \sigma(W' t(x) + b')

A step of an optimiser moves every parameter by about the learning rate. In standardised
coordinates such a step is the same part of the data's spread, whatever their units are.
"""

__all__ = ["location_scale", "moved", "to_data_units"]

from functools import singledispatch

import torch
from torch import Tensor

from ..bases import (
    Base,
    GammaFamily,
    Gaussian,
    GaussianMixture,
    Interval,
    Mixture,
    NormalFamily,
    Product,
    SmoothBox,
    SmoothBoxMixture,
    Standardized,
    UniformBox,
)
from .statistics import clip_far, spread

Units = tuple[Tensor, Tensor]


@singledispatch
def location_scale(base: Base, x: Tensor, learn: bool) -> Units | None:
    r"""The location :math:`l` and scale :math:`s` of events, both with the shape of an event.

    ``learn`` says whether the tensors of the base are learnt. The result is None where nothing is
    standardised: counts, spheres, simplices, cubes, and bases that are not of this package.
    """
    return None


@location_scale.register(Gaussian)
@location_scale.register(GaussianMixture)
@location_scale.register(NormalFamily)
@location_scale.register(SmoothBox)
@location_scale.register(SmoothBoxMixture)
@location_scale.register(UniformBox)
@location_scale.register(Interval)
def _real(base: Base, x: Tensor, learn: bool) -> Units:
    near = clip_far(x)  # one far row must not decide the units
    return near.mean(0), spread(near)


@location_scale.register
def _gamma(base: GammaFamily, x: Tensor, learn: bool) -> Units:
    return torch.zeros_like(x[0]), x.mean(0)


@location_scale.register
def _standardized(base: Standardized, x: Tensor, learn: bool) -> Units | None:
    return _real(base, x, learn) if learn else None


@location_scale.register
def _mixture(base: Mixture, x: Tensor, learn: bool) -> Units | None:
    return _real(base, x, learn) if _is_gaussian(base) else None


@location_scale.register
def _product(base: Product, x: Tensor, learn: bool) -> Units | None:
    units = [location_scale(part, piece, learn) for part, piece in base._pieces(x)]
    if all(found is None for found in units):
        return None
    pairs = zip(units, base._pieces(x[0]), strict=True)
    filled = [found or (torch.zeros_like(x), torch.ones_like(x)) for found, (_, x) in pairs]
    return base._join([loc for loc, _ in filled]), base._join([scale for _, scale in filled])


def _is_gaussian(base: Mixture) -> bool:
    return all(isinstance(part, Gaussian | GaussianMixture) for part in base.bases)


@singledispatch
def moved(base: Base, loc: Tensor, scale: Tensor) -> Base:
    r"""The law of :math:`l + s u`, where :math:`u` follows a base with a location and a scale."""
    return base


@moved.register(Gaussian)
@moved.register(GaussianMixture)
@moved.register(Mixture)
@moved.register(SmoothBox)
@moved.register(SmoothBoxMixture)
def _moved_gaussian(base: Base, loc: Tensor, scale: Tensor) -> Base:
    tensors = []
    for name, value in base.tensors():
        kind = name.rpartition(".")[-1]
        value = value * scale.unsqueeze(-1) if kind == "scale_tril" else value
        value = value * scale if kind in ("loc", "low", "high", "scale") else value
        tensors.append(value + loc if kind in ("loc", "low", "high") else value)
    values = iter(tensors)
    return base.map(lambda _: next(values))


@moved.register
def _moved_standardized(base: Standardized, loc: Tensor, scale: Tensor) -> Base:
    loc, scale = loc + scale * base.loc, scale * base.scale
    return Standardized(base.base, loc, scale, validate_args=False)


@moved.register
def _moved_product(base: Product, loc: Tensor, scale: Tensor) -> Base:
    units = zip(base.bases, base._pieces(loc), base._pieces(scale), strict=True)
    return Product([moved(part, place, size) for part, (_, place), (_, size) in units])


@singledispatch
def to_data_units(
    base: Base, weight: Tensor, bias: Tensor, loc: Tensor, scale: Tensor
) -> tuple[Base, Tensor, Tensor]:
    r"""The base with the statistic of :math:`x`, the weights :math:`W'` and biases :math:`b'`."""
    return base, weight, bias


@to_data_units.register(Gaussian)
@to_data_units.register(GaussianMixture)
@to_data_units.register(Mixture)
@to_data_units.register(SmoothBox)
@to_data_units.register(SmoothBoxMixture)
@to_data_units.register(UniformBox)
@to_data_units.register(Interval)
def _real_units(
    base: Base, weight: Tensor, bias: Tensor, loc: Tensor, scale: Tensor
) -> tuple[Base, Tensor, Tensor]:
    weight = weight / base.statistic(scale)
    return base, weight, bias - (weight * base.statistic(loc)).sum(-1)


@to_data_units.register
def _normal_units(
    base: NormalFamily, weight: Tensor, bias: Tensor, loc: Tensor, scale: Tensor
) -> tuple[Base, Tensor, Tensor]:
    # Weights on (x, x²) would cancel in float32 far from the origin.
    return Standardized(base, loc, scale, validate_args=False), weight, bias


@to_data_units.register
def _gamma_units(
    base: GammaFamily, weight: Tensor, bias: Tensor, loc: Tensor, scale: Tensor
) -> tuple[Base, Tensor, Tensor]:
    # t(u) = (log x - log s, -x / s).
    factor = torch.stack([torch.ones_like(scale), scale.reciprocal()], dim=-1)
    return base, weight * factor, bias - weight[..., 0] * scale.log()


@to_data_units.register
def _product_units(
    base: Product, weight: Tensor, bias: Tensor, loc: Tensor, scale: Tensor
) -> tuple[Base, Tensor, Tensor]:
    parts, blocks = [], []
    units = zip(base._blocks(weight), base._pieces(loc), base._pieces(scale), strict=True)
    for (part, block), (_, place), (_, size) in units:
        part, block, bias = to_data_units(part, block, bias, place, size)
        parts.append(part)
        blocks.append(block)
    return Product(parts), torch.cat(blocks, dim=-1), bias
