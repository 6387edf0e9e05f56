r"""Noisy observations of the events of a squared neural family."""

__all__ = ["Observed", "check_observations", "make_observation"]

from typing import TYPE_CHECKING, Any

import torch
from pyro.distributions import TorchDistribution
from torch import Size, Tensor
from torch.distributions import constraints

from ..bases import Gaussian
from ..bases.base import TensorLike
from ..numerics.linalg import broadcast_shapes, rows_matmul
from ..operations.noise import Observation, check_observable, log_numerator, observed_network

if TYPE_CHECKING:
    from .snefy import SNEFY

_EMPTY = Size()


def make_observation(
    joint: "SNEFY",
    scale: TensorLike | None,
    scale_tril: TensorLike | None,
    matrix: Tensor | None,
) -> Observation:
    """Checks noise and matrix against the events of a family, and against each other."""
    check_observable(joint.base)
    like = joint.weight
    if (scale is None) == (scale_tril is None):
        given = "neither" if scale is None else "both"
        raise ValueError(f"Observed: expected exactly one of scale and scale_tril, got {given}.")
    d = joint.weight.shape[-1]
    if matrix is not None and (matrix.dim() < 2 or matrix.shape[-1] != d):
        raise ValueError(
            f"Observed: expected matrix with shape (*, e, {d}), got {tuple(matrix.shape)}."
        )
    e = d if matrix is None else matrix.shape[-2]
    name, value = ("scale_tril", scale_tril) if scale is None else ("scale", scale)
    value = torch.as_tensor(value, dtype=like.dtype, device=like.device)
    scalar = matrix is None and not joint.event_shape
    if name == "scale" and (scalar or not value.dim()):
        value = value.unsqueeze(-1).expand((*value.shape, e))
    end = (e,) if name == "scale" else (e, e)
    if tuple(value.shape[value.dim() - len(end) :]) != end:
        expected = "(*)" if scalar and name == "scale" else f"(*, {', '.join(map(str, end))})"
        raise ValueError(
            f"Observed: expected {name} with shape {expected}, got {tuple(value.shape)}."
        )
    batches = [joint.batch_shape, value.shape[: value.dim() - len(end)]]
    batches += [] if matrix is None else [matrix.shape[:-2]]
    try:
        broadcast_shapes(*batches)
    except RuntimeError:
        raise ValueError(
            "Observed: expected batch shapes of the SNEFY, the noise and the matrix that broadcast "
            f"against each other, got {', '.join(str(tuple(shape)) for shape in batches)}."
        ) from None
    constraint: Any = constraints.positive if name == "scale" else constraints.lower_cholesky
    if joint._validate_args and not (value.isfinite().all() and constraint.check(value).all()):
        raise ValueError(
            f"Observed: expected {name} to be finite and to satisfy {constraint}, got {value}."
        )
    if joint._validate_args and matrix is not None and not matrix.isfinite().all():
        raise ValueError(f"Observed: expected a finite matrix, got {matrix}.")
    matrix = None if matrix is None else matrix.to(like.dtype)
    zeros = like.new_zeros((e,))
    if name == "scale":
        return Observation(Gaussian(zeros, value, validate_args=False), matrix)
    return Observation(Gaussian(zeros, scale_tril=value, validate_args=False), matrix)


def check_observations(joint: "SNEFY", observation: Observation, y: Tensor) -> Tensor:
    """Checks the shape of observations; returns them as rows, with shape (*, e)."""
    e = observation.noise.event_shape[0]
    scalar = observation.matrix is None and not joint.event_shape
    if not scalar and y.shape[-1:] != (e,):
        raise ValueError(f"Observed: expected y with shape (*, {e}), got {tuple(y.shape)}.")
    if joint._validate_args and not y.isfinite().all():
        raise ValueError(f"Observed: expected y to be finite, got {y}.")
    y = y.to(joint.weight.dtype)
    return y.unsqueeze(-1) if scalar else y


