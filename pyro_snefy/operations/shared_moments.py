r"""Moments of many laws that share their neurons and their base.

.. math:: \int (x - c)^k \mu(x) \| V \sigma(W x + b) \|^2 dx = \operatorname{Tr}(V K_k V^\top),
    \quad K_k = \int (x - c)^k \phi(x) \phi(x)^\top \mu(dx), \quad \phi(x) = \sigma(W x + b)

The three matrices :math:`K_0, K_1, K_2` of waves are derivatives of one characteristic function,
those of bends on normal laws derivatives of their kernel. They are computed once for all readouts.
"""

__all__ = ["shared_moments"]

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import jvp

from ..activations import Cos, GaussianActivation, Sin
from ..bases import Base, FourierBase, Gaussian, GaussianMixture, Mixture, Product
from ..constraints import is_real
from ..kernels import kernel
from ..network import Network
from .jets import as_complex
from .shared_lines import with_shared_neurons

_NORMAL = (Gaussian, GaussianMixture)


def shared_moments(base: Base, network: Network) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    r"""The moments of a batch of laws on the real line, or None where they are not of this kind.

    Arguments:
        base: The base of the network.
        network: The network, in float64.

    Returns:
        The moments of order zero, :math:`(*)`, one, :math:`(*, 1)`, and two, :math:`(*, 1, 1)`,
        about a centre, and the centre, with shape :math:`(1,)`. They are not normalised.
    """
    several = isinstance(base, Mixture | Product) or base.num_statistics > 1
    if several or not isinstance(base, FourierBase) or not is_real(base.support):
        return None
    shared = with_shared_neurons(network)
    if shared is None:
        return None
    if isinstance(shared.activation, Cos | Sin):
        matrices = torch.cat(_matrices(base, shared), dim=-1)  # (n, 3 n)
    elif isinstance(shared.activation, GaussianActivation) and isinstance(base, _NORMAL):
        matrices = torch.cat(_normal_matrices(base, shared), dim=-1)
    else:
        return None
    readout = shared.form.matrix
    image = (readout @ matrices).unflatten(-1, (3, -1))  # (*, m, 3, n)
    zeroth, first, second = (image * readout.unsqueeze(-2)).sum((-3, -1)).unbind(-1)
    return zeroth, first[..., None], second[..., None, None], base.mean(shared.weight)


def _matrices(base: FourierBase, network: Network) -> list[Tensor]:
    weight, n = network.weight, network.width
    angle = network.bias + (weight * base.mean(weight)).sum(-1)
    phase = torch.polar(torch.ones_like(angle), angle)
    if isinstance(network.activation, Sin):
        phase = -1j * phase
    matrices = [torch.zeros_like(weight @ weight.mT)] * 3
    for sign, other in ((1, phase), (-1, phase.conj())):
        omega = (weight.unsqueeze(-2) + sign * weight.unsqueeze(-3)).reshape(n * n, 1)
        factor = phase.unsqueeze(-1) * other.unsqueeze(-2) / 2
        moments = (x.reshape(n, n) for x in _transforms(base, omega))
        matrices = [old + (factor * new).real for old, new in zip(matrices, moments, strict=True)]
    return matrices


def _normal_matrices(base: Gaussian | GaussianMixture, network: Network) -> list[Tensor]:
    r"""The matrices of bends under normal laws, by derivatives of a shift of the biases.

    .. math:: \int e^{\eta (x - c)} \phi_i \phi_j \, d\mathcal{N}(m, s^2)
        = e^{\eta (m - c) + \eta^2 s^2 / 2} K_{ij}(b + w s^2 \eta)
    """
    parts = base.gaussians if isinstance(base, GaussianMixture) else base
    weight, centre = network.weight, base.mean(network.weight)
    variance = parts.covariance(weight)[..., 0, 0]  # (K,)
    apart = (parts.mean(weight) - centre)[..., 0]
    neurons = kernel(network.activation, parts, weight)
    slope = variance.unsqueeze(-1) * weight.squeeze(-1)

    def tilted(eta: Tensor) -> Tensor:
        factor = (eta * apart + eta.square() * variance / 2).exp()
        return factor[..., None, None] * neurons.matrix(network.bias + eta * slope)[1]

    def derivative(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda eta: jvp(function, (eta,), (torch.ones_like(eta),))[1]

    first = derivative(tilted)
    zero = weight.new_zeros(())
    found = [function(zero) for function in (tilted, first, derivative(first))]
    if not isinstance(base, GaussianMixture):
        return found
    weights = base.log_weights().exp()[:, None, None]
    return [(weights * x).sum(0) for x in found]


def _transforms(base: FourierBase, omega: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # The integrals of (x - c)^k e^{iω(x - c)} for k = 0, 1, 2, complex, each (E,).
    moved = omega + torch.zeros_like(omega).requires_grad_()
    slope = as_complex(*base.characteristic_moment(moved)).squeeze(-1)
    parts = [
        torch.autograd.grad(
            part.sum(), moved, create_graph=True, retain_graph=True, materialize_grads=True
        )[0].squeeze(-1)
        for part in (slope.real, slope.imag)
    ]
    return as_complex(*base.characteristic(moved)), slope, torch.complex(parts[1], -parts[0])
