r"""Diagonal matrices above a quadratic form: envelopes with a certificate."""

__all__ = ["log_majorizer"]

import math

import torch
from torch import Tensor

from ..numerics.forms import Form, Readout

# Sweeps of the ascent. The certificate holds after any number of them.
_SWEEPS = 200
# The ascent is run for at most this many forms of a batch.
_FORMS = 64
# Proposals above which the ascent pays. With 10, 50 and 200 waves it takes as long as 3,800, 4,600
# and 13,600 proposals on one thread, and saves about half of the proposals to come.
_ASCENT = 10_000
# Entries of grams that are held at once: few enough for a cache.
_CHUNK = 2**17
_TINY = 1e-300


def log_majorizer(form: Form, log_norm: Tensor, log_demand: Tensor | None = None) -> Tensor:
    r"""Finds :math:`\log D`, (B, n), for :math:`D \succeq M` with small :math:`\sum_i D_i K_{ii}`.

    For any positive :math:`s`, Gershgorin's theorem for :math:`s M s` gives
    :math:`D_i = \sum_j |M_{ij}| s_j / s_i`. With :math:`s = \sqrt{K}` it is the best of these
    bounds, and it is optimal if :math:`M` has rank one. For any :math:`M` the optimum is the dual
    of the semidefinite program

    .. math:: \max_X \sum_{ij} A_{ij} X_{ij}, \quad A = s M s, \quad X \succeq 0, \quad X_{ii} = 1.

    The factorisation :math:`X = R R^\top` of Burer and Monteiro (2003, Mathematical Programming
    95), with the ascent :math:`R \leftarrow A R`, rows normalised, approaches its solution. The
    diagonal of the row norms is scaled by the largest eigenvalue of
    :math:`D^{-1/2} A D^{-1/2}`, so that the bound holds however far the ascent came.

    Arguments:
        form: The form of the matrix :math:`M`, with or without one batch dimension.
        log_norm: The logarithms of :math:`K_{ii}`, with shape :math:`(B, n)`.
        log_demand: The logarithms of the draws asked for over :math:`Z`, with shape :math:`(B,)`.
            Gershgorin's bound is returned where it takes fewer proposals than the ascent is
            worth. None stands for any number of draws.
    """
    largest = log_norm.amax(-1, keepdim=True)
    # A member without mass has no scale of its own.
    log_scale = torch.where(largest > -torch.inf, log_norm - largest, 0.0) / 2
    # exp(-100) stands for smaller scales, so that quotients of scales are finite.
    scale = log_scale.clamp(min=-100.0).exp()
    bound = _row_sums(form, scale).clamp(min=_TINY).log() - scale.log()
    rank_one = isinstance(form, Readout) and form.matrix.shape[-2] == 1
    if rank_one or (form.matrix.dim() > 2 and len(form.matrix) > _FORMS):
        return bound
    total = (bound + log_norm).logsumexp(-1, keepdim=True)
    if log_demand is not None:
        log_proposals = (total.squeeze(-1) + log_demand).nan_to_num(nan=-torch.inf)  # no mass
        if float(log_proposals.exp().sum()) < _ASCENT:
            return bound
    gram = form.gram()
    if gram.dim() == 2:
        # One bound for all members, made for their mean.
        scale = scale.square().mean(0).sqrt()
    better = _optimal(gram, scale)
    return torch.where((better + log_norm).logsumexp(-1, keepdim=True) < total, better, bound)


def _row_sums(form: Form, scale: Tensor) -> Tensor:
    # The sums Σ_j |M_ij| s_j, (B, n), with the grams of a few members at a time.
    if form.matrix.dim() == 2:
        return scale @ form.gram().abs()
    count, n = len(form.matrix), scale.shape[-1]
    size = max(1, _CHUNK // n**2)
    columns = scale.unsqueeze(-1).expand(count, n, 1).split(size)
    grams = (type(form)(part).gram().abs() for part in form.matrix.split(size))
    return torch.cat([gram @ s for gram, s in zip(grams, columns, strict=True)]).squeeze(-1)


def _optimal(gram: Tensor, scale: Tensor) -> Tensor:
    # The certified log D of the ascent, with the shape of the scale.
    a = gram * scale.unsqueeze(-1) * scale.unsqueeze(-2)  # (*, n, n)
    trace = a.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True).clamp(min=_TINY)  # (*, 1)
    a = a / trace.unsqueeze(-1)
    n = a.shape[-1]
    # With √(2n) columns, local maxima are global ones in general (arXiv:1606.04970).
    columns = min(n, math.isqrt(2 * n) + 1)
    generator = torch.Generator(device=a.device).manual_seed(0)
    factor = torch.randn(
        (*a.shape[:-1], columns), dtype=a.dtype, device=a.device, generator=generator
    )
    for _ in range(_SWEEPS):
        factor = a @ torch.nn.functional.normalize(factor, dim=-1, eps=_TINY)
    norm = factor.norm(dim=-1).clamp(min=1e-12 / n)
    root = norm.rsqrt()
    excess = torch.linalg.eigvalsh(a * root.unsqueeze(-1) * root.unsqueeze(-2))[..., -1:]
    certified = norm * excess * (1 + 1e-10)  # eigenvalues have errors of eps
    return certified.log() - 2 * scale.log() + trace.log()
