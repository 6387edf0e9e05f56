"""Fits of real data and of long work: outliers, weights, arrays, checkpoints, loaders."""

import math
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
import torch.distributed
import torch.multiprocessing
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from pyro_snefy import conditional_snefy, fit, snefy
from pyro_snefy.activations import Cos
from pyro_snefy.bases import Gaussian, GaussianMixture
from pyro_snefy.learning import History
from pyro_snefy.learning.best import bounded_mean
from pyro_snefy.learning.joint import JointSNEFY
from pyro_snefy.learning.parallel import Processes
from pyro_snefy.learning.rows import Loader, Memory, Rows, random_order


class Normal(nn.Module):
    """A normal law with a location and a scale to learn."""

    def __init__(self) -> None:
        super().__init__()
        self.loc = nn.Parameter(torch.tensor(0.0))
        self.log_scale = nn.Parameter(torch.tensor(1.0))

    def forward(self) -> dist.Normal:
        return dist.Normal(self.loc, self.log_scale.exp())


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def _same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def _mixture() -> GaussianMixture:
    return GaussianMixture(torch.zeros(3), torch.randn(3, 2), torch.ones(3, 2))


def test_one_extreme_row_does_not_decide() -> None:
    """A narrower law is better for 199 rows, and worse by thousands of nats for one."""
    x, other = torch.randn(2000), torch.randn(200)
    other[17] = 400.0
    module = Normal()
    with pytest.warns(UserWarning, match="1 validation rows .* rows 17 of validation"):
        history = fit(module, x, validation=other, lr=0.05, max_epochs=30, progress=False)
    assert not history.kept_start
    assert 0.8 < module.log_scale.exp().item() < 1.2
    # The mean of all rows would have kept the start: a scale of e is the widest that was seen.
    wide, narrow = (dist.Normal(0.0, s).log_prob(other).mean() for s in (math.e, 1.0))
    assert narrow < wide - 100


def test_extreme_rows_are_named_by_their_place_in_x() -> None:
    x = torch.randn(1000)
    row = int(random_order(1000, x.device)[3])  # among the validation rows
    x[row] = 1e3
    with pytest.warns(UserWarning, match=f"rows {row} of x"):
        fit(Normal(), x, lr=0.05, max_epochs=20, progress=False)


def test_first_values_have_not_seen_the_validation_rows() -> None:
    """Rows that a fit holds out may be anything without a change of the mixture or the readout."""
    x = torch.cat([torch.randn(1000, 2), 5 + torch.randn(1000, 2)])[torch.randperm(2000)]
    other, rows = x.clone(), random_order(2000, x.device)[:200]
    other[rows] = other[rows].flip(0)  # a permutation has the same moments
    states = []
    for data in (x, other):
        pyro.set_rng_seed(0)
        states.append(_state(snefy(2, 6).initialize(data)))
    assert states[0]["base.frame_loc"].dim() == 2
    for name, value in states[0].items():
        torch.testing.assert_close(states[1][name], value, rtol=1e-3, atol=1e-3)


def test_rows_that_fit_are_never_cut() -> None:
    """The bound is not reached by normal, exponential or Cauchy rows under their own law."""
    for law in (dist.Normal(0.0, 1.0), dist.Exponential(1.0), dist.Cauchy(0.0, 1.0)):
        values = -law.log_prob(law.sample((5000,))).double()
        value, extremes = bounded_mean(values, None)
        assert value == pytest.approx(values.mean().item(), abs=1e-9)
        assert len(extremes) == 0
    # Many bad rows still count: 5 % at the bound of 20 nats above the median.
    values = torch.cat([torch.zeros(95), torch.full((5,), 1e6)]).double()
    assert bounded_mean(values, None).value == pytest.approx(0.05 * 20.0)
    assert bounded_mean(torch.tensor([1.0, 2.0, math.nan]).double(), None).value != 0.0
    assert math.isnan(bounded_mean(torch.tensor([1.0, 2.0, math.nan]).double(), None).value)


