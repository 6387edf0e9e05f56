r"""Bases whose events are a normal variable, or a mixture of these, moved and stretched."""

__all__ = ["Coordinates", "normal_coordinates"]

from functools import singledispatch
from typing import NamedTuple

import torch
from torch import Tensor

from ..bases import Base, Gaussian, GaussianMixture, Product, Standardized
from ..numerics.linalg import concatenate


class Coordinates(NamedTuple):
    r"""Events :math:`x = l + s u` whose statistic is :math:`u`.

    Arguments:
        base: The law of :math:`u`.
        loc: The location :math:`l`, with shape :math:`(*, D)`, or None for zeros.
        scale: The scale :math:`s`, with shape :math:`(*, D)`, or None for ones.
    """

    base: Gaussian | GaussianMixture
    loc: Tensor | None = None
    scale: Tensor | None = None


@singledispatch
def normal_coordinates(base: Base) -> Coordinates | None:
    r"""The :class:`Coordinates` of a base, or None if its events have none."""
    return None


@normal_coordinates.register(Gaussian)
@normal_coordinates.register(GaussianMixture)
def _own(base: Gaussian | GaussianMixture) -> Coordinates:
    return Coordinates(base)


@normal_coordinates.register
def _standardized(base: Standardized) -> Coordinates | None:
    inner = normal_coordinates(base.base)
    if inner is None:
        return None
    loc, scale = (x if base.event_dim else x.unsqueeze(-1) for x in (base.loc, base.scale))
    if inner.loc is None or inner.scale is None:
        return Coordinates(inner.base, loc, scale)
    return Coordinates(inner.base, loc + scale * inner.loc, scale * inner.scale)


@normal_coordinates.register
def _product(base: Product) -> Coordinates | None:
    found = [normal_coordinates(part) for part in base.bases]
    pairs = [pair for pair in found if pair is not None and isinstance(pair.base, Gaussian)]
    if len(pairs) < len(found):
        return None
    like = next(value for _, value in base.tensors())
    joint = Product([pair.base for pair in pairs]).latent(like)
    assert isinstance(joint, Gaussian)
    if all(pair.loc is None for pair in pairs):
        return Coordinates(joint)
    means = [pair.base.mean(like) for pair in pairs]
    both = list(zip(pairs, means, strict=True))
    locs = [torch.zeros_like(x) if pair.loc is None else pair.loc for pair, x in both]
    scales = [torch.ones_like(x) if pair.scale is None else pair.scale for pair, x in both]
    return Coordinates(joint, concatenate(locs), concatenate(scales))
