r"""Exposures of counts: time, area or number of trials in which events were counted."""

__all__ = ["check_exposure", "check_exposures", "exposed", "fit_exposed"]

from functools import singledispatch

import torch
from torch import Tensor

from ..bases import Base, Bernoulli, Binomial, NegativeBinomial, Poisson
from .initialization import fit_base


@singledispatch
def exposed(base: Base, exposure: Tensor) -> Base:
    r"""The law of counts in an exposure :math:`e`.

    .. math:: \text{rate} \mapsto e \, \text{rate}, \qquad
        \frac{p}{1 - p} \mapsto e \, \frac{p}{1 - p}, \qquad \text{total\_count} \mapsto e

    for a ``Poisson``, a ``NegativeBinomial`` and a ``Binomial`` base: the mean of the first two is
    multiplied by :math:`e`.

    Arguments:
        base: The base.
        exposure: The exposures, with shape :math:`(*)`.

    Example:
        >>> exposed(Poisson(2.0), torch.tensor([1.0, 3.0])).rate
        tensor([2., 6.])
    """
    raise NotImplementedError(
        f"Expected a Poisson, NegativeBinomial or Binomial base for exposures, got {base}."
    )


@exposed.register
def _(base: Poisson, exposure: Tensor) -> Base:
    return Poisson(base.rate * exposure, validate_args=False)


@exposed.register
def _(base: NegativeBinomial, exposure: Tensor) -> Base:
    probs = base.probs * exposure
    return NegativeBinomial(base.total_count, probs / (1 - base.probs + probs), validate_args=False)


@exposed.register
def _(base: Binomial, exposure: Tensor) -> Base:
    return Binomial(exposure, base.probs, validate_args=False)


@exposed.register
def _(base: Bernoulli, exposure: Tensor) -> Base:
    return exposed.dispatch(Base)(base, exposure)  # one trial has no exposure


def fit_exposed(base: Base, x: Tensor, exposure: Tensor) -> Base:
    r"""The base that fits counts with exposures, from their means.

    Arguments:
        base: The base.
        x: The counts, with shape :math:`(N,)`.
        exposure: Their exposures, with shape :math:`(N,)`.
    """
    mean = exposure.mean()
    if isinstance(base, Binomial):
        share = (x.mean() / mean).clamp(1e-3, 1 - 1e-3)
        return Binomial(base.total_count, share, validate_args=False)
    return exposed(fit_base(base, x), 1 / mean)


def check_exposure(base: Base, context_dim: int, exposure: int | None) -> None:
    """Checks the number of a column of exposures."""
    if exposure is None:
        return
    if not (isinstance(exposure, int) and 0 <= exposure < context_dim):
        raise ValueError(
            f"ConditionalSNEFY: expected exposure to be None or the number of a column of context, "
            f"from 0 to {context_dim - 1}, got {exposure!r}."
        )
    tensors = [value for _, value in base.tensors()] or [torch.ones(())]
    exposed(base, torch.ones_like(tensors[0]))


def check_exposures(exposure: Tensor) -> Tensor:
    """Checks that exposures are positive."""
    if not bool((exposure > 0).all()):
        raise ValueError(f"ConditionalSNEFY: expected positive exposures, got {exposure}.")
    return exposure