def test_weights_are_repetitions() -> None:
    """The weighted maximum likelihood of a normal law is its weighted moments."""
    x = torch.randn(400) + 3 * (torch.rand(400) < 0.5)
    weights = torch.where(x > 1.5, 3.0, 0.5)
    module = Normal()
    fit(
        module,
        x,
        weights=weights,
        validation=0.0,
        lr=0.05,
        max_epochs=400,
        batch_size=400,
        progress=False,
    )
    mean = (weights * x).sum() / weights.sum()
    scale = ((weights * (x - mean).square()).sum() / weights.sum()).sqrt()
    assert abs(mean - x.mean()) > 0.3
    assert module.loc.item() == pytest.approx(mean.item(), abs=0.01)
    assert module.log_scale.exp().item() == pytest.approx(scale.item(), abs=0.01)


def test_weights_judge_too() -> None:
    """Rows without a weight have no say in the best epoch."""
    x = torch.cat([torch.randn(300), 50 + torch.randn(300)])
    weights = torch.cat([torch.ones(300), torch.zeros(300)])
    module = Normal()
    history = fit(
        module, x, weights=weights, validation=0.3, lr=0.05, max_epochs=60, progress=False
    )
    assert not history.kept_start
    assert abs(module.loc.item()) < 0.3


def test_validation_may_be_data() -> None:
    x, context = torch.randn(300, 2), torch.randn(300, 3)
    other, given = torch.randn(100, 2), torch.randn(100, 3)
    module = snefy(2, 6).initialize(x)
    history = fit(module, x, validation=other, max_epochs=3, progress=False)
    best = min([*history.validation_nll, history.final_nll or math.inf])
    if not history.kept_start:
        assert -module().log_prob(other).mean().item() == pytest.approx(best, abs=1e-4)
    likelihood = conditional_snefy(2, 3, 6, 2, hidden_dims=(8,)).initialize(x, context)
    history = fit(likelihood, x, context, validation=(other, given), max_epochs=3, progress=False)
    assert -likelihood(given).log_prob(other).mean().item() <= history.validation_nll[0] + 1e-4


def test_validation_may_have_gaps() -> None:
    x = torch.randn(300, 2)
    other = torch.where(torch.rand(100, 2) < 0.3, torch.nan, torch.randn(100, 2))
    history = fit(snefy(2, 6).initialize(x), x, validation=other, max_epochs=2, progress=False)
    assert all(math.isfinite(value) for value in history.validation_nll)


def test_callback() -> None:
    seen: list[tuple[int, int, float]] = []

    def callback(epoch: int, history: History) -> None:
        seen.append((epoch, len(history.train_nll), history.train_nll[-1]))

    history = fit(Normal(), torch.randn(50), max_epochs=4, callback=callback, progress=False)
    assert [(k, n) for k, n, _ in seen] == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert [nll for *_, nll in seen] == history.train_nll


def test_plot_while_training() -> None:
    import matplotlib.pyplot as plt

    _, ax = plt.subplots()
    lengths = []

    def callback(epoch: int, history: History) -> None:
        ax.clear()
        lengths.append(len(history.plot(ax).get_lines()[0].get_ydata()))

    fit(Normal(), torch.randn(50), max_epochs=3, callback=callback, progress=False)
    assert lengths == [1, 2, 3]


def test_history_can_be_saved(tmp_path: Path) -> None:
    history = fit(snefy(2, 6), torch.randn(100, 2), max_epochs=3, progress=False)
    history.save(tmp_path / "history.json")
    assert History.load(tmp_path / "history.json") == history


def test_arrays_and_frames() -> None:
    """The same fit from a tensor, an array and a frame, in float64, into a module in float32."""
    pandas = pytest.importorskip("pandas")
    x = np.random.default_rng(0).normal(size=(300, 2))
    context = np.random.default_rng(1).normal(size=(300, 3))
    forms = [
        (torch.tensor(x), torch.tensor(context)),
        (x, context),
        (pandas.DataFrame(x), pandas.DataFrame(context, columns=list("abc"))),
        (torch.tensor(x).float(), torch.tensor(context).float()),
    ]
    states = []
    for events, contexts in forms:
        pyro.set_rng_seed(0)
        joint = snefy(2, 6).initialize(events)
        fit(joint, events, max_epochs=2, progress=False)
        likelihood = conditional_snefy(2, 3, 6, 2, hidden_dims=(8,))
        fit(likelihood, events, contexts, max_epochs=2, progress=False)
        assert all(
            p.dtype == torch.float32 for p in [*joint.parameters(), *likelihood.parameters()]
        )
        states.append({**_state(joint), **_state(likelihood)})
    assert all(_same(states[0], state) for state in states[1:])
    y = pandas.Series(x[:, 0])
    fit(Normal(), y, weights=np.ones(300), max_epochs=1, progress=False)


