r"""Autoregressive squared neural families: a masked network emits the factor of each coordinate."""

__all__ = ["AutoregressiveSNEFY", "autoregressive_snefy"]

import math
import warnings
from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
from pyro.distributions import ConditionalDistribution
from pyro.nn import AutoRegressiveNN, ConditionalAutoRegressiveNN
from torch import Tensor, nn

from ..activations import Cos
from ..bases import Gaussian, Standardized
from ..distributions.autoregressive import Autoregressive
from ..distributions.snefy import SNEFY
from .defaults import heavy_tailed, wave_basis
from .heads import LocationScale, Parameters, ReadoutHead
from .initialization import checked_events, complete_rows, spread
from .parameters import BaseModule, as_base, check_sizes
from .rows import as_tensor

_HEADS = (LocationScale(), ReadoutHead())


class AutoregressiveSNEFY(nn.Module):
    r"""A law of vectors, one coordinate after the other, each a squared neural family.

    .. math:: p(x | c) = \prod_{k=1}^d p(x_k | x_1, \dots, x_{k-1}, c), \qquad
        p(x_k | \cdot) = \frac{\mu_k(u_k)}{Z_k s_k} \left\| V_k \cos(W u_k + b) \right\|^2, \quad
        u_k = \frac{z_k - l_k}{s_k}

    One masked network (MADE, Germain et al., arXiv:1502.03509) emits the readout :math:`V_k`, the
    location :math:`l_k` and the scale :math:`s_k` of all factors, from :math:`z_1, \dots, z_{k-1}`
    and the context. Here :math:`z = L^{-1} (x - m)` with a lower triangular matrix :math:`L`, so
    that :math:`z_k` depends on :math:`x_1, \dots, x_k` alone. The module is registered as a
    :class:`pyro.distributions.ConditionalDistribution`.

    Arguments:
        dim: The number :math:`d` of coordinates.
        context_dim: The length of a context, 0 for none.
        hidden_dim: The number :math:`n` of neurons: waves of many frequencies, which stay as they
            are.
        readout_dim: The number of rows of each readout.
        hidden_dims: The sizes of the hidden layers of the masked network, each at least ``dim``.

    Example:
        >>> model = AutoregressiveSNEFY(3, 0, 13, 2, [16])
        >>> model().event_shape
        torch.Size([3])
    """

    loc: Tensor
    scale_tril: Tensor
    context_loc: Tensor
    context_scale: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(
        self,
        dim: int,
        context_dim: int,
        hidden_dim: int,
        readout_dim: int,
        hidden_dims: Sequence[int],
    ) -> None:
        super().__init__()
        _check(dim, context_dim, hidden_dim, readout_dim, hidden_dims)
        self.dim, self.context_dim = int(dim), int(context_dim)
        base = heavy_tailed(as_base((), "autoregressive_snefy"))
        self.base = BaseModule(base, ("logits",))
        self.register_buffer("weight", torch.empty(hidden_dim, 1))
        self.register_buffer("bias", torch.empty(hidden_dim))
        self.readout = nn.Parameter(torch.empty(readout_dim, hidden_dim))
        self.register_buffer("loc", torch.zeros(self.dim))
        self.register_buffer("scale_tril", torch.eye(self.dim))
        self.register_buffer("context_loc", torch.zeros(self.context_dim))
        self.register_buffer("context_scale", torch.ones(self.context_dim))
        self.net = self._masked_network([int(size) for size in hidden_dims])
        self.reset_parameters()

    def _masked_network(self, hidden_dims: list[int]) -> ConditionalAutoRegressiveNN:
        outputs = sum(head.size(self._one_factor()) for head in _HEADS)
        order = cast(torch.LongTensor, torch.arange(self.dim))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one coordinate: its factor is all there is
            if not self.context_dim:
                return AutoRegressiveNN(self.dim, hidden_dims, [outputs], permutation=order)
            return ConditionalAutoRegressiveNN(
                self.dim, self.context_dim, hidden_dims, [outputs], permutation=order
            )

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws new parameters."""
        weight, bias = wave_basis(self.weight)
        self.weight.copy_(weight)
        self.bias.copy_(bias)
        # Near the base itself: the first neuron is constant.
        nn.init.normal_(self.readout, std=0.1)
        self.readout[0, 0] += 1.0
        *layers, last = cast(list[nn.Linear], list(self.net.layers))
        for layer in layers:
            layer.reset_parameters()
        # Small outputs: the coordinates start out nearly independent.
        nn.init.normal_(last.weight, std=0.01)
        nn.init.zeros_(last.bias)

    @torch.no_grad()
    def initialize(self, x: Tensor, context: Tensor | None = None) -> "AutoregressiveSNEFY":
        r"""Takes location, covariance and the units of contexts from a sample of the data.

        .. math:: m = \text{mean of } x, \qquad L L^\top = \text{covariance of } x

        Contexts are standardised. With at most as many rows as coordinates, :math:`L` is diagonal.

        Arguments:
            x: Events, with shape :math:`(N, d)`. NaN marks what is not observed.
            context: Contexts, with shape :math:`(N, \text{context\_dim})`, if there are any.
        """
        law = Gaussian(torch.zeros_like(self.loc), torch.ones_like(self.loc))
        x = checked_events("AutoregressiveSNEFY", law, x, self.loc)
        if context is not None:
            context = as_tensor("AutoregressiveSNEFY", "context", context, self.loc)
        self._check_context(context)
        if context is not None:
            if context.shape[:-1] != x.shape[:1] or not context.isfinite().all():
                raise ValueError(
                    "AutoregressiveSNEFY: expected a finite context with shape "
                    f"{(len(x), self.context_dim)}, one row for each row of x, got shape "
                    f"{tuple(context.shape)} with {int((~context.isfinite()).sum())} other values."
                )
            self.context_loc.copy_(context.mean(0))
            self.context_scale.copy_(spread(context))
        rows = complete_rows(x)
        self.loc.copy_(rows.double().mean(0))
        self.scale_tril.copy_(_triangular_factor(rows))
        return self

    def _check_context(self, context: Tensor | None) -> None:
        if context is None and self.context_dim:
            raise TypeError(
                f"AutoregressiveSNEFY: expected context with shape (*, {self.context_dim}), "
                "got None."
            )
        if context is None:
            return
        if not isinstance(context, Tensor):
            raise TypeError(
                f"AutoregressiveSNEFY: expected context to be a Tensor, got {context!r}."
            )
        if not self.context_dim:
            raise ValueError(
                "AutoregressiveSNEFY: expected no context, because context_dim is 0, got one with "
                f"shape {tuple(context.shape)}."
            )
        if context.dim() < 1 or context.shape[-1] != self.context_dim:
            raise ValueError(
                f"AutoregressiveSNEFY: expected context with shape (*, {self.context_dim}), got "
                f"{tuple(context.shape)}."
            )
        if context.dtype != self.loc.dtype:
            raise TypeError(
                f"AutoregressiveSNEFY: expected context with the dtype {self.loc.dtype} of the "
                f"module, got {context.dtype}; convert one of them."
            )

    def condition(self, context: Tensor | None = None) -> Autoregressive:
        r"""The law for each context.

        Arguments:
            context: The contexts, with shape :math:`(*, \text{context\_dim})`, if there are any.

        Returns:
            A law of vectors with batch shape :math:`(*)`.
        """
        self._check_context(context)
        batch_shape = () if context is None else context.shape[:-1]
        return Autoregressive(partial(self._factors, context), self.loc, self.dim, batch_shape)

    def extra_repr(self) -> str:
        m, n = self.readout.shape
        sizes = f"dim={self.dim}, context_dim={self.context_dim}, hidden_dim={n}, readout_dim={m}"
        return f"{self.base()}, {sizes}, heads={list(_HEADS)}"

    def forward(self, context: Tensor | None = None) -> Autoregressive:
        """Calls :meth:`condition`."""
        return self.condition(context)

    def _one_factor(self) -> Parameters:
        # Of one factor, in units of z.
        zero = torch.zeros_like(self.readout[0, 0])
        return Parameters(zero, torch.ones_like(zero), self.bias, self.readout, self.base())

    def _factors(self, context: Tensor | None, x: Tensor, dims: slice) -> SNEFY:
        rows = (x - self.loc).reshape(-1, self.dim)
        z = torch.linalg.solve_triangular(self.scale_tril.mT, rows, upper=True, left=False)
        z = z.reshape(x.shape)
        # asinh brings outliers near, as in the network of conditional_snefy.
        if context is None:
            outputs = self.net(z.asinh())
        else:
            units = (context - self.context_loc) / self.context_scale
            outputs = self.net(z.asinh(), units.asinh())
        outputs = outputs.to(x.dtype)[..., dims].mT  # (*, dims, outputs of a factor)
        parameters = self._one_factor()
        sizes = [head.size(parameters) for head in _HEADS]
        for head, piece in zip(_HEADS, outputs.split(sizes, dim=-1), strict=True):
            parameters = head(parameters, piece)
        # x_k = m_k + L_k1 z_1 + ... + L_kk z_k, with z_k = l_k + s_k u_k.
        before = (self.loc + z @ self.scale_tril.tril(-1).mT)[..., dims]
        size = self.scale_tril.diagonal()[dims]
        loc, scale = before + size * parameters.loc, size * parameters.scale
        base = Standardized(self.base(), loc, scale, validate_args=False)
        return SNEFY(self.weight, self.bias, parameters.readout, activation=Cos(), base=base)


ConditionalDistribution.register(AutoregressiveSNEFY)


def _triangular_factor(x: Tensor) -> Tensor:
    # L L' = covariance. A coordinate that others determine keeps the rounding of its dtype.
    n, d = x.shape
    floor = torch.finfo(x.dtype).eps
    x = x.double()
    scale = spread(x) * math.sqrt(n / max(n - 1, 1))
    if n <= d:
        return scale.diag()
    units = (x - x.mean(0)) / scale
    correlation = units.mT @ units / (n - 1)
    # The diagonal of a constant coordinate is zero.
    diagonal = torch.where(correlation.diagonal() > 0.5, floor, 1.0)
    return scale.unsqueeze(-1) * torch.linalg.cholesky(correlation + diagonal.diag())


def _check(
    dim: int, context_dim: int, hidden_dim: int, readout_dim: int, hidden_dims: Sequence[int]
) -> None:
    caller = "autoregressive_snefy"
    check_sizes(caller, dim=dim, hidden_dim=hidden_dim, readout_dim=readout_dim)
    if context_dim != 0:
        check_sizes(caller, context_dim=context_dim)
    if not (isinstance(hidden_dims, Sequence) and len(hidden_dims)):
        raise ValueError(
            f"{caller}: expected hidden_dims with one size or more, got {hidden_dims!r}."
        )
    check_sizes(caller, **{f"hidden_dims[{k}]": size for k, size in enumerate(hidden_dims)})
    if min(hidden_dims) < dim:
        raise ValueError(
            f"{caller}: expected hidden_dims of at least dim = {dim}, so that every coordinate has "
            f"neurons, got {tuple(hidden_dims)}."
        )


def autoregressive_snefy(
    dim: int,
    context_dim: int = 0,
    hidden_dim: int = 13,
    readout_dim: int = 2,
    hidden_dims: Sequence[int] = (256, 256),
) -> AutoregressiveSNEFY:
    r"""Creates an autoregressive squared neural family, for densities of many coordinates.

    .. math:: p(x | c) = \prod_{k=1}^d p(x_k | x_1, \dots, x_{k-1}, c)

    Each factor is a :class:`~pyro_snefy.SNEFY` of a scalar, whose parameters come from one masked
    network (MADE, Germain et al., arXiv:1502.03509). Log-densities take one pass, and are exact;
    samples take one pass for each coordinate, and are exact, too. Rows whose last coordinates are
    missing, marked by NaN, are scored by their first coordinates.

    Arguments:
        dim: The number :math:`d` of coordinates.
        context_dim: The length of a context, 0 for none.
        hidden_dim: The number of neurons of each factor: a constant, and pairs of waves.
        readout_dim: The number of rows of each readout.
        hidden_dims: The sizes of the hidden layers of the masked network, each at least ``dim``.

    Example:
        >>> from pyro_snefy import fit
        >>> x = torch.randn(500, 4).cumsum(-1)
        >>> model = autoregressive_snefy(4, hidden_dims=[32]).initialize(x)
        >>> history = fit(model, x, max_epochs=2, progress=False)
        >>> model().sample((5,)).shape
        torch.Size([5, 4])
        >>> autoregressive_snefy(4, context_dim=2)(torch.zeros(7, 2)).batch_shape
        torch.Size([7])
    """
    return AutoregressiveSNEFY(dim, context_dim, hidden_dim, readout_dim, hidden_dims)
