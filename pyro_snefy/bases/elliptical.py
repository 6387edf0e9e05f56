r"""Laws with ellipsoids as level sets: a location and a scale matrix."""

__all__ = ["Elliptical"]

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import constraints

from ..numerics.linalg import lower_factor, rows_matmul, take
from .base import TensorField, TensorLike, as_parameters
from .engines import FourierBase


class Elliptical(FourierBase):
    r"""The law of :math:`m + L e`, where :math:`e` has a law that no rotation changes.

    The scale matrix is :math:`L L^\top`. A subclass supplies the law of :math:`e`.

    Arguments:
        loc: The location :math:`m`, with shape :math:`(*, d)`.
        scale: The scales, with shape :math:`(*, d)`; :math:`L` is diagonal.
        scale_tril: Instead of ``scale``, the lower triangular :math:`L`, with shape
            :math:`(*, d, d)`.
        event_dim: With 0, every entry of ``loc`` is the location of a scalar event.
        validate_args: Whether the tensors are checked.
        others: More parameters by name, with shape :math:`(*)`.
    """

    tensor_fields: ClassVar[dict[str, TensorField]] = {
        "loc": TensorField(constraints.real, per_event=True),
        "scale": TensorField(constraints.positive, per_event=True),
        "scale_tril": TensorField(constraints.lower_cholesky, rank=2),
    }

    def __init__(
        self,
        loc: TensorLike,
        scale: TensorLike | None,
        scale_tril: TensorLike | None,
        event_dim: int,
        validate_args: bool | None,
        **others: TensorLike,
    ) -> None:
        name = type(self).__name__
        if (scale is None) == (scale_tril is None):
            raise ValueError(f"{name}: expected exactly one of scale and scale_tril.")
        if event_dim not in (0, 1):
            raise ValueError(f"{name}: expected event_dim 0 or 1, got {event_dim}.")
        if event_dim == 0 and scale_tril is not None:
            raise ValueError(f"{name}: expected scale, not scale_tril, for a scalar event.")
        if event_dim and not torch.as_tensor(loc).dim():
            raise ValueError(
                f"{name}: expected loc with shape (*, d), got (); scalar events need event_dim=0."
            )
        letters = "d" * event_dim
        given = {key: (value, "") for key, value in others.items()}
        self.loc: Tensor
        self.scale: Tensor | None = None
        self.scale_tril: Tensor | None = None
        if scale is not None:
            given |= {"loc": (loc, letters), "scale": (scale, letters)}
            shape, tensors = as_parameters(self, **given)
        else:
            assert scale_tril is not None
            given |= {"loc": (loc, letters), "scale_tril": (scale_tril, "dd")}
            shape, tensors = as_parameters(self, **given)
            found = tuple(tensors[-1].shape)
            if found[-2:] != 2 * tuple(shape[-2:-1]):
                raise ValueError(
                    f"{name}: expected scale_tril with shape (*, d, d) to match loc with shape "
                    f"{tuple(tensors[-2].shape)}, got {found}."
                )
            shape = shape[:-1]
        for key, value in zip(given, tensors, strict=True):
            setattr(self, key, value)
        batch, event = shape[: len(shape) - event_dim], shape[len(shape) - event_dim :]
        super().__init__(batch, event, event[0] if event_dim else 1, validate_args)

    @property
    def support(self) -> Any:
        return constraints.real_vector if self.event_dim else constraints.real

    def mean(self, like: Tensor) -> Tensor:
        return self._vector(self.loc)

    def _vector(self, x: Tensor) -> Tensor:
        # With shape (*, D), where one number may stand for all coordinates.
        x = x if self.event_dim else x.unsqueeze(-1)
        d = self.num_statistics
        return x if x.shape[-1] == d else x.expand((*x.shape[:-1], d))

    def _vector_scale(self) -> Tensor:
        assert self.scale is not None
        return self._vector(self.scale)

    @property
    def factor(self) -> Tensor:
        r"""The factor :math:`L`, with shape :math:`(*, d, d)`, or its diagonal."""
        return self._vector_scale() if self.scale_tril is None else self.scale_tril

    def matrix(self) -> Tensor:
        r"""The scale matrix :math:`L L^\top`, with shape :math:`(*, d, d)`."""
        if self.scale_tril is not None:
            return self.scale_tril @ self.scale_tril.mT
        return torch.diag_embed(self._vector_scale().square())

    def times_matrix(self, rows: Tensor) -> Tensor:
        r"""Rows times the scale matrix, with shape :math:`(*, E, d)`."""
        if self.scale_tril is not None:
            return rows @ self.scale_tril @ self.scale_tril.mT
        return rows * self._vector_scale().square().unsqueeze(-2)

    def whiten(self, weight: Tensor) -> Tensor:
        r"""The weights :math:`W L` on :math:`e`."""
        if self.scale_tril is not None:
            return weight @ self.scale_tril
        return weight * self._vector_scale().unsqueeze(-2)

    def quadratic(self, weight: Tensor) -> Tensor:
        r"""The matrix :math:`W L L^\top W^\top`, with shape :math:`(*, n, n)`."""
        white = self.whiten(weight)
        # Many small products are slower than their terms.
        return white * white.mT if white.shape[-1] == 1 else white @ white.mT

    def standardize(self, x: Tensor) -> tuple[Tensor, Tensor]:
        r"""The :math:`e` of events, with shape :math:`(*, d)`, and :math:`\log |L|`."""
        if self.scale_tril is None:
            scale = self._vector_scale()
            return (self.statistic(x) - self.mean(x)) / scale, scale.log().sum(-1)
        # One inverse for all events. torch's MultivariateNormal loses precision in traces of
        # torch.jit, where a size is a tensor and its product with a number is in float32.
        eye = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
        inverse = torch.linalg.solve_triangular(self.scale_tril, eye, upper=False)
        log_scale = self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return rows_matmul(x - self.loc, inverse.mT), log_scale

    def _white_rows(self, rows: Tensor) -> Tensor:
        return self.whiten(rows.unsqueeze(-2)).squeeze(-2)  # (N, D)

    def _event(self, noise: Tensor) -> Tensor:
        # The event m + L e, for noise e with shape (N, D).
        if self.scale_tril is not None:
            return self.loc + rows_matmul(noise, self.scale_tril.mT)
        x = self.mean(noise) + noise * self._vector_scale()
        return x if self.event_dim else x.squeeze(-1)

    def _some(self, dims: Sequence[int]) -> dict[str, Any]:
        # Location and scale of some coordinates.
        if self.scale_tril is None:
            loc, scale = self.loc, self._vector_scale()
            if loc.shape != scale.shape:
                loc, scale = torch.broadcast_tensors(loc, scale)
            return {"loc": take(loc, dims), "scale": take(scale, dims)}
        factor = lower_factor(self.scale_tril[..., dims, :])
        return {"loc": self.loc[..., dims], "scale_tril": factor}

    def _coefficients(self, dims: Sequence[int]) -> Tensor | None:
        # The matrix B of the line m_2 + B (x_1 - m_1), or None for zeros.
        return None if self.scale_tril is None else self._regression(dims)[0]

    def _regression(self, dims: Sequence[int]) -> tuple[Tensor, Tensor]:
        # B, and the lower factor of the scale matrix of x_2 given x_1, from x - m = T e, the given
        # coordinates first.
        assert self.scale_tril is not None
        count = len(dims)
        factor = lower_factor(self.scale_tril[..., [*dims, *self.others(dims)], :])
        own, below = factor[..., :count, :count], factor[..., count:, :count]
        slope = torch.linalg.solve_triangular(own, below, upper=False, left=False)
        return slope, factor[..., count:, count:]

    def _given(self, dims: Sequence[int], values: Tensor) -> dict[str, Any]:
        # Location and scale of the other coordinates, given some, where e is normal.
        others = self.others(dims)
        if self.scale_tril is None:
            return self._some(others)
        slope, factor = self._regression(dims)
        loc = self.loc[..., others] + rows_matmul(values - self.loc[..., dims], slope.mT)
        return {"loc": loc, "scale_tril": factor}
