r"""Diagonal matrices that majorise a quadratic form: envelopes with a certificate."""

__all__ = ["log_majorizer"]

import math

import torch
from torch import Tensor

from ..numerics.forms import Form, Readout

# Sweeps of the ascent; the certificate holds after any number of them.
_SWEEPS = 200
# Forms for which the better bound is worth its eigenvalues.
_FORMS = 64


def log_majorizer(form: Form, log_norm: Tensor) -> Tensor:
    r"""The logarithms of a diagonal :math:`D \succeq M` with small :math:`\sum_i D_i K_{ii}`.

    For any positive :math:`s`, Gershgorin's theorem for :math:`s M s` gives
    :math:`D_i = \sum_j |M_{ij}| s_j / s_i`, which is best with :math:`s = \sqrt{K}`, and optimal
    if :math:`M` has rank one. The optimum for any :math:`M` is the dual of

    .. math:: \max_X \sum_{ij} A_{ij} X_{ij}, \quad A = s M s, \quad X \succeq 0, \quad X_{ii} = 1,

    whose solution is approached by the ascent :math:`R \leftarrow A R`, rows normalised, with
    :math:`X = R R^\top`. Whatever that reaches, it is scaled by the largest eigenvalue of
    :math:`D^{-1/2} A D^{-1/2}`, so that the bound holds.

    Arguments:
        form: The form of the matrix :math:`M`, with or without one batch dimension.
        log_norm: The logarithms of :math:`K_{ii}`, with shape :math:`(B, n)`.

    Returns:
        :math:`\log D`, with shape :math:`(B, n)`.
    """
    gram = form.gram()
    # Neurons that hardly count get a scale that is no smaller, for the sake of the quotients.
    log_scale = log_norm / 2
    log_scale = log_scale.clamp(min=log_scale.amax(-1, keepdim=True) - 100.0)
    scale = (log_scale - log_scale.amax(-1, keepdim=True)).exp()
    row_sums = (gram.abs() @ scale.unsqueeze(-1)).squeeze(-1)
    bound = row_sums.clamp(min=_TINY).log() - scale.log()
    rank_one = isinstance(form, Readout) and form.matrix.shape[-2] == 1
    if rank_one or (gram.dim() > 2 and len(gram) > _FORMS):
        return bound
    if gram.dim() == 2:
        # One bound for all rows of a batch, made for what they are on average.
        scale = scale.square().mean(0).sqrt()
    better = _optimal(gram, scale)
    totals = [(x + log_norm).logsumexp(-1, keepdim=True) for x in (bound, better)]
    return torch.where(totals[1] < totals[0], better, bound)


def _optimal(gram: Tensor, scale: Tensor) -> Tensor:
    a = gram * scale.unsqueeze(-1) * scale.unsqueeze(-2)  # (*, n, n)
    n = a.shape[-1]
    a = a / a.diagonal(dim1=-2, dim2=-1).sum(-1).clamp(min=_TINY)[..., None, None]
    # Enough columns for the ascent to have no other maxima than the global ones, in general.
    columns = min(n, math.isqrt(2 * n) + 1)
    generator = torch.Generator(device=a.device).manual_seed(0)
    factor = torch.randn(
        (*a.shape[:-1], columns), dtype=a.dtype, device=a.device, generator=generator
    )
    norm = torch.ones_like(a[..., :1])
    for _ in range(_SWEEPS):
        factor = a @ torch.nn.functional.normalize(factor, dim=-1, eps=_TINY)
        norm = factor.norm(dim=-1)
    norm = norm.clamp(min=1e-12 / n)
    root = norm.rsqrt()
    excess = torch.linalg.eigvalsh(a * root.unsqueeze(-1) * root.unsqueeze(-2))[..., -1:]
    certified = norm * excess * (1 + 1e-10)
    return certified.log() - 2 * scale.log() + _log_trace(gram, scale)


def _log_trace(gram: Tensor, scale: Tensor) -> Tensor:
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    return (diagonal * scale.square()).sum(-1, keepdim=True).clamp(min=_TINY).log()


_TINY = 1e-300
