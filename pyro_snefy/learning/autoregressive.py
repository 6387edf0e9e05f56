r"""Autoregressive squared neural families: a masked network emits the factor of each coordinate."""

__all__ = ["AutoregressiveSNEFY", "autoregressive_snefy"]

import math
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from pyro.distributions import ConditionalDistribution
from pyro.nn import AutoRegressiveNN, ConditionalAutoRegressiveNN
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ..activations import Bump
from ..bases import Gaussian, Standardized
from ..distributions.atoms import WithAtoms
from ..distributions.autoregressive import Autoregressive
from ..distributions.snefy import SNEFY
from .contexts import ContextModule
from .defaults import bump_basis, heavy_tailed, start_near_base_
from .heads import LocationScale, Parameters, ReadoutHead
from .initialization import checked_events, complete_rows
from .parameters import BaseModule, as_base, check_sizes
from .rows import Data
from .statistics import robust_location_scale, spread

_HEADS = (LocationScale(), ReadoutHead())
# A value is an atom if it is this share of the rows, and at least so many rows.
_ATOM, _REPEATS = 0.005, 5
# A column has atoms if they are this share of its rows.
_ATOMIC = 0.05
# The width of an atom, in units of the scale of its column.
_WIDTH = 0.01
# A peak has _ATOMIC of the rows within this distance, and 60 % of the rows at four times as much.
_NARROW, _PEAKS = 0.06, 8
# Rows that are this many scales from the median have no part in the covariance.
_FAR = 30.0


