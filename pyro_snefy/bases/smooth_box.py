r"""Boxes with edges that are not sharp, and mixtures of them."""

__all__ = ["SmoothBox", "SmoothBoxMixture"]

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints

from ..numerics.linalg import safe_logsumexp, take
from ..numerics.rejection import choose
from ..numerics.segments import log_mean_density
from .base import Partial, TensorField, TensorLike, as_parameters
from .box import UniformBox
from .engines import FourierBase, LaplaceBase
from .gaussian import Gaussian
from .mixture import BatchedMixture


class SmoothBox(FourierBase, LaplaceBase):
    r"""The law of :math:`y + s \varepsilon`, with :math:`t(x) = x`.

    Here :math:`y` is uniform on the box :math:`[l, u]`, and :math:`\varepsilon` is standard normal.

    .. math:: \mu(x) = \prod_k
        \frac{\Phi\left(\frac{x_k - l_k}{s_k}\right) - \Phi\left(\frac{x_k - u_k}{s_k}\right)}
        {u_k - l_k}, \quad
        \varphi(\omega) = \prod_k \frac{\sin(\omega_k h_k)}{\omega_k h_k}
        e^{-\omega_k^2 s_k^2 / 2}

    .. math:: A(\eta) = \eta \cdot c + \sum_k \left( \log \frac{\sinh(\eta_k h_k)}{\eta_k h_k}
        + \tfrac{1}{2} \eta_k^2 s_k^2 \right), \quad
        c = \frac{l + u}{2}, \quad h = \frac{u - l}{2}

    The support is the whole space, and the density is smooth in all parameters, so that edges can
    be learnt. It does not change if :math:`l_k` and :math:`u_k` change places, and where they
    meet, a coordinate is normal: both are any real numbers.

    Arguments:
        low: The lower edges :math:`l`, with shape :math:`(*, d)`.
        high: The upper edges :math:`u`, with shape :math:`(*, d)`.
        scale: The standard deviations :math:`s` that edges are smeared by, with shape
            :math:`(*, d)`.
        event_dim: With 0, every entry of ``low`` is the edge of a scalar event.
        validate_args: Whether the tensors are checked.

    Example:
        >>> box = SmoothBox(torch.zeros(2), torch.ones(2), torch.full((2,), 0.01))
        >>> box.log_density(torch.tensor([[0.5, 0.5], [0.0, 0.5], [2.0, 0.5]])).exp()
        tensor([1.0000, 0.5000, 0.0000])
    """

    tensor_fields: ClassVar[dict[str, TensorField]] = {
        "low": TensorField(constraints.real, per_event=True),
        "high": TensorField(constraints.real, per_event=True),
        "scale": TensorField(constraints.positive, per_event=True),
    }

    def __init__(
        self,
        low: TensorLike,
        high: TensorLike,
        scale: TensorLike,
        *,
        event_dim: int = 1,
        validate_args: bool | None = None,
    ) -> None:
        if event_dim not in (0, 1):
            raise ValueError(f"SmoothBox: expected event_dim 0 or 1, got {event_dim}.")
        letters = "d" * event_dim
        shape, (self.low, self.high, self.scale) = as_parameters(
            self, low=(low, letters), high=(high, letters), scale=(scale, letters)
        )
        batch, event = shape[: len(shape) - event_dim], shape[len(shape) - event_dim :]
        super().__init__(batch, event, event[0] if event_dim else 1, validate_args)

    @property
    def support(self) -> Any:
        return constraints.real_vector if self.event_dim else constraints.real

    def _vectors(self) -> list[Tensor]:
        # The parameters with shape (*, D).
        tensors = (self.low, self.high, self.scale)
        if not self.event_dim:
            return [x.unsqueeze(-1) for x in tensors]
        return [x.expand((*x.shape[:-1], self.num_statistics)) for x in tensors]

    @property
    def box(self) -> UniformBox:
        r"""The law of :math:`y`."""
        low, high, _ = self._vectors()
        return UniformBox(torch.minimum(low, high), torch.maximum(low, high), validate_args=False)

    @property
    def noise(self) -> Gaussian:
        r"""The law of :math:`s \varepsilon`."""
        scale = self._vectors()[-1]
        return Gaussian(torch.zeros_like(scale), scale, validate_args=False)

    def log_density(self, x: Tensor) -> Tensor:
        log_density = self.log_densities(x)
        return log_density.sum(-1) if self.event_dim else log_density

    def log_densities(self, x: Tensor) -> Tensor:
        """The log-densities of the coordinates, with the shape of the events."""
        below, above = (x - self.low) / self.scale, (x - self.high) / self.scale
        return log_mean_density(below, above) - self.scale.log()

    def mean(self, like: Tensor) -> Tensor:
        return self.box.mean(like)

    def covariance(self, like: Tensor) -> Tensor:
        return self.box.covariance(like) + self.noise.covariance(like)

    def characteristic(self, omega: Tensor) -> tuple[Tensor, None]:
        return self.box.characteristic(omega)[0] * self.noise.characteristic(omega)[0], None

    deficit_cancels = False

    def deficit(self, omega: Tensor) -> tuple[Tensor, None]:
        # 1 - (1 - a) (1 - b) = a + b (1 - a).
        box, noise = self.box.deficit(omega)[0], self.noise.deficit(omega)[0]
        return box + noise * (1 - box), None

    def characteristic_moment(self, omega: Tensor) -> tuple[None, Tensor]:
        box, noise = self.box, self.noise
        real, factor = (law.characteristic(omega)[0].unsqueeze(-1) for law in (box, noise))
        slope, other = (law.characteristic_moment(omega)[1] for law in (box, noise))
        return None, slope * factor + real * other

    def log_partition(self, eta: Tensor) -> Tensor:
        return self.box.log_partition(eta) + self.noise.log_partition(eta)

    def sample_member(self, eta: Tensor) -> Tensor:
        return self._event(self.box.sample_member(eta) + self.noise.sample_member(eta))

    def sample_square(self, weight: Tensor) -> Tensor:
        # With the parts v and e of w·(x - c), v² + e² is the mean of (v + e)² and (v - e)². So
        # draw from v² + e² first: one part, chosen by its share, from the law of its square. Then
        # draw the sign of e.
        box, noise = self.box, self.noise
        spreads = [
            (law.covariance(weight) @ weight.unsqueeze(-1)).squeeze(-1) for law in (box, noise)
        ]
        shares = torch.stack([(spread * weight).sum(-1) for spread in spreads], dim=-1)
        bent = choose(shares.log()).unsqueeze(-1)
        zero = torch.zeros_like(weight)
        y = torch.where(bent == 0, box.sample_square(weight), box.sample_member(zero))
        e = torch.where(bent == 1, noise.sample_square(weight), noise.sample_member(zero))
        v, own = (weight * (y - box.mean(weight))).sum(-1), (weight * e).sum(-1)
        up = (v + own).square()
        keep = torch.rand_like(up) * 2 * (v.square() + own.square()) < up
        return self._event(y + torch.where(keep.unsqueeze(-1), e, -e))

    def _event(self, x: Tensor) -> Tensor:
        return x if self.event_dim else x.squeeze(-1)

    def marginal(self, dims: Sequence[int]) -> "SmoothBox":
        return SmoothBox(*(take(x, dims) for x in self._vectors()), validate_args=False)

    def partial(self, x: Tensor, observed: Tensor) -> Partial | None:
        if not self.event_dim:
            return super().partial(x, observed)
        log_density = torch.where(observed, self.log_densities(x), 0.0).sum(-1)
        return Partial(self, torch.where(observed, x, 0.0), ~observed, log_density)


