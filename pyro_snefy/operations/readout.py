r"""The best readout for given neurons is a convex problem, with a certificate.

.. math:: \max_{M \succeq 0} \sum_i c_i \log \phi_i^\top M \phi_i - \log \mathrm{Tr}(M K),
    \quad \phi_i = \sigma(W t(x_i) + b), \quad \sum_i c_i = 1

The likelihood of events is concave in :math:`M` with :math:`\mathrm{Tr}(M K) = 1` (Tsuchida, Ong
and Sejdinovic, arXiv:2402.09608). It is the likelihood of quantum tomography, too. With
:math:`K = U \Lambda U^H` and :math:`\psi = \Lambda^{-1/2} U^H \phi`, the trace becomes the one of
the new matrix :math:`X`, and

.. math:: f(Y) - f(X) \leq \log \lambda_{\max}(R), \quad
    R = \sum_i \frac{c_i \psi_i \psi_i^H}{\psi_i^H X \psi_i}, \quad \mathrm{Tr} X = 1,

for every :math:`Y`, because the logarithm is concave. With a ridge :math:`\tau`, the trace is
:math:`\mathrm{Tr}(M (K + \tau \operatorname{diag} K))`: large readouts of features that nearly
cancel cost likelihood.
"""

__all__ = ["Solution", "best_readout", "judged_readout", "readout_gap"]

from typing import NamedTuple

import torch
from torch import Tensor

from ..network import Network
from ..numerics.linalg import affine, rows_matmul

# Directions of the kernel whose eigenvalues are below this part of the largest one are left out:
# rounding decides what they are.
_CUTOFF = 1e-10
_ENTRIES = 2**22  # of features that are held at once
_STEPS = 100  # of L-BFGS between two certificates
_STAGE = 5  # steps of L-BFGS between two judgements
_ROUNDS = 30  # of L-BFGS and of rows that are appended


class Solution(NamedTuple):
    r"""A readout, and the certificate that it is the best one.

    Arguments:
        readout: The readout, with shape :math:`(m, n)`, in float64 or complex128.
        gap: No readout of any number of rows is more likely by more than these nats per event.
    """

    readout: Tensor
    gap: Tensor


class _Whitening(NamedTuple):
    r"""The coordinates :math:`\psi = A^H \phi`, in which kernel and ridge are the identity."""

    log_norm: Tensor  # log √K_ii, (*, n)
    forward: Tensor  # ψ = forwardᴴ (φ / √K_ii), (*, n, n), with zeros for what is left out
    backward: Tensor  # φ / √K_ii = backward ψ, (*, n, n)


