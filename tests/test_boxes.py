"""Boxes that ``initialize`` finds for data with sharp edges, and what the family does with them."""

import math
from collections.abc import Callable

import pyro
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_snefy import fit, snefy
from pyro_snefy.activations import Activation, Cis, Cos, Exp, ReLU, Snake
from pyro_snefy.bases import Gaussian, SmoothBox, SmoothBoxMixture
from pyro_snefy.learning import JointSNEFY
from pyro_snefy.learning.boxes import _cells, box_mixture, prefer_boxes
from pyro_snefy.learning.parameters import FramedModule
from tests.perf.planes import LAWS

ROWS = 8000


@pytest.fixture(autouse=True)
def _seed() -> None:
    pyro.set_rng_seed(0)


def _checkerboard(count: int) -> Tensor:
    return LAWS["checkerboard"]().sample(count)


def _turned(count: int) -> Tensor:
    cos, sin = math.cos(0.5), math.sin(0.5)
    return _checkerboard(count) @ torch.tensor([[cos, -sin], [sin, cos]])


# Pieces: their shares, lower and upper corners.
Pieces = tuple[Tensor, Tensor, Tensor]


def _grid() -> Pieces:
    """Eight rectangles of a board with unequal lines, far from the origin, of several masses."""
    first, second = torch.tensor([0.0, 0.1, 0.35, 0.6, 1.0]), torch.tensor([0.0, 3, 5, 9, 10]) - 70
    cells = [(i, j) for i in range(4) for j in range(4) if (i + j) % 2 == 0]
    low = torch.stack([torch.stack([first[i], second[j]]) for i, j in cells])
    high = torch.stack([torch.stack([first[i + 1], second[j + 1]]) for i, j in cells])
    shares = torch.tensor([1.0, 2, 1, 3, 1, 2, 2, 1])
    return shares / shares.sum(), low, high


PIECES: dict[str, Callable[[], Pieces]] = {
    "board": _grid,
    "box": lambda: (torch.ones(1), torch.zeros(1, 3), torch.tensor([[1.0, 2.0, 0.5]])),
    "line": lambda: (
        torch.tensor([0.2, 0.5, 0.3]),
        torch.tensor([[0.0], [2.0], [2.5]]),
        torch.tensor([[1.0], [2.5], [5.5]]),
    ),
}


def _drawn(pieces: Pieces, count: int) -> tuple[Tensor, Tensor]:
    """Events and their log-densities."""
    shares, low, high = pieces
    index = torch.multinomial(shares, count, replacement=True)
    length = (high - low)[index]
    return low[index] + length * torch.rand_like(length), shares[index].log() - length.log().sum(-1)


@pytest.mark.parametrize("name", PIECES)
def test_pieces(name: str) -> None:
    pieces = PIECES[name]()
    x, _ = _drawn(pieces, ROWS)
    test, truth = _drawn(pieces, ROWS)
    d = x.shape[-1]
    model = snefy(d if d > 1 else ()).initialize(x if d > 1 else x.squeeze(-1))
    assert isinstance(model.base(), SmoothBoxMixture)
    found = model().log_prob(test if d > 1 else test.squeeze(-1))
    assert float((truth - found).mean().detach()) < 0.02


def test_checkerboard() -> None:
    x, test = _checkerboard(ROWS), _checkerboard(ROWS)
    model = snefy(2).initialize(x)
    assert isinstance(model.base(), SmoothBoxMixture)
    assert float(-math.log(32.0) - model().log_prob(test).mean().detach()) < 0.02
    # Eight cells whose corners are corners of squares.
    cells = [rows for rows in _cells(x) if len(rows) >= 40]
    assert len(cells) == 8
    corners = torch.stack([torch.stack([rows.amin(0), rows.amax(0)]) for rows in cells])
    assert bool(((corners / 2 - (corners / 2).round()).abs() < 0.01).all())


def test_box_and_normal_law() -> None:
    """Half of the rows in a box, half of them under a normal law that covers its corner."""
    law = torch.distributions.Normal(1.5, 0.7)

    def draw() -> Tensor:
        inside = torch.rand(ROWS, 1) < 0.5
        return torch.where(inside, 2 * torch.rand(ROWS, 2) - 1, law.sample((ROWS, 2)))

    x, test = draw(), draw()
    box = torch.where((test.abs() < 1).all(-1), 1 / 4, 0.0)
    truth = ((box + law.log_prob(test).sum(-1).exp()) / 2).log()
    model = snefy(2).initialize(x)
    assert isinstance(model.base(), SmoothBoxMixture)
    assert float((truth - model().log_prob(test)).mean().detach()) < 0.025