class AutoregressiveSNEFY(ContextModule):
    r"""A law of vectors, one coordinate after the other, each a squared neural family.

    .. math:: p(x | c) = \prod_{k=1}^d p(x_k | x_1, \dots, x_{k-1}, c), \qquad
        p(x_k | \cdot) = \frac{\mu_k(u_k)}{Z_k s_k} \left\| V_k \sigma(W u_k + b) \right\|^2, \quad
        u_k = \frac{z_k - l_k}{s_k}

    The neurons are a constant and bumps :math:`\sigma(t) = e^{-t^2 / 2}` along a line, the same for
    all factors. One masked network (MADE, Germain et al., arXiv:1502.03509) emits the readout
    :math:`V_k`, the location :math:`l_k` and the scale :math:`s_k` of all factors, from
    :math:`z_1, \dots, z_{k-1}` and the context. Here :math:`z = L^{-1} (x - m)` with a lower
    triangular matrix :math:`L`, so that :math:`z_k` depends on :math:`x_1, \dots, x_k` alone. The
    module is registered as a :class:`pyro.distributions.ConditionalDistribution`.

    A column may have atoms :math:`a_j`, which :meth:`initialize` finds in the data. Its factor is
    then a mixture, whose weights come from the network, too:

    .. math:: \pi_0 \, p(z_k | \cdot) + \sum_j \pi_j \, \mathcal{N}(z_k; a_j, \tau_j^2)

    Arguments:
        dim: The number :math:`d` of coordinates.
        context_dim: The length of a context, 0 for none.
        hidden_dim: The number :math:`n` of neurons, which stay as they are.
        readout_dim: The number of rows of each readout.
        hidden_dims: The sizes of the hidden layers of the masked network, each at least ``dim``.

    Example:
        >>> model = AutoregressiveSNEFY(3, 0, 16, 2, [16])
        >>> model().event_shape
        torch.Size([3])
    """

    loc: Tensor
    scale_tril: Tensor
    weight: Tensor
    bias: Tensor
    atoms: Tensor
    atom_widths: Tensor
    atom_logits: Tensor

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
        self._add_context(self.context_dim)
        self.hidden_dims = [int(size) for size in hidden_dims]
        self._set_atoms(torch.zeros(self.dim, 0), torch.ones(self.dim, 0), torch.zeros(self.dim, 1))
        self.reset_parameters()
        self.register_load_state_dict_pre_hook(_take_state)

    def _set_atoms(self, atoms: Tensor, widths: Tensor, logits: Tensor) -> None:
        # A network with outputs for other atoms has other sizes, and new parameters.
        fresh = not hasattr(self, "net") or atoms.shape != self.atoms.shape
        self.register_buffer("atoms", atoms.to(self.loc))
        self.register_buffer("atom_widths", widths.to(self.loc))
        self.register_buffer("atom_logits", logits.to(self.loc))
        if fresh:
            self.net = self._masked_network().to(self.loc)
            self._reset_network()

    def _masked_network(self) -> ConditionalAutoRegressiveNN:
        hidden_dims, count = self.hidden_dims, self.atoms.shape[-1]
        outputs = sum(head.size(self._one_factor()) for head in _HEADS)
        outputs += count + 1 if count else 0
        order = cast(torch.LongTensor, torch.arange(self.dim, device=self.loc.device))
        with warnings.catch_warnings(), self.loc.device:
            warnings.simplefilter("ignore")  # one coordinate: its factor is all there is
            if not self.context_dim:
                return AutoRegressiveNN(self.dim, hidden_dims, [outputs], permutation=order)
            return ConditionalAutoRegressiveNN(
                self.dim, self.context_dim, hidden_dims, [outputs], permutation=order
            )

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws new parameters."""
        weight, bias = bump_basis(self.weight)
        self.weight.copy_(weight)
        self.bias.copy_(bias)
        start_near_base_(self.readout)
        self._reset_network()

    @torch.no_grad()
    def _reset_network(self) -> None:
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
        A row with a coordinate more than 30 scales from the median has no part in mean and
        covariance; half the distance of the 16 % and 84 % quantiles is the scale here.

        A value that is at least 0.5 % of a column, and occurs at least five times, is an atom of
        this column, if these values are at least 5 % of it. Such a column is standardised by
        itself, because atoms are sharp in its own units alone. In other columns, a narrow peak of
        :math:`z_k` is an atom: 5 % of the rows at a distance of at most 0.06, and 60 % of the rows
        at 0.24. Rounded numbers that others determine have such peaks.

        The width :math:`\tau` is a hundredth of the scale of the column, or the standard deviation
        of a peak. The law has a density even there: as for every density of data with atoms, the
        log-likelihood would grow without bound with smaller :math:`\tau`. With another number of
        atoms than before, the module gets a new network.

        Arguments:
            x: Events, with shape :math:`(N, d)`. NaN marks what is not observed.
            context: Contexts, with shape :math:`(N, \text{context\_dim})`, if there are any.
        """
        law = Gaussian(torch.zeros_like(self.loc), torch.ones_like(self.loc))
        x = checked_events("AutoregressiveSNEFY", law, x, self.loc)
        self._check_presence(context)
        if context is not None:
            self._set_context_units(context, len(x))
        rows = complete_rows(x)
        values, shares = _recurrent_values(rows)
        alone = shares.sum(-1) > 0
        near = _without_outliers(rows)
        self.loc.copy_(near.double().mean(0))
        self.scale_tril.copy_(_triangular_factor(near, alone))
        size = self.scale_tril.diagonal().unsqueeze(-1)
        places, widths, masses = _peaks(self._white(rows))
        atoms = torch.cat([(values - self.loc.unsqueeze(-1)) / size, places], -1)
        widths = torch.cat([torch.full_like(values, _WIDTH), widths], -1)
        shares = torch.cat([shares, torch.where(alone.unsqueeze(-1), 0.0, masses)], -1)
        used = shares.sum(0) > 0
        atoms, widths, shares = atoms[:, used], widths[:, used], shares[:, used]
        # The share of the smooth part is at least the share of one row.
        rest = (1 - shares.sum(-1, keepdim=True)).clamp(min=1 / len(rows))
        self._set_atoms(atoms, widths, torch.cat([rest, shares], -1).log())
        return self

    def _check_presence(self, context: Data | None) -> None:
        if context is None and self.context_dim:
            raise TypeError(
                f"AutoregressiveSNEFY: expected context with shape (*, {self.context_dim}), "
                "got None."
            )
        if context is not None and not self.context_dim:
            raise ValueError(
                "AutoregressiveSNEFY: expected no context, because context_dim is 0, got one."
            )

    def condition(self, context: Tensor | None = None) -> Autoregressive:
        r"""The law for each context.

        Arguments:
            context: The contexts, with shape :math:`(*, \text{context\_dim})`, if there are any.

        Returns:
            A law of vectors with batch shape :math:`(*)`.
        """
        self._check_presence(context)
        units = None if context is None else self._standardized_context(context)
        if isinstance(context, Tensor) and context.dtype != self.loc.dtype:
            raise TypeError(
                f"AutoregressiveSNEFY: expected context with the dtype {self.loc.dtype} of the "
                f"module, got {context.dtype}; convert one of them."
            )
        batch_shape = () if units is None else units.shape[:-1]
        return Autoregressive(partial(self._factors, units), self.loc, self.dim, batch_shape)

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

    def _white(self, x: Tensor) -> Tensor:
        rows = (x - self.loc).reshape(-1, self.dim)
        z = torch.linalg.solve_triangular(self.scale_tril.mT, rows, upper=True, left=False)
        return z.reshape(x.shape)

    def _factors(self, units: Tensor | None, x: Tensor, dims: slice) -> SNEFY | WithAtoms:
        z = self._white(x)
        # asinh brings outliers near, as in the network of conditional_snefy.
        outputs = self.net(z.asinh(), *(() if units is None else (units.asinh(),)))
        outputs = outputs.to(x.dtype)[..., dims].mT  # (*, dims, outputs of a factor)
        parameters = self._one_factor()
        sizes = [head.size(parameters) for head in _HEADS]
        *pieces, logits = outputs.split([*sizes, outputs.shape[-1] - sum(sizes)], dim=-1)
        for head, piece in zip(_HEADS, pieces, strict=True):
            parameters = head(parameters, piece)
        # x_k = m_k + L_k1 z_1 + ... + L_kk z_k, with z_k = l_k + s_k u_k.
        before = (self.loc + z @ self.scale_tril.tril(-1).mT)[..., dims]
        size = self.scale_tril.diagonal()[dims]
        loc, scale = before + size * parameters.loc, size * parameters.scale
        base = Standardized(self.base(), loc, scale, validate_args=False)
        family = SNEFY(self.weight, self.bias, parameters.readout, activation=Bump(), base=base)
        if not self.atoms.shape[-1]:
            return family
        atoms = before.unsqueeze(-1) + size.unsqueeze(-1) * self.atoms[dims]
        widths = size.unsqueeze(-1) * self.atom_widths[dims]
        return WithAtoms(family, self.atom_logits[dims] + logits, atoms, widths)