class Observed(TorchDistribution):
    r"""The law of :math:`y = H x + \varepsilon`, where :math:`x` follows a squared neural family.

    .. math:: p(y) = \mathcal{N}(y; H m, H C H^\top + S) \, \frac{Z(\hat{m}, \hat{C})}{Z(m, C)},
        \quad \varepsilon \sim \mathcal{N}(0, S)

    Here :math:`\mathcal{N}(m, C)` is the base, and :math:`\mathcal{N}(\hat{m}, \hat{C})` is the
    base given :math:`y`. The normaliser :math:`Z` is that of Tsuchida, Ong and Sejdinovic,
    arXiv:2305.13552. It holds for every activation, on Gaussian bases and their mixtures. Fitting
    :math:`p(y)` to noisy data is deconvolution: it learns the law of :math:`x` without noise.

    Arguments:
        joint: The :class:`~pyro_snefy.SNEFY` of the events :math:`x`.
        scale: The standard deviations of the noise, with shape :math:`(*, e)`; :math:`(*)` if
            :math:`y` is a scalar.
        scale_tril: Instead of ``scale``, a lower Cholesky factor of :math:`S`, with shape
            :math:`(*, e, e)`.
        matrix: The matrix :math:`H`, with shape :math:`(*, e, d)`. None stands for the identity.

    Example:
        >>> from pyro_snefy import SNEFY
        >>> joint = SNEFY(torch.randn(8, 2), torch.zeros(8), torch.randn(2, 8))
        >>> Observed(joint, torch.tensor([0.1, 0.3])).sample((5,)).shape
        torch.Size([5, 2])
        >>> Observed(joint, 0.1, matrix=torch.ones(1, 2)).event_shape
        torch.Size([1])
    """

    arg_constraints: dict[str, Any] = {}

    def __init__(
        self,
        joint: "SNEFY",
        scale: TensorLike | None = None,
        *,
        scale_tril: TensorLike | None = None,
        matrix: Tensor | None = None,
    ) -> None:
        self._start(joint, make_observation(joint, scale, scale_tril, matrix))

    def _start(self, joint: "SNEFY", observation: Observation) -> None:
        batch_shape = broadcast_shapes(joint.batch_shape, observation.batch_shape)
        scalar = observation.matrix is None and not joint.event_shape
        event_shape = _EMPTY if scalar else observation.noise.event_shape
        self.joint = joint if joint.batch_shape == batch_shape else joint.expand(batch_shape)
        self._observation = observation
        super().__init__(batch_shape, event_shape, validate_args=False)
        self._validate_args = joint._validate_args

    def __repr__(self) -> str:
        noise, matrix = self._observation
        (name, value) = next(pair for pair in noise.tensors() if pair[0] != "loc")
        of = "" if matrix is None else f", matrix: {tuple(matrix.shape)}"
        return f"Observed({self.joint}, {name}: {tuple(value.shape)}{of})"

    def expand(self, batch_shape: Any, _instance: Any = None) -> "Observed":
        """The same law with a larger batch shape."""
        new = self._get_checked_instance(Observed, _instance)
        new._start(self.joint.expand(batch_shape), self._observation)
        return new

    @property
    def support(self) -> Any:
        """All real numbers, or vectors."""
        return constraints.real_vector if self.event_shape else constraints.real

    @property
    def _law(self) -> Gaussian:
        # A base with the support of the observations.
        noise = self._observation.noise
        if self.event_shape:
            return noise
        return Gaussian(noise.loc[0], noise.factor[..., 0], event_dim=0, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        r"""The log-density of observations.

        Arguments:
            value: The observations, with shape :math:`(*, \text{event})`.
        """
        if self._validate_args and value.numel():  # torch's constraints need a row
            self._validate_sample(value)

        def numerator(y: Tensor) -> Tensor:
            rows = y if self.event_shape else y.unsqueeze(-1)
            return log_numerator(self.joint._network, self._observation, rows)

        return self.joint._log_prob(value, self._law, numerator)

    def as_snefy(self) -> "SNEFY":
        r"""The same law as a :class:`~pyro_snefy.SNEFY`, with all that such a law has.

        The sum of a squared neural family and independent normal noise is a squared neural family,
        with cosines or exponentials on a Gaussian base: ``Cos``, ``Sin`` and ``Cis`` become twice
        as many cosines, and ``Exp`` stays as it is.

        Example:
            >>> from pyro_snefy import SNEFY
            >>> joint = SNEFY(torch.randn(8, 2), torch.zeros(8), torch.randn(2, 8))
            >>> joint.observed(0.1).as_snefy().marginal([0]).event_shape
            torch.Size([1])
        """
        network = observed_network(self.joint._network, self._observation)
        return self.joint._from_network(network.expand(self.batch_shape), self._validate_args)

    @torch.no_grad()
    def sample(self, sample_shape: Any = _EMPTY) -> Tensor:
        """Draws events, exactly, and adds noise to what the matrix makes of them."""
        rows = self._rows(self.joint.sample(sample_shape))
        image, noise = self._observation.apply(rows), self._observation.noise
        error = torch.randn_like(image)
        if noise.scale_tril is None:
            error = error * noise.factor
        else:
            error = rows_matmul(error, noise.factor.mT)
        return self._event(image + error)

    @property
    def mean(self) -> Tensor:
        r"""The mean :math:`H \, \mathbb{E}[x]`, in closed form where the one of x is."""
        return self._event(self._observation.apply(self._rows(self.joint.mean)))

    @property
    def variance(self) -> Tensor:
        r"""The variance of each coordinate, :math:`H \, \mathrm{Cov}[x] \, H^\top + S`."""
        return self._event(self._covariance().diagonal(dim1=-2, dim2=-1))

    @property
    def covariance_matrix(self) -> Tensor:
        r"""The covariance matrix :math:`H \, \mathrm{Cov}[x] \, H^\top + S` of a vector."""
        if not self.event_shape:
            raise NotImplementedError("A scalar event has a variance, no covariance_matrix.")
        return self._covariance()

    def _covariance(self) -> Tensor:
        joint, (noise, matrix) = self.joint, self._observation
        covariance = (
            joint.covariance_matrix if joint.event_shape else joint.variance[..., None, None]
        )
        if matrix is not None:
            covariance = matrix @ covariance @ matrix.mT
        return covariance + noise.covariance(covariance)

    def _rows(self, x: Tensor) -> Tensor:
        return x if self.joint.event_shape else x.unsqueeze(-1)

    def _event(self, rows: Tensor) -> Tensor:
        return rows if self.event_shape else rows.squeeze(-1)