@torch.no_grad()
def readout_gap(network: Network, x: Tensor, weights: Tensor | None = None) -> Tensor:
    r"""The certificate :math:`\log \lambda_{\max}(R)` of a network, with its batch shape.

    Arguments:
        network: The network, with batch shape :math:`(*)`.
        x: Events of the support, with shape :math:`(N, *, \text{event})`.
        weights: The weight of each event, with shape :math:`(N,)`. None stands for equal weights.
    """
    network = network.to(torch.float64)
    whitening = _whiten(network)
    log_normalizer = network.log_normalizer()
    size = max(1, _ENTRIES // (network.width * network.batch_shape.numel()))
    shares = _shares(x, weights).split(size)
    total = whitening.forward.new_zeros(())
    for events, share in zip(x.double().split(size), shares, strict=True):
        rows, log_size = _features(network, whitening, events)
        log_square = network.log_square(events) - log_normalizer - 2 * log_size
        # A density of zero at an event leaves everything to gain.
        rows = rows * (-log_square / 2).exp().unsqueeze(-1)
        rows = rows * share.sqrt().reshape((-1,) + (1,) * (rows.dim() - 1))
        total = total + torch.einsum("n...i,n...j->...ij", rows, rows.conj())
    finite = total.isfinite().all(-1).all(-1)
    total = torch.where(finite[..., None, None], total, torch.zeros_like(total))
    gap = torch.linalg.eigvalsh(total)[..., -1].log().clamp(min=0)
    return torch.where(finite, gap, torch.inf).expand(network.batch_shape)


@torch.no_grad()
def best_readout(
    network: Network,
    x: Tensor,
    weights: Tensor | None,
    rows: int,
    tolerance: float,
    ridge: float = 0.0,
) -> Solution:
    r"""The most likely readout with a given number of rows.

    L-BFGS starts from the readout of the network. While the certificate is above the tolerance,
    the top eigenvector of :math:`R` becomes one more row, with a weight from a line search, and
    L-BFGS goes on. More rows than allowed are cut to the largest singular values in the end. The
    gap is infinite, and the readout as before, if every neuron is zero at some event.

    Arguments:
        network: The network, with a readout and without a batch shape.
        x: Events of the support, with shape :math:`(N, \text{event})`.
        weights: The weight of each event, with shape :math:`(N,)`. None stands for equal weights.
        rows: The number of rows of the readout.
        tolerance: The certificate to reach, in nats per event.
        ridge: The number :math:`\tau` of the penalty.
    """
    network = network.to(torch.float64)
    whitening = _whiten(network, ridge)
    problem = _Problem.of(network, whitening, x, weights)
    first = problem.start(_to_white(_complex_readout(network), whitening))
    if not problem.loss(first)[0].isfinite():
        return Solution(_complex_readout(network), problem.shares.new_full((), torch.inf))
    best = free = first = problem.climb(first)
    for _ in range(_ROUNDS):
        gap, direction = problem.certificate(free)
        if gap <= tolerance:
            break
        free = problem.climb(problem.append(free, direction))
    if free is not first:
        other = _cut(free, rows)
        if torch.linalg.matrix_rank(free, rtol=1e-6) > rows:
            other = problem.climb(other)
        best = min(first, other, key=lambda v: problem.loss(v)[0].item())
    gap, _ = problem.certificate(best)
    return Solution(_from_white(best, whitening), gap)


@torch.no_grad()
def judged_readout(
    network: Network, x: Tensor, weights: Tensor | None, judges: Tensor
) -> Tensor | None:
    r"""A readout that makes other events more likely, too, or None.

    L-BFGS climbs the likelihood of some events until the likelihood of the others falls.

    Arguments:
        network: The network, with a readout and without a batch shape.
        x: Events of the support, with shape :math:`(N, \text{event})`.
        weights: The weight of each event, with shape :math:`(N,)`. None stands for equal weights.
        judges: The other events.
    """
    network = network.to(torch.float64)
    whitening = _whiten(network)
    problem = _Problem.of(network, whitening, x, weights)
    judge = _Problem.of(network, whitening, judges, None)
    start = _to_white(_complex_readout(network), whitening)
    first = problem.start(start)
    if not (problem.loss(first)[0].isfinite() and judge.loss(first)[0].isfinite()):
        return None
    best = problem.climb(first, judge)
    if judge.loss(best)[0] < judge.loss(start)[0] or not judge.loss(start)[0].isfinite():
        return _from_white(best, whitening)
    return None


class _Problem:
    r"""The negative log-likelihood :math:`-\sum_i c_i \log \|V \psi_i\|^2 + \log \|V\|_F^2`."""

    def __init__(self, rows: Tensor, shares: Tensor) -> None:
        self.rows, self.shares = rows, shares  # ψ, (N, n), each up to a factor; c, (N,)

    @classmethod
    def of(
        cls, network: Network, whitening: _Whitening, x: Tensor, weights: Tensor | None
    ) -> "_Problem":
        """The problem of some events."""
        parts = [
            _features(network, whitening, events)[0]
            for events in x.double().split(max(1, _ENTRIES // network.width))
        ]
        return cls(torch.cat(parts), _shares(x, weights))

    def squares(self, readout: Tensor) -> Tensor:
        """‖Vψ_i‖² / ‖V‖²."""
        outputs = self.rows @ readout.mT
        return outputs.abs().square().sum(-1) / readout.abs().square().sum()

    def loss(self, readout: Tensor) -> tuple[Tensor, Tensor]:
        """The value, and its gradient 2V / ‖V‖² - 2 Σ c_i (Vψ_i) ψ_iᴴ / ‖Vψ_i‖²."""
        outputs = self.rows @ readout.mT  # (N, m)
        squares, size = outputs.abs().square().sum(-1), readout.abs().square().sum()
        scaled = outputs * (self.shares / squares).unsqueeze(-1)
        gradient = 2 * readout / size - 2 * scaled.mT @ self.rows.conj()
        return size.log() - (self.shares * squares.log()).sum(), gradient

    def start(self, readout: Tensor) -> Tensor:
        """A readout without zeros at events, if there is one: the given one, or a random one."""
        return readout if self.loss(readout)[0].isfinite() else torch.randn_like(readout)

    def climb(self, start: Tensor, judge: "_Problem | None" = None) -> Tensor:
        """A more likely readout of the same shape, by L-BFGS; with a judge, the best one for it."""
        readout = (start / torch.linalg.matrix_norm(start)).clone().requires_grad_()
        optimizer = torch.optim.LBFGS(
            [readout],
            max_iter=_STEPS if judge is None else _STAGE,
            history_size=20,
            tolerance_grad=1e-8,
            tolerance_change=1e-10,
            line_search_fn="strong_wolfe",
        )

        def closure() -> float:
            with torch.no_grad():
                value, readout.grad = self.loss(readout)
            return float(value)

        if judge is None:
            optimizer.step(closure)
            return readout.detach()
        best, lowest = start, judge.loss(start)[0]
        for _ in range(_STEPS // _STAGE):
            optimizer.step(closure)
            score = judge.loss(readout.detach())[0]
            if not score < lowest:
                break
            best, lowest = readout.detach().clone(), score
        return best

    def certificate(self, readout: Tensor) -> tuple[Tensor, Tensor]:
        r"""The gap :math:`\log \lambda_{\max}(R)`, and the eigenvector, as a row."""
        scaled = self.rows * (self.shares / self.squares(readout)).sqrt().unsqueeze(-1)
        values, vectors = torch.linalg.eigh(scaled.mT @ scaled.conj())
        return values[-1].log().clamp(min=0), vectors[:, -1:].mH

    def append(self, readout: Tensor, row: Tensor) -> Tensor:
        """[√(1-ε) V / ‖V‖; √ε u], with the most likely ε of a few."""
        old, new = self.squares(readout), self.squares(row)
        steps = torch.logspace(-8, -0.3, 40, dtype=old.dtype, device=old.device).unsqueeze(-1)
        gains = (self.shares * ((1 - steps) * old + steps * new).log()).sum(-1)
        step = steps[gains.argmax()]
        readout = readout / torch.linalg.matrix_norm(readout)
        return torch.cat([(1 - step).sqrt() * readout, step.sqrt() * row])


def _whiten(network: Network, ridge: float = 0.0) -> _Whitening:
    log_scale, kernel = network.kernel().matrix(network.bias)
    if network.activation.is_complex:
        n = network.width
        # ∫ φ_i φ_j* for φ = cos z + i sin z.
        real = kernel[..., :n, :n] + kernel[..., n:, n:]
        kernel = torch.complex(real, kernel[..., n:, :n] - kernel[..., :n, n:])
    diagonal = kernel.diagonal(dim1=-2, dim2=-1).real
    norm = torch.where(diagonal > 0, diagonal, 1.0).sqrt()
    kernel = kernel / (norm.unsqueeze(-1) * norm.unsqueeze(-2))
    values, vectors = torch.linalg.eigh(kernel)
    kept = values > _CUTOFF * values[..., -1:]
    root = torch.where(kept, values + ridge, 1.0).sqrt()
    forward = vectors * torch.where(kept, 1 / root, 0.0).unsqueeze(-2)
    backward = vectors * torch.where(kept, root, 0.0).unsqueeze(-2)
    log_norm = norm.log() if log_scale is None else norm.log() + log_scale
    return _Whitening(log_norm, forward, backward)


def _features(network: Network, whitening: _Whitening, x: Tensor) -> tuple[Tensor, Tensor]:
    # ψ e^{-s}, (N, *, n), and s, (N, *): no feature overflows.
    z = affine(network.base.statistic(x), network.weight, network.bias)
    log_scale, (value,), *_ = network.activation.features(z)
    log_scale = -whitening.log_norm if log_scale is None else log_scale - whitening.log_norm
    log_size = log_scale.amax(-1, keepdim=True)
    scale = (log_scale - log_size).exp()
    features = scale if value is None else scale * _complex(network, value)
    rows = rows_matmul(features, whitening.forward.conj())
    return rows, log_size.squeeze(-1).expand(rows.shape[:-1])


def _complex(network: Network, features: Tensor) -> Tensor:
    # From (cos z, sin z) to cos z + i sin z, where features are complex.
    if not network.activation.is_complex:
        return features
    return torch.complex(*features.split(network.width, dim=-1))


def _complex_readout(network: Network) -> Tensor:
    # The complex readout A + iB that the real matrix of (cos z, sin z) stands for.
    matrix = network.form.matrix
    if not network.activation.is_complex:
        return matrix
    real, imag = matrix[:, : network.width].chunk(2)
    return torch.complex(real, imag)


def _cut(readout: Tensor, rows: int) -> Tensor:
    # The nearest readout with a number of rows, by its largest singular values.
    if len(readout) <= rows:
        return readout
    _, sizes, vectors = torch.linalg.svd(readout, full_matrices=False)
    kept = (sizes.unsqueeze(-1) * vectors)[:rows]
    return torch.cat([kept, kept.new_zeros(rows - len(kept), kept.shape[-1])])


def _to_white(readout: Tensor, whitening: _Whitening) -> Tensor:
    # The readout of ψ that is a multiple of a readout of φ.
    exponent = readout.abs().amax(0).log() + whitening.log_norm
    scale = (whitening.log_norm - exponent.amax()).exp()
    return readout * scale @ whitening.backward


def _from_white(readout: Tensor, whitening: _Whitening) -> Tensor:
    # The readout of φ that is a multiple of a readout of ψ.
    scale = (whitening.log_norm.amin() - whitening.log_norm).exp()
    readout = readout @ whitening.forward.mH * scale
    return readout / torch.linalg.matrix_norm(readout)


def _shares(x: Tensor, weights: Tensor | None) -> Tensor:
    weights = x.new_ones(len(x), dtype=torch.float64) if weights is None else weights.double()
    return weights / weights.sum()
