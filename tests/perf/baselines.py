"""What the measurements compare with: kernels in full for every row, as one would do it first."""

import math

import torch
from torch import Tensor


def log_numerator(neurons: Tensor, readout: Tensor) -> Tensor:
    """The logarithm of ‖V σ‖²."""
    return (neurons @ readout.mT).square().sum(-1).log()


def log_trace(kernel: Tensor, readout: Tensor) -> Tensor:
    """The logarithm of Tr(VᵀV K), for kernels of shape (*, n, n)."""
    return ((readout.mT @ readout) * kernel).sum((-2, -1)).log()


def snake(z: Tensor, a: float) -> Tensor:
    """The activation z + sin²(az)/a."""
    return z + (a * z).sin().square() / a


def snake_kernel(weight: Tensor, bias: Tensor, a: float) -> Tensor:
    """E[σ(w_i x + b_i) σ(w_j x + b_j)] of a snake under N(0, I), for biases of shape (*, n)."""
    square = weight @ weight.mT
    norm = square.diagonal()
    left, right = bias.unsqueeze(-1), bias.unsqueeze(-2)
    decay = torch.exp(-2 * a**2 * norm)
    minus = torch.exp(-2 * a**2 * (norm.unsqueeze(-1) + norm - 2 * square))
    plus = torch.exp(-2 * a**2 * (norm.unsqueeze(-1) + norm + 2 * square))
    mean_left, mean_right = left + 1 / (2 * a), right + 1 / (2 * a)
    waves = minus * torch.cos(2 * a * (left - right)) + plus * torch.cos(2 * a * (left + right))
    return (
        mean_left * mean_right
        + square
        - mean_left * decay * torch.cos(2 * a * right) / (2 * a)
        - mean_right * decay.unsqueeze(-1) * torch.cos(2 * a * left) / (2 * a)
        + square * decay * torch.sin(2 * a * right)
        + square * decay.unsqueeze(-1) * torch.sin(2 * a * left)
        + waves / (8 * a**2)
    )


def cos_kernel(weight: Tensor, bias: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    """E[cos(w_i·x + b_i) cos(w_j·x + b_j)] under one normal law with a diagonal covariance."""
    shifted = bias + weight @ loc
    white = weight * scale
    minus = (white.unsqueeze(-2) - white.unsqueeze(-3)).square().sum(-1)
    plus = (white.unsqueeze(-2) + white.unsqueeze(-3)).square().sum(-1)
    left, right = shifted.unsqueeze(-1), shifted.unsqueeze(-2)
    return (
        torch.exp(-minus / 2) * torch.cos(left - right)
        + torch.exp(-plus / 2) * torch.cos(left + right)
    ) / 2


def exp_sphere_kernel(weight: Tensor, bias: Tensor) -> Tensor:
    """E[exp(w_i·x + b_i) exp(w_j·x + b_j)] under the uniform law on the sphere in R³."""
    norm = (weight.unsqueeze(-2) + weight.unsqueeze(-3)).norm(dim=-1)
    return torch.exp(bias.unsqueeze(-1) + bias.unsqueeze(-2)) * torch.sinh(norm) / norm


LOG_SPHERE = math.log(4 * math.pi)
