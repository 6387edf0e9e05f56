"""Events in the support of a base, without the samplers of the package."""

import functools
from functools import singledispatch
from typing import Any

import torch
from torch import Generator, Tensor

from pyro_snefy import SNEFY, bases
from pyro_snefy.bases.mixture import BatchedMixture


def events(law: SNEFY, seed: int, count: int | None = None) -> Tensor:
    """An event for each member of a batch, or `count` of them for a family without one."""
    generator = Generator().manual_seed(seed)
    if count is not None:
        return torch.stack([_event(law.base, generator) for _ in range(count)])
    rows = []
    for k in range(law.batch_shape.numel()):
        pick = functools.partial(_pick, law, k)
        rows.append(_event(law.base.map_batches(pick), generator))
    return torch.stack(rows).reshape(law.batch_shape + law.event_shape).detach()


def _pick(law: SNEFY, k: int, x: Tensor, rank: int) -> Tensor:
    event = x.shape[x.dim() - rank :]
    return x.expand(law.batch_shape + event).reshape(-1, *event)[k] if x.dim() > rank else x


def _normal(shape: Any, generator: Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def _choice(size: int, generator: Generator) -> int:
    return int(torch.randint(size, (), generator=generator))


@singledispatch
def _event(base: Any, generator: Generator) -> Tensor:
    if base.is_discrete:
        return torch.randint(5, (), generator=generator).double()
    return _normal(base.event_shape, generator)


@_event.register
def _(base: bases.Gaussian, generator: Generator) -> Tensor:
    noise = _normal(base.event_shape, generator)
    if base.scale_tril is not None:
        return base.loc + (base.scale_tril.double() @ noise)
    return base.loc + base.scale * noise


@_event.register
def _(base: bases.StudentT, generator: Generator) -> Tensor:
    noise = _normal(base.event_shape, generator)
    if base.scale_tril is not None:
        return base.loc + (base.scale_tril.double() @ noise)
    return base.loc + base.scale * noise


@_event.register
def _(base: bases.Binomial, generator: Generator) -> Tensor:
    return torch.randint(int(base.total_count) + 1, (), generator=generator).double()


@_event.register
def _(base: bases.UniformAngle, generator: Generator) -> Tensor:
    return 6 * torch.rand((), generator=generator, dtype=torch.float64) - 3


@_event.register
def _(base: BatchedMixture, generator: Generator) -> Tensor:
    k = _choice(base.log_weights().shape[-1], generator)

    def pick(x: Tensor, rank: int) -> Tensor:
        return x[k if len(x) > 1 else 0] if x.dim() > rank else x

    return _event(base.components.map_batches(pick), generator).reshape(base.event_shape)


@_event.register
def _(base: bases.Mixture, generator: Generator) -> Tensor:
    return _event(base.bases[_choice(len(base.bases), generator)], generator)


@_event.register
def _(base: bases.Product, generator: Generator) -> Tensor:
    return torch.cat([_event(part, generator).reshape(-1) for part in base.bases])


@_event.register
def _(base: bases.Standardized, generator: Generator) -> Tensor:
    return base.loc + base.scale * _event(base.base, generator)


@_event.register
def _(base: bases.UniformBox, generator: Generator) -> Tensor:
    share = torch.rand(base.event_shape, generator=generator, dtype=torch.float64)
    return base.low + (base.high - base.low) * share


@_event.register
def _(base: bases.SmoothBox, generator: Generator) -> Tensor:
    share = torch.rand(base.event_shape, generator=generator, dtype=torch.float64)
    edge = base.low + (base.high - base.low) * share
    return edge + base.scale * _normal(base.event_shape, generator)


@_event.register
def _(base: bases.UniformCube, generator: Generator) -> Tensor:
    return torch.rand(base.event_shape, generator=generator, dtype=torch.float64)


@_event.register
def _(base: bases.UniformSphere, generator: Generator) -> Tensor:
    return torch.nn.functional.normalize(_normal(base.event_shape, generator), dim=-1)


@_event.register
def _(base: bases.DirichletFamily, generator: Generator) -> Tensor:
    return _normal(base.event_shape, generator).softmax(-1)


@_event.register
def _(base: bases.GammaFamily, generator: Generator) -> Tensor:
    return _normal((), generator).exp()


@_event.register
def _(base: bases.Discrete, generator: Generator) -> Tensor:
    return base.points[_choice(len(base.points), generator)].double()