class SmoothBoxMixture(BatchedMixture):
    r"""A mixture of boxes with edges that are not sharp, :math:`t(x) = x`.

    .. math:: \mu(x) = \sum_{k=1}^K \pi_k \, \mu_k(x)

    Each :math:`\mu_k` is a :class:`SmoothBox`. Where its edges meet, it is a normal law with a
    diagonal covariance.

    Arguments:
        logits: The unnormalised :math:`\log \pi`, with shape :math:`(*, K)`.
        low: The lower edges, with shape :math:`(*, K, d)`.
        high: The upper edges, with shape :math:`(*, K, d)`.
        scale: The standard deviations that edges are smeared by, with shape :math:`(*, K, d)`.
        event_dim: With 0, events are scalars, and edges and scales have the shape :math:`(*, K)`.
        validate_args: Whether the tensors are checked.

    Example:
        >>> low = torch.tensor([[0.0, 0.0], [2.0, 2.0]])
        >>> SmoothBoxMixture(torch.zeros(2), low, low + 1, torch.full((2, 2), 0.01))
        SmoothBoxMixture(logits: (2,), low: (2, 2), high: (2, 2), scale: (2, 2))
    """

    tensor_fields: ClassVar[dict[str, TensorField]] = {
        "logits": TensorField(constraints.real, rank=1),
        "low": TensorField(constraints.real, rank=1, per_event=True),
        "high": TensorField(constraints.real, rank=1, per_event=True),
        "scale": TensorField(constraints.positive, rank=1, per_event=True),
    }

    def __init__(
        self,
        logits: TensorLike,
        low: TensorLike,
        high: TensorLike,
        scale: TensorLike,
        *,
        event_dim: int = 1,
        validate_args: bool | None = None,
    ) -> None:
        if event_dim not in (0, 1):
            raise ValueError(f"SmoothBoxMixture: expected event_dim 0 or 1, got {event_dim}.")
        letters = "K" + "d" * event_dim
        given = {"low": (low, letters), "high": (high, letters), "scale": (scale, letters)}
        shape, tensors = as_parameters(self, logits=(logits, "K"), **given)
        self.logits, self.low, self.high, self.scale = tensors
        batch, event = shape[: len(shape) - 1 - event_dim], shape[len(shape) - event_dim :]
        super().__init__(batch, event, event[0] if event_dim else 1, validate_args)

    @property
    def support(self) -> Any:
        return constraints.real_vector if self.event_dim else constraints.real

    @property
    def components(self) -> SmoothBox:
        edges = (self.low, self.high, self.scale)
        return SmoothBox(*edges, event_dim=self.event_dim, validate_args=False)

    def log_weights(self) -> Tensor:
        return self.logits.log_softmax(-1)

    def mass(self, like: Tensor) -> Tensor:
        return like.new_ones(())

    def log_density(self, x: Tensor) -> Tensor:
        log_density = self.components.log_density(x.unsqueeze(-1 - self.event_dim))
        return safe_logsumexp(self.log_weights() + log_density)

    def marginal(self, dims: Sequence[int]) -> "SmoothBoxMixture":
        return _mixed(self.logits, self.components.marginal(dims))

    def conditional(self, dims: Sequence[int], values: Tensor) -> "SmoothBoxMixture":
        components = self.components
        given = components.marginal(dims).log_density(values.unsqueeze(-2))
        return _mixed(self.log_weights() + given, components.marginal(self.others(dims)))

    def regression(self, dims: Sequence[int], like: Tensor) -> Tensor | None:
        raise NotImplementedError("The weights of a conditional mixture depend on the values.")

    def partial(self, x: Tensor, observed: Tensor) -> Partial | None:
        if not self.event_dim:
            return super().partial(x, observed)
        components = self.components
        inner = components.partial(x.unsqueeze(-2), observed.unsqueeze(-2))
        assert inner is not None
        logits = self.log_weights() + inner.log_density  # (patterns, R, K)
        base = _mixed(logits, components)
        return Partial(base, torch.where(observed, x, 0.0), ~observed, logits.logsumexp(-1))


def _mixed(logits: Tensor, boxes: SmoothBox) -> SmoothBoxMixture:
    # A mixture of the boxes in the last batch dimension.
    return SmoothBoxMixture(logits, boxes.low, boxes.high, boxes.scale, validate_args=False)
