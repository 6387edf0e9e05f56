r"""Scores of predictive laws of one coordinate."""

__all__ = ["crps"]

import torch
from torch import Tensor

from ..network import Network
from ..numerics.legendre import legendre
from ..numerics.linalg import broadcast_shapes
from .moments import check_finite
from .quantiles import coordinate
from .tabulated import NODES, Distributions, Table, in_events, tabulated


def crps(network: Network, dim: int, value: Tensor) -> Tensor:
    r"""The continuous ranked probability score :math:`\int (F(z) - 1\{z \geq y\})^2 dz`.

    Arguments:
        network: The network.
        dim: The coordinate.
        value: The events :math:`y`, with shape :math:`(*, \text{event})`.
    """
    check_finite(network.activation, network.base, 1, "the CRPS")
    dtype = torch.promote_types(value.dtype, network.weight.dtype)
    network = network.to(torch.float64)
    axis, y, stretch = coordinate(network, dim), value.double(), None
    if not in_events(network, dim):
        y = axis.to_latent(y)
        zero = torch.zeros_like(y)
        stretch = axis.from_latent(zero + 1) - axis.from_latent(zero)
    if network.base.event_dim:
        y = y.squeeze(-1)
        stretch = None if stretch is None else stretch.squeeze(-1)
    shape = broadcast_shapes(y.shape, network.batch_shape)
    table = tabulated(network, dim)
    y = y.expand(shape).reshape(-1, table.rows)  # (L, B)
    rows = torch.arange(table.rows, device=y.device)
    pieces = [
        _scores(table, table.distributions(index), y[:, index])
        for index in rows.split(table.at_once(table.panels_of_distributions))
    ]
    score = torch.cat(pieces, dim=-1).reshape(shape) if pieces else y.reshape(shape)
    return (score if stretch is None else score * stretch).to(dtype)


def _scores(table: Table, laws: Distributions, y: Tensor) -> Tensor:
    # The scores of values (L, R) under laws of rows (R,).
    edges, values = laws
    nodes, weights, transform = table.rule
    half = edges.diff(dim=-1) / 2
    below = (values.square() @ weights) * half  # (R, P)
    above = ((1 - values).square() @ weights) * half
    before = torch.nn.functional.pad(below.cumsum(-1), (1, 0))
    behind = torch.nn.functional.pad(above.flip(-1).cumsum(-1).flip(-1), (0, 1))
    inner = torch.minimum(torch.maximum(y, edges[:, 0]), edges[:, -1])
    place = torch.searchsorted(edges.detach().contiguous(), inner.detach().mT.contiguous())
    panel = (place - 1).clamp(0, values.shape[1] - 1)  # (R, L)
    series = (values @ transform).gather(1, panel.unsqueeze(-1).expand(-1, -1, NODES))
    low, width = edges.gather(-1, panel), 2 * half.gather(-1, panel)
    t = 2 * (inner.mT - low) / torch.where(width > 0, width, 1.0) - 1  # of y in its panel
    total = before.gather(-1, panel) + behind.gather(-1, panel + 1)
    for start, end, one in ((-torch.ones_like(t), t, 0.0), (t, torch.ones_like(t), 1.0)):
        size = ((end - start) / 2).unsqueeze(-1)
        points = start.unsqueeze(-1) + size * (nodes + 1)
        distribution = (legendre(points, NODES) @ series.unsqueeze(-1)).squeeze(-1)
        part = ((distribution - one).square() * weights * size).sum(-1)
        total = total + part * width / 2
    return total.mT + (y - inner).abs()