def test_arrays_with_negative_strides() -> None:
    """Columns of a frame in reverse order are a view that runs backwards."""
    table = np.random.default_rng(0).normal(size=(60, 2))
    results = []
    for x in (table[:, ::-1].copy(), table[:, ::-1]):
        pyro.set_rng_seed(0)
        module = snefy(2, 4)
        fit(module, x, max_epochs=1, progress=False)
        results.append(_state(module))
    assert _same(*results)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": np.array([["a", "b"]])}, "x with numbers alone"),
        ({"x": "text"}, "x to be a Tensor, an array or a data frame"),
        ({"context": [1.0]}, "context to be a Tensor"),
        ({"weights": torch.ones(4)}, r"weights with shape \(5,\), got \(4,\)"),
        ({"weights": torch.full((5,), -1.0)}, "weights >= 0"),
        ({"validation": torch.zeros(5, 3)}, r"x of validation with shape \(N, 2\)"),
        ({"validation": torch.full((5, 2), math.inf)}, "finite validation"),
        ({"validation": (torch.zeros(5, 2),) * 3}, "validation to be a share"),
        ({"x": DataLoader([1, 2]), "weights": torch.ones(2)}, "no weights beside a DataLoader"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "message",
)
def test_bad_arguments(arguments: dict, message: str) -> None:
    arguments = {"module": snefy(2, 4), "x": torch.randn(5, 2), "progress": False} | arguments
    with pytest.raises((TypeError, ValueError), match=message):
        fit(**arguments)


