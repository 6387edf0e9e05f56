"""Joint densities of tables: autoregressive_snefy against flows and mixtures, at equal CPU time.

The columns of a table are standardised, or whitened by the triangular factor of their covariance,
by the training rows. The figures are mean log-densities of the test rows, in standardised units
for both. The peers are the neural spline flow with three transforms, the masked autoregressive flow
with five, and a mixture of 32 normal laws, all from zuko: Adam at 1e-3 (1e-2 for the mixture) with
2 % of warm-up and a cosine, in batches of 256, the best epoch on a tenth of the rows, gradients
clipped at 10. Ours is ``fit`` with as many epochs as the time allows. All of
``airfoil`` is used, where most columns have few values; of the other tables, columns with at least
100 values.
Densities of values that recur are unbounded: figures depend on how narrow a model gets, and compare
what each makes of them, not how well it knows a smooth density.
Run as ``python -m tests.perf.tables DATA``, where ``DATA`` is the folder with ``uci``.
Three seeds take 72 fits.
"""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyro
import torch
import zuko
from torch import Tensor, nn

from pyro_snefy import autoregressive_snefy, fit
from tests.perf.regression import load, random_split

VALUES = {"parkinsons": 100, "airfoil": 1, "skillcraft": 100}  # of a column, at least
BATCH, CLIP, WARM_UP = 256, 10.0, 0.02


def columns(data: Path, name: str) -> np.ndarray:
    """The columns of a table that have enough different values, the target included."""
    table = np.column_stack(load(data, name))
    return table[:, [len(np.unique(column)) >= VALUES[name] for column in table.T]]


def units(table: np.ndarray, train: np.ndarray, whiten: bool) -> tuple[np.ndarray, float]:
    """The table in standardised or white units, and the log-volume of white ones."""
    table = (table - table[train].mean(0)) / table[train].std(0)
    if not whiten:
        return table, 0.0
    covariance = np.cov(table[train].T) + 1e-7 * np.eye(table.shape[1])
    factor = np.linalg.cholesky(covariance)
    return np.linalg.solve(factor, table.T).T, float(np.log(np.diag(factor)).sum())


def train_peer(model: nn.Module, x: Tensor, seconds: float, lr: float) -> None:
    """Adam until the time is over. The rate depends on the time that is left."""
    held_out, rest = torch.randperm(len(x)).tensor_split([len(x) // 10])
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    best, state, start = math.inf, model.state_dict(), time.process_time()
    share = 0.0
    while share < 1:
        for index in rest[torch.randperm(len(rest))].split(BATCH):
            share = min(1.0, (time.process_time() - start) / seconds)
            rate = lr * min(1.0, share / WARM_UP + 0.01) * (1 + math.cos(math.pi * share)) / 2
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            (-model().log_prob(x[index]).mean()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
        with torch.no_grad():
            score = -float(model().log_prob(x[held_out]).mean())
        if score < best:
            best = score
            state = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state)


def flow(kind: Callable[..., nn.Module], transforms: int) -> Callable[[Tensor, float], nn.Module]:
    def run(x: Tensor, seconds: float) -> nn.Module:
        model = kind(x.shape[-1], transforms=transforms, hidden_features=(256, 256))
        train_peer(model, x, seconds, lr=1e-3)
        return model

    return run


def mixture(x: Tensor, seconds: float) -> nn.Module:
    model = zuko.mixtures.GMM(x.shape[-1], components=32)
    # Copies with noise, because clusters of a few rows have singular covariances.
    rows = x.clamp(-3, 3).repeat(30, 1)
    model.initialize(rows + 0.3 * torch.randn_like(rows), "kmeans")
    train_peer(model, x, seconds, lr=1e-2)
    return model


def ours(x: Tensor, seconds: float) -> nn.Module:
    start = time.process_time()
    fit(autoregressive_snefy(x.shape[-1]).initialize(x), x, max_epochs=2, progress=False)
    epochs = max(2, int(2 * seconds / (time.process_time() - start)))
    model = autoregressive_snefy(x.shape[-1]).initialize(x)
    fit(model, x, max_epochs=epochs, patience=epochs, progress=False)
    return model


MODELS: dict[str, Callable[[Tensor, float], nn.Module]] = {
    "NSF(3)": flow(zuko.flows.NSF, 3),
    "MAF(5)": flow(zuko.flows.MAF, 5),
    "mixture": mixture,
    "ours": ours,
}


def score(table: np.ndarray, label: str, whiten: bool, seed: int, seconds: float) -> float:
    """The mean log-density of the test rows of one split."""
    train, test = random_split(len(table), seed)
    rows, log_volume = units(table, train, whiten)
    x, y = (torch.tensor(rows[index]).float() for index in (train, test))
    pyro.set_rng_seed(seed)
    start = time.process_time()
    model = MODELS[label](x, seconds)
    spent = time.process_time() - start
    with torch.no_grad():
        value = model().log_prob(y).double() - log_volume
    print(
        f"{label:8s} {'white' if whiten else 'standardised':12s} seed {seed} {value.mean():8.3f} ± "
        f"{value.std() / math.sqrt(len(value)):.3f}, median {value.median():8.3f}, worst row "
        f"{value.min():9.1f}, {spent:5.1f} s",
        flush=True,
    )
    return float(value.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--tables", nargs="+", default=list(VALUES), choices=list(VALUES))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--seconds", type=float, default=30)
    arguments = parser.parse_args()
    for name in arguments.tables:
        table = columns(arguments.data, name)
        print(f"{name} {table.shape}")
        best = {
            label: [
                max(
                    score(table, label, whiten, seed, arguments.seconds) for whiten in (False, True)
                )
                for seed in arguments.seeds
            ]
            for label in arguments.models
        }
        for label, values in best.items():
            each = " ".join(f"{value:8.2f}" for value in values)
            print(f"  {label:8s} the better of the two, for each seed: {each}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
