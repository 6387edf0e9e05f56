r"""Products of bases."""

__all__ = ["Product"]

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Size, Tensor

from ..activations import Activation
from ..constraints import product
from ..numerics.linalg import concatenate, rows_matmul
from .base import Base, Partial, check_bases
from .engines import FourierBase, LaplaceBase, Pairs
from .gaussian import Gaussian

Complex = tuple[Tensor, Tensor | None]


class Product(FourierBase, LaplaceBase):
    r"""The product :math:`\mu_1 \otimes \cdots \otimes \mu_K`, coordinates concatenated.

    .. math:: t(x) = (t_1(x_1), \ldots, t_K(x_K)), \quad
        \varphi(\omega) = \prod_k \varphi_k(\omega_k), \quad A(\eta) = \sum_k A_k(\eta_k)

    One joint model may have real, bounded and discrete coordinates. A product of normal laws is a
    normal law: it has the kernels of :class:`~pyro_snefy.bases.Gaussian`.

    Arguments:
        bases: The factors. A factor with scalar events takes one coordinate.

    Example:
        >>> from pyro_snefy.bases import Gaussian, Poisson
        >>> base = Product([Gaussian(torch.zeros(2), torch.ones(2)), Poisson(torch.tensor(3.0))])
        >>> base.event_shape
        torch.Size([3])
    """

    base_fields = ("bases",)

    def __init__(self, bases: Sequence[Base]) -> None:
        batch = check_bases(self, bases)
        self.bases = tuple(bases)
        self.lengths = [base.event_shape[0] if base.event_dim else 1 for base in bases]
        self.statistics = [base.num_statistics for base in bases]
        super().__init__(batch, Size((sum(self.lengths),)), sum(self.statistics), False)

    def _pieces(self, x: Tensor) -> list[tuple[Base, Tensor]]:
        # The factors, each with its part of an event.
        pairs = zip(self.bases, x.split(self.lengths, dim=-1), strict=True)
        return [(base, piece if base.event_dim else piece.squeeze(-1)) for base, piece in pairs]

    def _join(self, pieces: Sequence[Tensor]) -> Tensor:
        # An event, from its parts.
        pairs = zip(self.bases, pieces, strict=True)
        return concatenate([x if base.event_dim else x.unsqueeze(-1) for base, x in pairs])

    def _blocks(self, rows: Tensor) -> list[tuple[Any, Tensor]]:
        # The factors, each with its columns of weights, frequencies or natural parameters.
        return list(zip(self.bases, rows.split(self.statistics, dim=-1), strict=True))

    @property
    def support(self) -> Any:
        return product([base.support for base in self.bases], self.lengths)

    @property
    def is_discrete(self) -> bool:  # type: ignore[override]
        return all(base.is_discrete for base in self.bases)

    def weight_constraint(self, activation: Activation) -> Any:
        parts = [base.weight_constraint(activation) for base in self.bases]
        return product(parts, self.statistics, event_dim=2)

    def cast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return self._join([base.cast(piece, dtype) for base, piece in self._pieces(x)])

    def sample_member(self, eta: Tensor) -> Tensor:
        return self._join([base.sample_member(rows) for base, rows in self._blocks(eta)])

    def sample_square(self, weight: Tensor) -> Tensor:
        # Factor by factor: v is the sum of a known part, a part of this factor, and a part of
        # the factors to come, which is integrated out.
        blocks = self._blocks(weight)
        spreads = [(rows_matmul(w, base.covariance(w)) * w).sum(-1) for base, w in blocks]
        rest = torch.stack(spreads).sum(0)
        total = torch.zeros_like(rest)
        pieces = []
        for (base, rows), spread in zip(blocks, spreads, strict=True):
            rest = (rest - spread).clamp(min=0)
            c0, one = total.square() + rest, torch.ones_like(total)
            x = base.sample_quadratic(rows, c0, 2 * total, one)
            total = total + (rows * (base.statistic(x) - base.mean(rows))).sum(-1)
            pieces.append(x)
        return self._join(pieces)

    def example(self, like: Tensor) -> Tensor:
        return self._join([base.example(like) for base in self.bases])

    def statistic(self, x: Tensor) -> Tensor:
        return concatenate([base.statistic(piece) for base, piece in self._pieces(x)])

    def log_density(self, x: Tensor) -> Tensor:
        return _sum([base.log_density(piece) for base, piece in self._pieces(x)])

    def codimension(self, x: Tensor) -> int | Tensor:
        return sum(base.codimension(piece) for base, piece in self._pieces(x))

    @property
    def statistic_signature(self) -> tuple[Any, ...]:
        return sum((base.statistic_signature for base in self.bases), ())

    def parts(self) -> tuple[Base, ...]:
        parts = [base.parts() for base in self.bases]
        if all(isinstance(first, Gaussian) for first, *_ in parts):
            return parts[0]
        return super().parts()

    def latent(self, like: Tensor) -> Base:
        latents = [base.latent(like) for base in self.bases]
        if all(isinstance(latent, Gaussian) for latent in latents):
            return _joint([latent for latent in latents if isinstance(latent, Gaussian)], like)
        same = all(latent is base for latent, base in zip(latents, self.bases, strict=True))
        return self if same else Product(latents)

    def event(self, latent: Tensor) -> Tensor:
        return self._join([base.event(piece) for base, piece in self._pieces(latent)])

    def to_latent(self, x: Tensor) -> Tensor:
        return self._join([base.to_latent(piece) for base, piece in self._pieces(x)])

    def _groups(self, dims: Sequence[int]) -> list[tuple[int, list[int]]]:
        # Factors in the order of their first coordinate in dims, each with the coordinates of
        # the factor that are in dims, counted from its first one.
        starts = [sum(self.lengths[:k]) for k in range(len(self.bases))]
        groups: list[tuple[int, list[int]]] = []
        for dim in dims:
            k = max(k for k, start in enumerate(starts) if start <= dim)
            if not groups or groups[-1][0] != k:
                groups.append((k, []))
            groups[-1][1].append(dim - starts[k])
        if len({k for k, _ in groups}) != len(groups):
            raise NotImplementedError(
                f"Product: expected the coordinates of each factor side by side, got {list(dims)}."
            )
        return groups

    def columns(self, dims: Sequence[int]) -> list[int]:
        return [
            sum(self.statistics[:k]) + column
            for k, inner in self._groups(dims)
            for column in _columns(self.bases[k], inner)
        ]

    def marginal(self, dims: Sequence[int]) -> Base:
        groups = [(self.bases[k], inner) for k, inner in self._groups(dims)]
        return _product([x if _is_whole(x, inner) else x.marginal(inner) for x, inner in groups])

    def conditional(self, dims: Sequence[int], values: Tensor) -> Base:
        groups = self._groups(dims)
        pieces = values.split([len(inner) for _, inner in groups], dim=-1)
        given = {k: (inner, x) for (k, inner), x in zip(groups, pieces, strict=True)}
        left = []
        for k, base in enumerate(self.bases):
            if k not in given:
                left.append(base)
            elif len(given[k][0]) < self.lengths[k]:
                left.append(base.conditional(*given[k]))
        return _product(left)

    def regression(self, dims: Sequence[int], like: Tensor) -> Tensor | None:
        given, others = dict(self._groups(dims)), dict(self._groups(self.others(dims)))
        found = {k: self.bases[k].regression(given[k], like) for k in others if k in given}
        if all(matrix is None for matrix in found.values()):
            return None
        rows = []
        for k, inner in others.items():  # factors are independent of each other
            size = len(_columns(self.bases[k], inner))
            blocks = [
                like.new_zeros((size, len(_columns(self.bases[j], own))))
                if j != k or (matrix := found[k]) is None
                else matrix
                for j, own in given.items()
            ]
            rows.append(concatenate(blocks).mT)
        return concatenate(rows).mT

    def partial(self, x: Tensor, observed: Tensor) -> Partial | None:
        masks = observed.split(self.lengths, dim=-1)
        partials, kept = [], []
        for (base, piece), mask in zip(self._pieces(x), masks, strict=True):
            partial = base.partial(piece, mask if base.event_dim else mask.squeeze(-1))
            if partial is None:
                return None
            partials.append(partial)
            kept.append(torch.ones_like(mask) if partial.mask is None else partial.mask)
        return Partial(
            Product([partial.base for partial in partials]),
            torch.cat([partial.statistic for partial in partials], dim=-1),
            torch.cat(kept, dim=-1),
            _sum([partial.log_density for partial in partials]),
        )

    def mass(self, like: Tensor) -> Tensor:
        mass = like.new_ones(())
        for base, rows in self._blocks(like):
            mass = mass * base.mass(rows)
        return mass

    def mean(self, like: Tensor) -> Tensor:
        return concatenate([base.mean(rows) for base, rows in self._blocks(like)])

    def covariance(self, like: Tensor) -> Tensor:
        return _block_diagonal([base.covariance(rows) for base, rows in self._blocks(like)])

    def dispersion(self, like: Tensor) -> Tensor:
        blocks = self._blocks(like)
        for base, _ in blocks:
            if not isinstance(base, FourierBase):
                raise NotImplementedError(f"{base} has no characteristic function in closed form.")
        return _block_diagonal([base.dispersion(rows) for base, rows in blocks])

    def characteristic(self, omega: Tensor) -> Complex:
        return _multiply([base.characteristic(rows) for base, rows in self._blocks(omega)])

    def characteristic_moment(self, omega: Tensor) -> tuple[Tensor, Tensor]:
        blocks = self._blocks(omega)
        values = [base.characteristic(rows) for base, rows in blocks]
        columns: list[Complex] = [
            (real.unsqueeze(-1), None if imag is None else imag.unsqueeze(-1))
            for real, imag in values
        ]
        reals, imags = [], []
        for k, (base, rows) in enumerate(blocks):
            slope, imag = base.characteristic_moment(rows)
            slope = torch.zeros_like(imag) if slope is None else slope
            real, imag = _multiply([(slope, imag), *columns[:k], *columns[k + 1 :]])
            assert imag is not None  # no slope is real
            reals.append(real)
            imags.append(imag)
        return concatenate(reals), concatenate(imags)

    deficit_cancels = False  # unless a factor's does

    def deficit(self, omega: Tensor) -> Complex:
        blocks = self._blocks(omega)
        masses = [base.mass(rows).unsqueeze(-1) for base, rows in blocks]
        return _deficit(masses, [base.deficit(rows) for base, rows in blocks])

    def pair_deficits(self, weight: Tensor) -> Pairs:
        blocks = self._blocks(weight)
        masses = [base.mass(rows)[..., None, None] for base, rows in blocks]
        pairs = [base.pair_deficits(rows) for base, rows in blocks]
        minus, plus = ([pair[k] for pair in pairs] for k in range(2))
        return _deficit(masses, minus), _deficit(masses, plus)

    def log_partition(self, eta: Tensor) -> Tensor:
        return _sum([base.log_partition(rows) for base, rows in self._blocks(eta)])

    def pair_log_partitions(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        terms = [base.pair_log_partitions(rows) for base, rows in self._blocks(weight)]
        return _sum([scale for scale, _ in terms]), _sum([pair for _, pair in terms])

    def member_moments(self, eta: Tensor) -> tuple[Tensor, Tensor]:
        moments = [base.member_moments(rows) for base, rows in self._blocks(eta)]
        mean = concatenate([mean for mean, _ in moments])
        return mean, _block_diagonal([covariance for _, covariance in moments])

    def __repr__(self) -> str:
        return f"Product({list(self.bases)})"


def _is_whole(base: Base, dims: list[int]) -> bool:
    # All coordinates of a factor, in their order: it needs no marginal law of its own.
    return not base.event_dim or dims == list(range(base.event_shape[0]))


def _columns(base: Base, dims: list[int]) -> list[int]:
    return list(range(base.num_statistics)) if _is_whole(base, dims) else base.columns(dims)


def _product(bases: list[Base]) -> Base:
    return bases[0] if len(bases) == 1 and bases[0].event_dim else Product(bases)


def _joint(gaussians: Sequence[Gaussian], like: Tensor) -> Gaussian:
    # The joint law of independent normal variables.
    loc = concatenate([base.mean(like) for base in gaussians])
    if all(base.scale_tril is None for base in gaussians):
        scale = concatenate([base.factor for base in gaussians])
        return Gaussian(loc, scale, validate_args=False)
    factors = [
        torch.diag_embed(base.factor) if base.scale_tril is None else base.factor
        for base in gaussians
    ]
    return Gaussian(loc, scale_tril=_block_diagonal(factors), validate_args=False)


def _sum(terms: Sequence[Tensor]) -> Tensor:
    return torch.stack(torch.broadcast_tensors(*terms)).sum(0)


def _multiply(factors: Sequence[Complex]) -> Complex:
    real, imag = factors[0]
    for a, b in factors[1:]:
        if b is None:
            real, imag = real * a, None if imag is None else imag * a
        elif imag is None:
            real, imag = real * a, real * b
        else:
            real, imag = real * a - imag * b, real * b + imag * a
    return real, imag


def _deficit(masses: Sequence[Tensor], deficits: Sequence[Complex]) -> Complex:
    # m n - (m - δ) (n - ε) = δ (n - ε) + m ε, one factor after the other.
    mass, (real, imag) = masses[0], deficits[0]
    for n, (a, b) in zip(masses[1:], deficits[1:], strict=True):
        real, imag = _multiply([(real, imag), (n - a, None if b is None else -b)])
        real = real + mass * a
        imag = imag if imag is None or b is None else imag + mass * b
        mass = mass * n
    return real, imag


def _block_diagonal(blocks: Sequence[Tensor]) -> Tensor:
    ends = list(accumulate(block.shape[-1] for block in blocks))
    padded = [
        torch.nn.functional.pad(block, (end - block.shape[-1], ends[-1] - end))
        for block, end in zip(blocks, ends, strict=True)
    ]
    return concatenate([rows.mT for rows in padded]).mT