def test_data_far_from_the_units_of_a_module() -> None:
    x = 1e6 + 1e5 * torch.randn(200, 2)
    with pytest.warns(UserWarning, match="Call module.initialize") as record:
        fit(snefy(2, 6), x, max_epochs=1, progress=False)
    # The warning names the line of the caller.
    assert record[0].filename == __file__
    context = torch.randn(200, 3)
    with pytest.warns(UserWarning, match="Call module.initialize"):
        fit(conditional_snefy((), 3, 6, 2), x[:, 0], context, max_epochs=1, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(snefy(2, 6).initialize(x), x, max_epochs=1, progress=False)
        fit(snefy(2, 6), torch.randn(200, 2), max_epochs=1, progress=False)


def test_the_last_readout_is_judged() -> None:
    """It is kept only where the validation rows are more likely."""
    angle = 2 * math.pi * torch.rand(2000)
    x = torch.stack([angle.cos(), angle.sin()], -1) + 0.1 * torch.randn(2000, 2)
    module = JointSNEFY(Gaussian(torch.zeros(2), torch.ones(2)), 20, 4, Cos(), True)
    module.initialize(x)
    nn.init.normal_(module.readout)
    history = fit(module, x, validation=x[:500], lr=1e-3, max_epochs=2, progress=False)
    assert history.final_nll is not None
    assert history.final_nll < min(history.validation_nll)
    found = -module().log_prob(x[:500]).mean().item()
    assert found == pytest.approx(history.final_nll, abs=1e-4)


# A fit with everything that has a state: a mixture, Adam, batches in random order, dropout.
_SCRIPT = """
import sys, time, torch, pyro
from torch import nn
from pyro_snefy import fit, snefy
torch.set_num_threads(1)
pyro.set_rng_seed(0)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.family = snefy(2, 6)
        self.drop = nn.Dropout(0.2)
        self.shift = nn.Parameter(torch.zeros(2))
    def forward(self):
        law = self.family()
        shift = self.drop(self.shift)
        return pyro.distributions.TransformedDistribution(
            law, [pyro.distributions.transforms.AffineTransform(shift, 1.0, event_dim=1)]
        )

x = torch.randn(400, 2) * torch.tensor([1.0, 3.0])
model = Model()
model.family.initialize(x)
slow = float(sys.argv[2])
history = fit(model, x, max_epochs=8, lr=0.02, batch_size=64, progress=False,
              checkpoint=sys.argv[1] if sys.argv[1] else None,
              callback=lambda epoch, _: (print(epoch, flush=True), time.sleep(slow)))
torch.save({"state": model.state_dict(), "nll": history.validation_nll,
            "train": history.train_nll, "best": history.best_epoch}, sys.argv[3])
"""


def _python(*arguments: object) -> "subprocess.Popen[str]":
    folder = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-c", _SCRIPT, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_a_killed_fit_goes_on(tmp_path: Path) -> None:
    """SIGKILL in the middle of an epoch: the end is the same, bit for bit."""
    file = tmp_path / "fit.pt"
    whole = _python("", 0, tmp_path / "whole.pt")
    killed = _python(file, 0.4, tmp_path / "none.pt")
    assert killed.stdout is not None
    for line in killed.stdout:
        if line.strip() == "2":
            break
    time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (tmp_path / "none.pt").exists()
    assert file.exists()
    again = _python(file, 0, tmp_path / "again.pt")
    output, _ = again.communicate(timeout=120)
    whole.communicate(timeout=120)
    assert output.split()[0] in ("3", "4")  # it has gone on, and has not begun again
    one, other = torch.load(tmp_path / "whole.pt"), torch.load(tmp_path / "again.pt")
    assert _same(one["state"], other["state"])
    assert one["nll"] == other["nll"]
    assert one["train"] == other["train"]
    assert one["best"] == other["best"]
    assert len(one["nll"]) == 8


def test_a_checkpoint_of_another_fit(tmp_path: Path) -> None:
    x, file = torch.randn(100, 2), tmp_path / "fit.pt"
    module = snefy(2, 6).initialize(x)
    history = fit(module, x, max_epochs=2, checkpoint=file, progress=False)
    with pytest.raises(ValueError, match=r"max_epochs=3, got 2 in .*fit.pt; delete the file"):
        fit(snefy(2, 6), x, max_epochs=3, checkpoint=file, progress=False)
    with pytest.raises(ValueError, match="a fit with rows=90"):
        fit(snefy(2, 6), x[:90], max_epochs=2, checkpoint=file, progress=False)
    with pytest.raises(ValueError, match="a fit with data="):
        fit(snefy(2, 6), x + 1, max_epochs=2, checkpoint=file, progress=False)
    # A fit that has ended is not begun again.
    other = snefy(2, 6)
    calls: list[int] = []
    again = fit(
        other,
        x,
        max_epochs=2,
        checkpoint=file,
        progress=False,
        callback=lambda epoch, _: calls.append(epoch),
    )
    assert calls == []
    assert again == history
    assert _same(_state(module), _state(other))
    assert list(tmp_path.iterdir()) == [file]


PROCESSES, EPOCHS = 2, 4


def _family() -> tuple[JointSNEFY, Tensor]:
    pyro.set_rng_seed(0)
    x = torch.randn(301, 2, dtype=torch.float64) * torch.tensor([1.0, 4.0])
    return snefy(_mixture(), 8, 2).double().initialize(x), x


def _fit_family() -> tuple[JointSNEFY, History]:
    module, x = _family()
    weights = torch.linspace(0.5, 1.5, len(x))
    history = fit(module, x, weights=weights, max_epochs=EPOCHS, batch_size=50, lr=0.02)
    return module, history


def _work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    sys.stderr = open(f"{folder}/{rank}.err", "w")  # noqa: SIM115
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=PROCESSES
    )
    module, history = _fit_family()
    torch.save({"state": module.state_dict(), "nll": history.validation_nll}, f"{folder}/{rank}.pt")
    # Each process has rows, and first values, of its own.
    pyro.set_rng_seed(rank)
    x = torch.randn(400, 2) + 6 * torch.randint(2 + rank, (400, 1))
    other = snefy(2, 6).initialize(x)
    loader = DataLoader(TensorDataset(x), batch_size=100)
    fit(other, loader, max_epochs=2, lr=1e-2, progress=False)
    torch.save(other.state_dict(), f"{folder}/{rank}_loader.pt")
    torch.distributed.destroy_process_group()
    sys.stderr.flush()


