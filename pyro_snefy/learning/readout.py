r"""The convex fit of a readout."""

__all__ = ["fit_readout"]

import math

from torch import Tensor

from .initialization import checked_events
from .joint import JointSNEFY


def fit_readout(
    module: JointSNEFY,
    x: Tensor,
    *,
    weights: Tensor | None = None,
    ridge: float = 0.0,
    tolerance: float = 1e-4,
) -> float:
    r"""Replaces the readout of a module by the most likely one for its neurons and its base.

    .. math:: \max_{M \succeq 0} \sum_i c_i \log \phi_i^\top M \phi_i
        - \log \mathrm{Tr}(M (K + \tau \operatorname{diag} K))

    The problem is convex in :math:`M = V^\top V` (arXiv:2402.09608), and is solved without a
    learning rate, in less time than a few epochs of :func:`~pyro_snefy.fit` take. The readout keeps
    its number of rows: if the best :math:`M` has a higher rank, the result is the best readout
    that was found with these rows.

    Arguments:
        module: A module made by :func:`~pyro_snefy.snefy`.
        x: Events without NaN, with shape :math:`(N, \text{event})`.
        weights: The weight :math:`c_i` of each event, with shape :math:`(N,)`, up to a factor. None
            stands for equal weights.
        ridge: The number :math:`\tau \geq 0` of a penalty on the size of the readout. Where there
            are about as many neurons as events, a ridge near one keeps the density smooth.
        tolerance: The gap to reach, in nats per event.

    Returns:
        The certified gap. No readout of any number of rows makes the events more likely by more
        than these nats per event, the penalty included. See :meth:`~pyro_snefy.SNEFY.readout_gap`.

    Example:
        >>> import torch
        >>> from pyro_snefy import fit_readout, snefy
        >>> module, x = snefy(2, hidden_dim=8, readout_dim=8), torch.randn(200, 2)
        >>> gap = fit_readout(module, x)
        >>> gap < 1e-3
        True
    """
    if not isinstance(module, JointSNEFY):
        raise TypeError(f"fit_readout: expected module to be made by snefy, got {module!r}.")
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise ValueError(f"fit_readout: expected a finite tolerance > 0, got {tolerance!r}.")
    if not (math.isfinite(ridge) and ridge >= 0):
        raise ValueError(f"fit_readout: expected a finite ridge >= 0, got {ridge!r}.")
    law = module()
    x = checked_events("fit_readout", law.base, x, law.weight)
    if x.isnan().any():
        raise ValueError(
            f"fit_readout: expected x without NaN, got {int(x.isnan().sum())} NaN; leave these "
            "rows out."
        )
    if weights is not None:
        weights = _checked_weights(weights, x)
    return module.solve_readout(x, weights, tolerance, ridge)


def _checked_weights(weights: Tensor, x: Tensor) -> Tensor:
    if not isinstance(weights, Tensor) or weights.shape != x.shape[:1]:
        found = tuple(weights.shape) if isinstance(weights, Tensor) else repr(weights)
        raise ValueError(f"fit_readout: expected weights with shape ({len(x)},), got {found}.")
    if not (weights.isfinite().all() and (weights >= 0).all() and weights.sum() > 0):
        raise ValueError("fit_readout: expected weights >= 0, finite and not all zero.")
    return weights.to(x.device)
