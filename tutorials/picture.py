"""Makes the picture of the README, which is written beside this file.

Three families of this package: one in the plane, one on the sphere, one as a likelihood.
"""

import math
from pathlib import Path

import matplotlib.pyplot as plt
import pyongc.data
import pyro
import torch
from matplotlib.colors import PowerNorm
from torch import Tensor

from pyro_snefy import conditional_snefy, fit, snefy
from pyro_snefy.activations import Exp, Snake
from pyro_snefy.bases import Gaussian, GaussianMixture, UniformSphere

COLOURS = "magma"


def moons(count: int) -> Tensor:
    """Two crescents."""
    angle, upper = math.pi * torch.rand(count), torch.rand(count) < 0.5
    x = torch.where(upper, angle.cos(), 1 - angle.cos())
    y = torch.where(upper, angle.sin(), 0.5 - angle.sin())
    return torch.stack([x, y], dim=-1) + 0.1 * torch.randn(count, 2)


def plane(ax: plt.Axes) -> None:
    """A density in the plane, and exact draws of it."""
    x = moons(20_000)
    base = GaussianMixture(torch.zeros(16), torch.zeros(16, 2), torch.ones(16, 2))
    model = snefy(base, hidden_dim=24, readout_dim=4).initialize(x)
    fit(model, x, max_epochs=15, batch_size=500, lr=2e-2, progress=False)
    family = model.requires_grad_(False)()
    u, v = torch.linspace(-1.6, 2.6, 300), torch.linspace(-1.1, 1.6, 200)
    grid = torch.stack(torch.meshgrid(u, v, indexing="xy"), dim=-1)
    ax.pcolormesh(u, v, family.log_prob(grid).exp(), cmap=COLOURS)
    draws = family.sample((400,))
    ax.plot(*draws.T, ".", ms=2.5, c="white", alpha=0.8)
    ax.set(title="ℝ²: a density, and exact draws", xticks=[], yticks=[])


def sphere(ax: plt.Axes) -> None:
    """The galaxies of the sky."""
    sky = pyongc.data.galaxies().dropna(subset=["ra", "dec"])
    ra, dec = (torch.tensor(sky[name].to_numpy(dtype="float64")) for name in ("ra", "dec"))
    x = torch.stack([dec.cos() * ra.cos(), dec.cos() * ra.sin(), dec.sin()], dim=-1).float()
    x = torch.nn.functional.normalize(x, dim=-1)
    model = snefy(UniformSphere(3), hidden_dim=30, readout_dim=30, activation=Exp()).initialize(x)
    fit(model, x, max_epochs=40, batch_size=500, lr=3e-2, progress=False)
    family = model.requires_grad_(False)()
    # Right ascension grows to the left, with 180 degrees in the middle.
    across, up = torch.linspace(-math.pi, math.pi, 361), torch.linspace(-1, 1, 181) * math.pi / 2
    a, b = torch.meshgrid(across, up, indexing="xy")
    points = torch.stack([-b.cos() * a.cos(), b.cos() * a.sin(), b.sin()], dim=-1)
    points = torch.nn.functional.normalize(points, dim=-1)
    shades = PowerNorm(0.5)  # what is faint should be seen
    ax.pcolormesh(a, b, family.log_prob(points).exp(), cmap=COLOURS, norm=shades)
    shown = x[torch.randperm(len(x))[:1500]]
    ax.plot(torch.atan2(shown[:, 1], -shown[:, 0]), shown[:, 2].asin(), ".", ms=1, c="white")
    ax.set(title=f"sphere: {len(x):,} galaxies", xticks=[], yticks=[])


def regression(ax: plt.Axes) -> None:
    """A likelihood with two branches, and its quantiles."""
    x = 4 * torch.rand(8000, 1) - 2
    branch = torch.where(torch.rand(8000) < 0.5, 1.0, -1.0)
    y = branch * (1 + x[:, 0].sin()) + (0.1 + 0.1 * x[:, 0].abs()) * torch.randn(8000)
    base = Gaussian(torch.tensor(0.0), torch.tensor(1.0), event_dim=0)
    model = conditional_snefy(base, 1, activation=Snake(1.0), hidden_dims=(64, 64))
    fit(model.initialize(y, x), y, x, max_epochs=40, lr=3e-3, progress=False)
    model.requires_grad_(False)
    u, v = torch.linspace(-2, 2, 200), torch.linspace(-3.2, 3.2, 300)
    family = model.condition(u.unsqueeze(-1))
    ax.pcolormesh(u, v, family.log_prob(v.unsqueeze(-1)).exp(), cmap=COLOURS)
    for q in (0.05, 0.95):
        ax.plot(u, family.icdf(torch.full((200,), q)), c="white", lw=0.8)
    ax.set(title="p(y | x), and 90 % intervals", xticks=[], yticks=[])


def main() -> None:
    pyro.set_rng_seed(0)
    torch.set_num_threads(1)
    figure = plt.figure(figsize=(12, 3.2), layout="constrained")
    plane(figure.add_subplot(131))
    sphere(figure.add_subplot(132, projection="mollweide"))
    regression(figure.add_subplot(133))
    figure.savefig(Path(__file__).with_name("picture.png"), dpi=110)


if __name__ == "__main__":
    main()