def test_two_processes_end_where_one_ends(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_work, (str(tmp_path),), nprocs=PROCESSES)
    module, history = _fit_family()
    start, _ = _family()
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(PROCESSES)]
    assert _same(found[0]["state"], found[1]["state"])
    for name, value in module.state_dict().items():
        torch.testing.assert_close(found[0]["state"][name], value, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(found[0]["nll"], history.validation_nll, rtol=1e-7)
    loaders = [torch.load(tmp_path / f"{rank}_loader.pt") for rank in range(PROCESSES)]
    assert _same(*loaders)
    assert not torch.equal(start.weight, module.weight)
    assert "validation" in (tmp_path / "0.err").read_text()
    assert (tmp_path / "1.err").read_text() == ""


def _interrupt(epoch: int, _: History) -> None:
    if epoch == 1:
        raise RuntimeError("interrupted")


def _fit_with_checkpoint(file: Path, callback: Any = None) -> tuple[JointSNEFY, History]:
    module, x = _family()
    options = {"max_epochs": EPOCHS, "batch_size": 50, "lr": 0.02, "progress": False}
    return module, fit(module, x, checkpoint=file, callback=callback, **options)


def _go_on(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=PROCESSES,
        timeout=timedelta(seconds=60),
    )
    module, history = _fit_with_checkpoint(Path(folder) / f"machine_{rank}.pt")
    torch.save({"state": module.state_dict(), "nll": history.validation_nll}, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_machines_without_a_common_disk(tmp_path: Path) -> None:
    """Only the first process has the checkpoint of a fit that was interrupted; all go on from it.

    The fit was one process's own: the number of processes may change.
    """
    with pytest.raises(RuntimeError, match="interrupted"):
        _fit_with_checkpoint(tmp_path / "machine_0.pt", _interrupt)
    assert torch.load(tmp_path / "machine_0.pt")["epoch"] == 1
    torch.multiprocessing.spawn(_go_on, (str(tmp_path),), nprocs=PROCESSES)
    module, history = _fit_with_checkpoint(tmp_path / "whole.pt")
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(PROCESSES)]
    assert _same(found[0]["state"], found[1]["state"])
    for name, value in module.state_dict().items():
        torch.testing.assert_close(found[0]["state"][name], value, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(found[0]["nll"], history.validation_nll, rtol=1e-7)
    assert not (tmp_path / "machine_1.pt").exists()


_TORCHRUN = """
import sys, torch, pyro
from pyro_snefy import fit, snefy
torch.set_num_threads(1)
pyro.set_rng_seed(0)
x = torch.randn(200, 2)
module = snefy(2, 4).initialize(x)
fit(module, x, max_epochs=2, lr=0.01, batch_size=50, validation=0.0)
import os
torch.save(module.state_dict(), sys.argv[1] + "/" + os.environ["RANK"] + ".pt")
"""


def test_torchrun(tmp_path: Path) -> None:
    """Without a process group of the user's own."""
    (tmp_path / "script.py").write_text(_TORCHRUN)
    folder = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    environment["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run(
        [*command, str(tmp_path / "script.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert _same(torch.load(tmp_path / "0.pt"), torch.load(tmp_path / "1.pt"))
    assert done.stderr.count("0/8") == 1  # one bar


@pytest.mark.parametrize("context", [False, True])
def test_loaders(context: bool) -> None:
    """Batches from a loader find what rows in memory find."""
    contexts = torch.rand(3000, 1)
    x = 2 * contexts + 0.5 * torch.randn(3000, 1)
    tensors = (x, contexts) if context else (x,)
    loader = DataLoader(TensorDataset(*tensors), batch_size=250, shuffle=True)
    module = conditional_snefy(1, 1, 6, 2, hidden_dims=(16,)) if context else snefy(1, 6)
    module.initialize(*tensors)
    history = fit(module, loader, max_epochs=8, lr=1e-2, progress=False)
    assert len(history.validation_nll) == 8
    law = module(contexts) if context else module()
    truth = dist.Normal(2 * contexts, 0.5).to_event(1) if context else None
    expected = -law.log_prob(x).mean().item()
    assert min(history.validation_nll) == pytest.approx(expected, abs=0.2)
    if truth is not None:
        assert expected < -truth.log_prob(x).mean().item() + 0.1


def test_rows_that_a_loader_holds_out() -> None:
    """They are a tenth of the rows, and the same in any order: never rows to learn from."""
    x = torch.randn(5000, 2)
    source = Loader(
        DataLoader(TensorDataset(x), batch_size=100, shuffle=True), 0.1, torch.ones(()), Processes()
    )
    held_out = source.held_out()
    assert held_out is not None
    others = {tuple(row) for row in held_out.x.tolist()}
    every = {tuple(row) for row in x.tolist()}
    assert len(others) / 5000 == pytest.approx(0.1, abs=6 * math.sqrt(0.09 / 5000))
    for _ in range(2):
        rows = [tuple(row) for batch, _ in source.batches() for row in batch.x.tolist()]
        assert len(rows) == len(set(rows))
        assert set(rows) == every - others


class Large(Dataset):
    """Half a million rows that are made when they are asked for."""

    def __len__(self) -> int:
        return 500

    def __getitem__(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(1000, 10, generator=generator)


class Growth(nn.Module):
    """A normal law that notes the memory of its process."""

    def __init__(self) -> None:
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(10))
        self.sizes: list[float] = []

    def forward(self) -> object:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.sizes.append(pages * 4096 / 2**20)
        return dist.Normal(self.loc, 1.0).to_event(1)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_memory_does_not_grow_with_a_loader() -> None:
    """All rows would be 19 MB."""
    module = Growth()
    loader = DataLoader(Large(), batch_size=None)
    fit(module, loader, max_epochs=1, progress=False)
    assert len(module.sizes) > 500
    assert module.sizes[-1] - module.sizes[50] < 8


def test_loaders_without_a_length() -> None:
    class Stream(IterableDataset):
        def __iter__(self) -> Iterator[Tensor]:
            yield torch.randn(2)

    with pytest.raises(TypeError, match="DataLoader with a length"):
        fit(snefy(2, 4), DataLoader(Stream()), progress=False)
    with pytest.raises(TypeError, match="batch of type dict"):
        fit(snefy(2, 4), DataLoader([{"a": 1.0}]), progress=False)


def test_rows_of_one_pattern_meet() -> None:
    """Batches are a fair shuffle of all rows, and have about 13 of 64 patterns each."""
    bits = torch.arange(6400).unsqueeze(-1) >> torch.arange(6) & 1
    x = torch.where(bits == 1, torch.nan, torch.arange(6400.0).unsqueeze(-1))
    x = torch.cat([torch.arange(6400.0).unsqueeze(-1), x], dim=-1)
    source = Memory(Rows(x), 160, Processes())
    epochs = []
    for _ in range(2):
        batches = [rows.x for rows, _ in source.batches()]
        assert len(batches) == len(source) == 40
        numbers = torch.cat(batches)[:, 0]
        assert numbers.sort().values.equal(torch.arange(6400.0))
        counts = [len(batch.isnan().unique(dim=0)) for batch in batches]
        assert sum(counts) / len(counts) < 16
        # Five batches together are as fair as without patterns: their mean has its usual error.
        means = numbers.reshape(-1, 800).mean(-1)
        assert ((means - 3199.5).abs() < 5 * 6400 / (12 * 800) ** 0.5).all()
        epochs.append(numbers)
    assert not epochs[0].equal(epochs[1])
    # Complete rows, and rows with few patterns, are shuffled and no more.
    few = Memory(Rows(x[:, :4]), 200, Processes())
    torch.manual_seed(0)
    found = torch.cat([rows.x for rows, _ in few.batches()])[:, 0]
    torch.manual_seed(0)
    assert found.equal(torch.randperm(6400).float())
