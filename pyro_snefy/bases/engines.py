r"""What a base supplies to the Fourier and to the Laplace engine."""

__all__ = ["FourierBase", "LaplaceBase", "Pairs"]

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints

from ..activations import Activation
from ..numerics.linalg import broadcast_shapes, rows_matmul
from ..numerics.rejection import rejection_by_row
from .base import Base, Partial

Pairs = tuple[tuple[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]


class FourierBase(Base):
    r"""A base that supplies its characteristic function.

    .. math:: \varphi(\omega) = \int e^{i \omega \cdot \tilde{t}} \, d\mu, \quad \tilde{t} = t - c

    Here :math:`c` is the mean of :math:`t` under :math:`\mu` normalised. A complex value is a pair
    of real and imaginary part; None stands for a part that is zero. Frequencies ``omega`` have the
    shape :math:`(*, E, D)`, weights :math:`(*, n, D)`.

    A subclass must supply :meth:`mean`, :meth:`covariance` and :meth:`characteristic`; for
    activations with a linear part :meth:`characteristic_moment`; for samples :meth:`sample_square`
    and :meth:`~pyro_snefy.bases.LaplaceBase.sample_member` with :math:`\eta = 0`; and
    :meth:`mass` if :math:`\mu` is not normalised.

    Example:
        >>> from pyro_snefy.bases import UniformSphere
        >>> real, imag = UniformSphere(3).characteristic(torch.zeros(1, 3))
        >>> real, imag
        (tensor([1.]), None)
    """

    deficit_cancels: ClassVar[bool] = True  # whether :meth:`deficit` loses digits of a small ω

    def mass(self, like: Tensor) -> Tensor:
        r"""The total mass :math:`\mu(\Omega)`, with shape :math:`(*)`."""
        return like.new_ones(())

    def mean(self, like: Tensor) -> Tensor:
        r"""The mean :math:`c` of the statistic, with shape :math:`(*, D)`."""
        raise NotImplementedError

    def covariance(self, like: Tensor) -> Tensor:
        r"""The covariance of the statistic, with shape :math:`(*, D, D)`."""
        raise NotImplementedError

    def dispersion(self, like: Tensor) -> Tensor:
        r"""A multiple of the covariance that is finite, with shape :math:`(*, D, D)`."""
        return self.covariance(like)

    def characteristic(self, omega: Tensor) -> tuple[Tensor, Tensor | None]:
        r"""The pair :math:`\varphi(\omega)`, with shape :math:`(*, E)`."""
        raise NotImplementedError

    def characteristic_moment(self, omega: Tensor) -> tuple[Tensor | None, Tensor]:
        r"""The pair :math:`-i \nabla \varphi(\omega)`, with shape :math:`(*, E, D)`."""
        raise NotImplementedError

    def deficit(self, omega: Tensor) -> tuple[Tensor, Tensor | None]:
        r"""The pair :math:`\varphi(0) - \varphi(\omega)`, with shape :math:`(*, E)`.

        A base that supplies a form without cancellation, for small :math:`\omega`, says so in
        ``deficit_cancels``.
        """
        real, imag = self.characteristic(omega)
        return self.mass(omega).unsqueeze(-1) - real, None if imag is None else -imag

    def pair_deficits(self, weight: Tensor) -> Pairs:
        r"""The :meth:`deficit` at :math:`w_i \mp w_j`, of shape :math:`(*, n, n)`; minus first."""
        left, right = weight.unsqueeze(-2), weight.unsqueeze(-3)
        return self._at_pairs(left - right), self._at_pairs(left + right)

    def _at_pairs(self, omega: Tensor) -> tuple[Tensor, Tensor | None]:
        sizes = omega.shape[-3:-1]
        real, imag = self.deficit(omega.flatten(-3, -2))
        return real.unflatten(-1, sizes), None if imag is None else imag.unflatten(-1, sizes)

    def partial(self, x: Tensor, observed: Tensor) -> Partial | None:
        # An observed scalar: its weights are masked to zero, so that it integrates to its total
        # mass, which is divided out.
        if self.event_dim:
            return None
        log_density = self.log_density(x) - self.mass(x).log()
        mask = observed.unsqueeze(-1).expand((*observed.shape, self.num_statistics))
        known = torch.where(mask, self.statistic(x), 0.0)
        log_density = torch.where(observed, log_density, 0.0)
        return Partial(self, known, ~mask, log_density)

    def sample_square(self, weight: Tensor) -> Tensor:
        r"""Draws :math:`N` events from the law :math:`\propto (w \cdot \tilde{t}(x))^2 \, \mu(dx)`.

        Arguments:
            weight: The weights of the draws, with shape :math:`(N, D)`. The base has no batch
                dimension, or one of length :math:`N`.
        """
        raise NotImplementedError(f"{self} has no sampler.")

    def sample_quadratic(self, weight: Tensor, c0: Tensor, c1: Tensor, c2: Tensor) -> Tensor:
        r"""Draws from the law :math:`\propto (c_0 + c_1 v + c_2 v^2) \, \mu(dx)`.

        Here :math:`v = w \cdot \tilde{t}(x)`, and the polynomial is not negative. With
        :math:`r^2 = E[v^2]`, it is at most :math:`c_0 + |c_1| r / 2 + (c_2 + |c_1| / 2r) v^2`.
        Proposals come from this mixture of :math:`\mu` and :math:`v^2 \mu`; at least half of them
        are accepted.

        Arguments:
            weight: The weights, with shape :math:`(N, D)`.
            c0, c1, c2: The coefficients, with shape :math:`(N,)`.
        """
        base: Any = self
        mean = base.mean(weight)
        square = (rows_matmul(weight, base.covariance(weight)) * weight).sum(-1)  # E[v^2]
        square = torch.where(square < torch.inf, square, 0.0)  # only a constant has a law there
        root = square.sqrt()
        a0 = c0 + c1.abs() * root / 2
        a2 = torch.where(square > 0, c2 + c1.abs() / (2 * root), 0.0)
        a2 = torch.where(a2.isfinite(), a2, 0.0)

        def propose(rows: Tensor) -> tuple[Tensor, Tensor]:
            w, constant, slope = weight[rows], a0[rows], a2[rows]
            tilted = torch.rand_like(constant) * (constant + slope * square[rows]) > constant
            x = w.new_empty((len(rows), *base.event_shape))
            (plain,), (bent,) = (~tilted).nonzero(as_tuple=True), tilted.nonzero(as_tuple=True)
            if len(plain):
                x[plain] = base.members(rows[plain]).sample_member(torch.zeros_like(w[plain]))
            if len(bent):
                x[bent] = base.members(rows[bent]).sample_square(w[bent])
            centre = mean[rows] if mean.dim() > 1 else mean
            v = (w * (base.members(rows).statistic(x) - centre)).sum(-1)
            target = c0[rows] + v * (c1[rows] + v * c2[rows])
            return x, torch.rand_like(v) * (constant + slope * v.square()) <= target

        return rejection_by_row(propose, weight)


class LaplaceBase(Base):
    r"""A base that supplies its log-partition function.

    .. math:: A(\eta) = \log \int e^{\eta \cdot t(x)} \mu(dx)

    Natural parameters ``eta`` have the shape :math:`(*, E, D)`, weights :math:`(*, n, D)`.

    A subclass must supply :meth:`log_partition`; :meth:`natural_constraint` if :math:`A` is
    infinite somewhere; for samples :meth:`sample_member`; for moments :meth:`member_moments`
    unless :math:`t(x) = x`.

    Example:
        >>> from pyro_snefy.bases import PoissonFamily
        >>> PoissonFamily().log_partition(torch.zeros(1, 1))  # log of the sum of 1 / x!
        tensor([1.])
    """

    def natural_constraint(self, scale: float) -> Any:
        r"""The constraint on :math:`w` for :math:`A(2 s w)` to be finite, with the scale `s`."""
        return constraints.independent(constraints.real, 1)

    def weight_constraint(self, activation: Activation) -> Any:
        if activation.exponent is None:
            return super().weight_constraint(activation)
        return constraints.independent(self.natural_constraint(activation.exponent), 1)

    def log_partition(self, eta: Tensor) -> Tensor:
        r"""The log-partition function :math:`A(\eta)`, with shape :math:`(*, E)`."""
        raise NotImplementedError

    def pair_log_partitions(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        r"""The log-partition function at all pairs, split into scales and correlations.

        Returns:
            :math:`\frac{1}{2} A(2 w_i)`, with shape :math:`(*, n)`, and
            :math:`A(w_i + w_j) - \frac{1}{2} A(2 w_i) - \frac{1}{2} A(2 w_j) \leq 0`, with shape
            :math:`(*, n, n)`.
        """
        n = weight.shape[-2]
        scale = self.log_partition(2 * weight) / 2
        pairs = (weight.unsqueeze(-2) + weight.unsqueeze(-3)).flatten(-3, -2)
        joint = self.log_partition(pairs).unflatten(-1, (n, n))
        return scale, joint - scale.unsqueeze(-1) - scale.unsqueeze(-2)

    def sample_member(self, eta: Tensor) -> Tensor:
        r"""Draws :math:`N` events from the member :math:`\propto e^{\eta \cdot t(x)} \mu(dx)`.

        Arguments:
            eta: The natural parameters of the draws, with shape :math:`(N, D)`. The base has no
                batch dimension, or one of length :math:`N`.
        """
        raise NotImplementedError(f"{self} has no sampler.")

    def member_moments(self, eta: Tensor) -> tuple[Tensor, Tensor]:
        r"""Mean and covariance of :math:`x` under the member :math:`\propto e^{\eta \cdot t} \mu`.

        The default is :math:`\nabla A` and :math:`\nabla^2 A`, which holds where :math:`t(x) = x`.

        Returns:
            The mean, with shape :math:`(*, E, d)`, and the covariance, :math:`(*, E, d, d)`.
        """
        with torch.enable_grad():
            batch = broadcast_shapes(self.batch_shape, eta.shape[:-2])
            eta = eta.expand(batch + eta.shape[-2:])
            eta = eta if eta.requires_grad else eta.detach().requires_grad_()
            (mean,) = torch.autograd.grad(self.log_partition(eta).sum(), eta, create_graph=True)
            sums = (component.sum() for component in mean.unbind(-1))
            rows = [torch.autograd.grad(total, eta, create_graph=True)[0] for total in sums]
        return mean, torch.stack(rows, dim=-1)
