r"""A regression with a conditional squared neural family as its likelihood: ``make demo``.

The data have two branches that part and cross, with noise that grows: a mean with an error bar
cannot describe them. The model learns the whole conditional density by SVI.
"""

__all__: list[str] = []

import math
import time
from pathlib import Path

import pyro
import torch
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal

from .learning import ConditionalSNEFY, conditional_snefy, fit

FOLDER = Path("demo_output")
EPOCHS, ROWS = 20, 12_000


def truth(x: Tensor) -> MixtureSameFamily:
    """The distribution of the data: two branches, with weights and widths that depend on x."""
    upper, lower = torch.sin(1.5 * x) + 0.55 * (x + 3), torch.sin(1.5 * x) - 0.15 * (x + 3)
    share = torch.sigmoid(1.2 * torch.cos(2 * x))
    widths = torch.stack([0.08 + 0.07 * (x + 3), 0.25 - 0.03 * x], dim=-1)
    means = torch.stack([upper, lower], dim=-1)
    shares = Categorical(torch.stack([share, 1 - share], dim=-1))
    return MixtureSameFamily(shares, Normal(means, widths))


def draw(rows: int) -> tuple[Tensor, Tensor]:
    """Draws contexts, with shape (rows, 1), and responses, with shape (rows,)."""
    x = 6 * torch.rand(rows) - 3
    return x.unsqueeze(-1), truth(x).sample()


def train(x: Tensor, y: Tensor) -> ConditionalSNEFY:
    """Learns a likelihood: :func:`fit` is SVI with a plate of rows, minibatches and validation."""
    likelihood = conditional_snefy((), context_dim=1).initialize(y, x)
    fit(likelihood, y, x, max_epochs=EPOCHS)
    return likelihood


@torch.no_grad()
def grid(likelihood: ConditionalSNEFY, width: int = 400) -> tuple[Tensor, Tensor, Tensor]:
    """The grid of x and of y, and the predictive density on it, with shape (y, x)."""
    x, y = torch.linspace(-3, 3, width), torch.linspace(-3.2, 5.2, 2 * width)
    density = likelihood.condition(x.unsqueeze(-1)).log_prob(y.unsqueeze(-1)).exp()
    return x, y, density


def quantiles(y: Tensor, density: Tensor, levels: list[float]) -> Tensor:
    """Quantiles of the columns of a density on a grid."""
    cdf = density.cumsum(0) / density.sum(0)
    return torch.stack([y[(cdf < level).sum(0).clamp(max=len(y) - 1)] for level in levels])


def draw_pictures(likelihood: ConditionalSNEFY, x: Tensor, y: Tensor) -> list[Path]:
    """Saves the pictures, and returns their paths."""
    import matplotlib.pyplot as plt

    FOLDER.mkdir(exist_ok=True)
    wide, tall, density = grid(likelihood)
    extent = (-3.0, 3.0, float(tall[0]), float(tall[-1]))
    plt.style.use("dark_background")

    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.2), sharey=True)
    left.scatter(x[:2500, 0], y[:2500], s=3, c="#ffd166", alpha=0.5, lw=0)
    left.set_title("data")
    right.imshow(
        density.clamp(max=1.4).sqrt(), origin="lower", aspect="auto", extent=extent, cmap="magma"
    )
    levels = [0.05, 0.25, 0.5, 0.75, 0.95]
    for level, line in zip(levels, quantiles(tall, density, levels), strict=True):
        right.plot(wide, line, c="white", lw=1.6 if level == 0.5 else 0.7, alpha=0.85)
        right.annotate(f"{level:.0%}", (3.03, float(line[-1])), fontsize=8, annotation_clip=False)
    right.set_title("predictive density, with quantiles")
    for axes in (left, right):
        axes.set(xlabel="x", xlim=(-3, 3), ylim=(extent[2], extent[3]))
    left.set_ylabel("y")
    paths = [FOLDER / "density.png"]
    figure.tight_layout()
    figure.savefig(paths[-1], dpi=130)

    figure, panels = plt.subplots(1, 4, figsize=(13, 3.4), sharey=True)
    for axes, at in zip(panels, (-2.5, -0.8, 0.9, 2.6), strict=True):
        point = torch.tensor([[at]])
        with torch.no_grad():
            learnt = likelihood.condition(point).log_prob(tall.unsqueeze(-1)).exp()[:, 0]
            exact = truth(point[:, 0]).log_prob(tall.unsqueeze(-1)).exp()[:, 0]
        axes.fill_between(tall, exact, color="#118ab2", alpha=0.55, lw=0, label="truth")
        axes.plot(tall, learnt, c="#ffd166", lw=1.8, label="SNEFY")
        axes.set(title=f"p(y | x = {at})", xlabel="y")
    panels[0].legend(frameon=False)
    paths.append(FOLDER / "slices.png")
    figure.tight_layout()
    figure.savefig(paths[-1], dpi=130)
    return paths


def main() -> None:
    """Trains the model, compares it with the true density and a Gaussian, and draws it."""
    pyro.set_rng_seed(0)
    x, y = draw(ROWS)
    print(f"Learning p(y | x) from {ROWS:,} rows: two branches, noise that grows.")
    start = time.perf_counter()
    likelihood = train(x, y)
    seconds = time.perf_counter() - start
    x_test, y_test = draw(20_000)
    with torch.no_grad():
        reached = -likelihood.condition(x_test).log_prob(y_test).mean()
        attainable = -truth(x_test[:, 0]).log_prob(y_test).mean()
        # Powers up to 3⁷ are nearly dependent in float32.
        design, design_test = (z.double() ** torch.arange(8) for z in (x, x_test))
        curve = torch.linalg.lstsq(design, y.double().unsqueeze(-1)).solution
        residual = y_test - (design_test @ curve).squeeze(-1)
        gaussian = 0.5 * (1 + math.log(2 * math.pi) + residual.square().mean().log())
    print(f"Negative log-likelihood of 20,000 new rows, after {seconds:.0f} s of training:")
    print(f"  conditional SNEFY          {reached:.3f} nats")
    print(f"  attainable (the truth)     {attainable:.3f}")
    print(f"  mean with an error bar     {gaussian:.3f}  (polynomial of degree 7)")
    for path in draw_pictures(likelihood, x, y):
        print(f"Saved {path}")


if __name__ == "__main__":
    main()
