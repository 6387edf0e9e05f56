r"""Scalar families beside values that recur."""

__all__ = ["WithAtoms"]

from typing import Any

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor
from torch.distributions import Normal, constraints

from ..numerics.rejection import choose
from .snefy import SNEFY

_EMPTY = Size()


class WithAtoms(TorchDistribution):
    r"""A scalar family, mixed with narrow normal laws about values that recur.

    .. math:: p(x) = \pi_0 p_0(x) + \sum_{j=1}^J \pi_j \mathcal{N}(x; a_j, \tau_j^2)

    Recorded numbers have atoms: zeros, round numbers, settings of an experiment. A density that is
    smooth on the scale of the data has no peak at each of them.

    Arguments:
        family: The family :math:`p_0` of scalars, with batch shape :math:`(*)`.
        logits: Logarithms of the weights :math:`\pi_0, \ldots, \pi_J` up to a constant, with shape
            :math:`(*, 1 + J)`. An atom with the logit :math:`-\infty` does not occur.
        atoms: The values :math:`a_j`, with shape :math:`(*, J)`.
        widths: The standard deviations :math:`\tau_j`, with shape :math:`(*, J)`.
        validate_args: Whether values are checked; as in :mod:`torch.distributions`.

    Example:
        >>> from pyro_snefy.bases import Gaussian
        >>> base = Gaussian(0.0, 1.0, event_dim=0)
        >>> normal = SNEFY(torch.zeros(1, 1), torch.zeros(1), torch.ones(1, 1), base=base)
        >>> half = torch.zeros(2)  # logits of equal weights
        >>> d = WithAtoms(normal, half, torch.tensor([3.0]), torch.tensor([1e-3]))
        >>> d.cdf(torch.tensor(2.9))
        tensor(0.4991)
    """

    arg_constraints: dict[str, Any] = {}
    support = constraints.real
    has_rsample = False

    def __init__(
        self,
        family: SNEFY,
        logits: Tensor,
        atoms: Tensor,
        widths: Tensor,
        validate_args: bool | None = None,
    ) -> None:
        batch = torch.broadcast_shapes(
            family.batch_shape, logits.shape[:-1], atoms.shape[:-1], widths.shape[:-1]
        )
        self.family = family if family.batch_shape == batch else family.expand(batch)
        self.logits = logits.log_softmax(-1)
        self.atoms, self.widths = atoms, widths
        super().__init__(batch, _EMPTY, validate_args=validate_args)

    def __repr__(self) -> str:
        return f"WithAtoms({self.family}, atoms: {tuple(self.atoms.shape)})"

    def expand(self, batch_shape: Any, _instance: Any = None) -> "WithAtoms":
        """The same law with a larger batch shape."""
        new = self._get_checked_instance(WithAtoms, _instance)
        arguments = (self.family.expand(batch_shape), self.logits, self.atoms, self.widths)
        WithAtoms.__init__(new, *arguments, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def _normal(self) -> Normal:
        return Normal(self.atoms, self.widths, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        r"""The log-density of values, with respect to Lebesgue measure.

        Arguments:
            value: The values, with shape :math:`(*)`.
        """
        smooth = self.family.log_prob(value).unsqueeze(-1)
        peaks = self._normal().log_prob(value.unsqueeze(-1)).expand(*smooth.shape[:-1], -1)
        return (self.logits + torch.cat([smooth, peaks.to(smooth.dtype)], -1)).logsumexp(-1)

    def cdf(self, value: Tensor) -> Tensor:
        r"""The probability of values at or below the given ones.

        Arguments:
            value: The values, with shape :math:`(*)`.
        """
        smooth = self.family.cdf(value).unsqueeze(-1)
        steps = self._normal().cdf(value.unsqueeze(-1)).expand(*smooth.shape[:-1], -1)
        return (self.logits.exp() * torch.cat([smooth, steps.to(smooth.dtype)], -1)).sum(-1)

    @torch.no_grad()
    def sample(self, sample_shape: Any = _EMPTY) -> Tensor:
        """Draws values, exactly."""
        shape = self._extended_shape(sample_shape)
        smooth = self.family.sample(sample_shape).unsqueeze(-1)
        count = self.logits.shape[-1]
        which = choose(self.logits.expand(*shape, count).reshape(-1, count)).reshape(*shape, 1)
        atoms, widths = (
            torch.cat([x[..., :1], x], -1).expand(*shape, count).gather(-1, which)
            for x in (self.atoms, self.widths)
        )
        peaks = atoms + widths * torch.randn_like(smooth)
        return torch.where(which == 0, smooth, peaks).squeeze(-1)