ConditionalDistribution.register(AutoregressiveSNEFY)


def _take_state(module: AutoregressiveSNEFY, state: dict[str, Any], prefix: str, *_: Any) -> None:
    # As many atoms as a state has, before its values are copied.
    names = ("atoms", "atom_widths", "atom_logits")
    found = [state[f"{prefix}{name}"] for name in names if f"{prefix}{name}" in state]
    if len(found) == len(names) and found[0].shape != module.atoms.shape:
        module._set_atoms(*found)


def _recurrent_values(x: Tensor) -> tuple[Tensor, Tensor]:
    # Atoms of each column, (d, J), and their shares of the rows, padded with zeros.
    atoms, shares = [], []
    for column in x.unbind(-1):
        values, counts = column.unique(return_counts=True)
        share = counts / len(column)
        found = (share >= _ATOM) & (counts >= _REPEATS) & (counts < len(column))
        found = found & (share[found].sum() >= _ATOMIC)
        atoms.append(values[found])
        shares.append(share[found].to(x.dtype))
    return pad_sequence(atoms, batch_first=True), pad_sequence(shares, batch_first=True)


def _peaks(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # Narrow peaks of each column: places, widths and shares of the rows, each (d, J).
    z = z.mT.sort().values.contiguous()  # (d, N)
    count = z.shape[-1]

    def between(reach: float) -> tuple[Tensor, Tensor]:
        return torch.searchsorted(z, z - reach), torch.searchsorted(z, z + reach, right=True)

    first, last = between(_NARROW)
    inside = last - first
    start, stop = between(4 * _NARROW)
    # One peak of all rows is a constant.
    free = (inside >= _ATOMIC * count) & (inside < count)
    free = free & (5 * inside >= 3 * (stop - start))
    total = torch.nn.functional.pad(torch.stack([z, z * z]).double().cumsum(-1), (1, 0))
    found = []
    for _ in range(_PEAKS):
        best = torch.where(free, inside, 0).argmax(-1, keepdim=True)  # (d, 1)
        ends = torch.cat([first.gather(-1, best), last.gather(-1, best)], -1)
        number = ends[:, 1] - ends[:, 0]
        sums = total.gather(-1, ends.expand(2, -1, -1)).diff(dim=-1).squeeze(-1)
        mean, square = sums / number
        width = (square - mean * mean).clamp(min=0).sqrt().clamp(min=_WIDTH)
        here = free.any(-1)
        found.append(torch.stack([mean, width, torch.where(here, number / count, 0.0)]))
        free = free & ((z - z.gather(-1, best)).abs() > 2 * _NARROW)
    places, widths, shares = torch.stack(found, -1).to(z.dtype)
    return places, widths, shares


def _without_outliers(x: Tensor) -> Tensor:
    # One number that is a thousand times too large would be the scale of its column.
    loc, scale = robust_location_scale(x)
    near = ((x - loc).abs() <= _FAR * scale).all(-1)
    return x[near] if near.sum() > max(x.shape[-1], len(x) / 2) else x


def _triangular_factor(x: Tensor, alone: Tensor) -> Tensor:
    # L L' = covariance, up to coordinates that stand alone: their rows of L are diagonal. A
    # coordinate that others determine keeps the rounding of its dtype.
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
    factor = torch.linalg.cholesky(correlation + diagonal.diag())
    # z_k = (u_k - B_k u_<k) / L_kk, with a regression B_k. Alone, z_k = u_k.
    eye = torch.eye(d, dtype=x.dtype, device=x.device)
    inverse = torch.linalg.solve_triangular(factor, eye, upper=False)
    inverse = torch.where(alone.unsqueeze(-1), eye, inverse)
    return scale.unsqueeze(-1) * torch.linalg.solve_triangular(inverse, eye, upper=False)


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
    hidden_dim: int = 16,
    readout_dim: int = 2,
    hidden_dims: Sequence[int] = (256, 256),
) -> AutoregressiveSNEFY:
    r"""Creates an autoregressive squared neural family, for densities of many coordinates.

    .. math:: p(x | c) = \prod_{k=1}^d p(x_k | x_1, \dots, x_{k-1}, c)

    Each factor is a :class:`~pyro_snefy.SNEFY` of a scalar, whose parameters come from one masked
    network (MADE, Germain et al., arXiv:1502.03509). Log-densities take one pass, and are exact;
    samples take one pass for each coordinate, and are exact, too. Rows whose last coordinates are
    missing, marked by NaN, are scored by their first coordinates, and completed by
    :meth:`~pyro_snefy.distributions.Autoregressive.impute`.

    Arguments:
        dim: The number :math:`d` of coordinates.
        context_dim: The length of a context, 0 for none.
        hidden_dim: The number of neurons of each factor: a constant, and bumps.
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