SMOOTH: dict[str, Callable[[int], Tensor]] = {
    "normal": lambda n: torch.randn(n, 2),
    "one normal": lambda n: torch.randn(n),
    "five normals": lambda n: torch.randn(n, 5) @ torch.randn(5, 5),
    "heavy tails": lambda n: torch.distributions.StudentT(3.0).sample((n, 2)),
    "moons": LAWS["moons"]().sample,
    "rings": LAWS["rings"]().sample,
    "turned board": _turned,  # no box has its edges
    "two values": lambda n: torch.randint(2, (n, 2)).float(),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_normal_laws_stay(name: str) -> None:
    x = SMOOTH[name](ROWS)
    model = snefy(x.shape[-1] if x.dim() > 1 else ()).initialize(x)
    assert not isinstance(model.base(), SmoothBoxMixture)


def test_activations_without_a_closed_form() -> None:
    model = snefy(2, hidden_dim=4, activation=ReLU()).initialize(_checkerboard(2000))
    assert not isinstance(model.base(), SmoothBoxMixture)


def test_few_rows() -> None:
    x = torch.rand(60, 2)
    normal = Gaussian(torch.zeros(2), torch.ones(2))
    assert prefer_boxes(normal, x, x) is normal
    assert prefer_boxes(normal, torch.rand(500, 2), x[:1]) is normal
    assert box_mixture(x, [x[:10]]) is None


# What a family over boxes does --------------------------------------------------------------------


def _model(activation: Activation) -> JointSNEFY:
    model = snefy(2, hidden_dim=6, activation=activation).initialize(3 * _checkerboard(3000) + 10)
    assert isinstance(model.base(), SmoothBoxMixture)
    return model


@pytest.mark.parametrize("activation", [Cos(), Snake(1.0), Cis(), Exp(0.5)], ids=str)
def test_fit_and_state(activation: Activation) -> None:
    """Edges are learnt, in units of their widths, and a state brings its boxes with it."""
    model, x = _model(activation), 3 * _checkerboard(1000) + 10
    assert isinstance(model.base, FramedModule)
    names = {name for name, _ in model.named_parameters()}
    assert {"base.logits", "base.raw_low", "base.raw_high", "base.raw_scale"} <= names
    before = model.base().low
    loss = -model().log_prob(x).mean()
    loss.backward()
    assert all(
        value.grad is not None and value.grad.isfinite().all() for value in model.parameters()
    )
    with torch.no_grad():
        model.base.raw_low += 0.5
    moved = before + 0.5 * model.base.frame_scale
    assert_close(model.base().low, moved)
    with torch.no_grad():
        model.base.raw_low -= 0.5
    fit(model, x, max_epochs=2, progress=False)
    other = snefy(2, hidden_dim=6, activation=activation)
    other.load_state_dict(model.state_dict())
    assert_close(other().log_prob(x), model().log_prob(x))
    # Another set of data finds another base.
    assert not isinstance(other.initialize(torch.randn(500, 2)).base(), SmoothBoxMixture)


def test_operations() -> None:
    """Draws, moments, marginals and gaps agree; what needs normal laws names the base."""
    law = _model(Cos()).double()()
    with torch.no_grad():
        x = law.sample((20_000,))
        error = x.std(0) / math.sqrt(len(x))
        assert bool(((x.mean(0) - law.mean).abs() < 5 * error).all())
        assert_close(x.T.cov(), law.covariance_matrix, rtol=0.05, atol=1.0)
        marginal = law.marginal([0])
        level = marginal.cdf(x[:500, :1])
        assert abs(float(level.mean()) - 0.5) < 5 * math.sqrt(1 / 12 / 500)
        pair = marginal.log_prob(x[:9, :1]) + law.conditional([0], x[:9, :1]).log_prob(x[:9, 1:])
        assert_close(pair, law.log_prob(x[:9]))
        gaps = x[:9].clone()
        gaps[:, 1] = torch.nan
        assert_close(law.partially_observed().log_prob(gaps), marginal.log_prob(x[:9, :1]))
    for name in ("observed", "posterior"):
        with pytest.raises(NotImplementedError, match="SmoothBoxMixture"):
            getattr(law, name)(torch.ones(2, dtype=torch.float64))
    with pytest.raises(NotImplementedError, match="SmoothBoxMixture"):
        law.interval_probability(torch.zeros(2).double(), torch.ones(2).double())


@pytest.mark.parametrize("scalar", [False, True])
def test_given_boxes(scalar: bool) -> None:
    """Boxes that a user gives take the place and the size of the data, whatever their units."""
    x = 50 + 7 * torch.rand(2000) if scalar else 50 + 7 * torch.rand(2000, 2)
    event = x.shape[1:]
    box = SmoothBox(torch.zeros(event), torch.ones(event), torch.ones(event), event_dim=len(event))
    places = torch.zeros(3, *event)
    boxes = SmoothBoxMixture(
        torch.zeros(3), places, places + 1, torch.ones_like(places), event_dim=len(event)
    )
    like = x[:1].reshape(1, -1)
    for base in (box, boxes):
        law = snefy(base, hidden_dim=4).initialize(x)().base
        assert_close(law.mean(like), x.mean(0).reshape(-1), rtol=0, atol=0.5)
        variance = law.covariance(like).diagonal()
        assert_close(variance, x.var(0).reshape(-1), rtol=0.2, atol=0.0)
