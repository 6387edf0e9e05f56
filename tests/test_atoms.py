"""Values that recur: narrow normal laws beside scalar families, and where modules find them."""

import copy
import math
import pickle
from pathlib import Path

import pytest
import torch
from scipy.stats import binomtest, kstest
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, Normal

from pyro_snefy import SNEFY, autoregressive_snefy, fit
from pyro_snefy.bases import Gaussian
from pyro_snefy.distributions import Autoregressive, WithAtoms

# Below this p-value a test of a sample fails. A right sampler fails once in 10,000 runs; the seeds
# are fixed.
FALSE_ALARM = 1e-4


def normal_family(loc: Tensor, scale: Tensor) -> SNEFY:
    """A normal law as a family: its only neuron is constant."""
    base = Gaussian(loc, scale, event_dim=0)
    one = torch.ones(1, 1, dtype=loc.dtype)
    return SNEFY(0 * one, 0 * one[0], one, base=base)


def pair() -> tuple[WithAtoms, MixtureSameFamily]:
    """A law with two atoms, and the same mixture of normal laws by torch, both in a batch of 3."""
    loc = torch.tensor([0.0, 1.0, -2.0], dtype=torch.float64)
    scale = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
    logits = torch.tensor([[0.0, 1.0, -1.0], [2.0, 0.0, -math.inf], [0.0, 0.0, 0.0]]).double()
    atoms = torch.tensor([-1.0, 2.0], dtype=torch.float64)
    widths = torch.tensor([0.01, 0.1], dtype=torch.float64)
    law = WithAtoms(normal_family(loc, scale), logits, atoms, widths)
    locs = torch.cat([loc.unsqueeze(-1), atoms.expand(3, 2)], -1)
    scales = torch.cat([scale.unsqueeze(-1), widths.expand(3, 2)], -1)
    return law, MixtureSameFamily(Categorical(logits=logits), Normal(locs, scales))


def inflated(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Three columns: normal, zero in 60 % of the rows and normal in the others, and normal."""
    x = torch.randn(count, 3, dtype=dtype)
    x[:, 1] = torch.where(torch.rand(count) < 0.6, 0.0, x[:, 1] + 2)
    x[:, 2] += x[:, 0] + x[:, 1]
    return x


def test_density_and_cdf() -> None:
    law, expected = pair()
    x = torch.linspace(-5, 5, 1001, dtype=torch.float64).unsqueeze(-1)
    torch.testing.assert_close(law.log_prob(x), expected.log_prob(x))
    torch.testing.assert_close(law.cdf(x), expected.cdf(x))


def test_sample() -> None:
    """A test of Kolmogorov and Smirnov of 4,000 values sees an error of 0.037 of a cdf."""
    law, expected = pair()
    torch.manual_seed(0)
    x = law.sample((4000,))
    assert x.shape == (4000, 3)
    for column in expected.cdf(x).unbind(-1):
        assert kstest(column.numpy(), "uniform").pvalue > FALSE_ALARM
    # The second atom of the second law does not occur.
    assert (x[:, 1] - 2).abs().lt(1e-4).sum() < 10


def test_gradients() -> None:
    loc = torch.zeros(2, dtype=torch.float64)
    logits = torch.tensor([0.3, -0.2], dtype=torch.float64, requires_grad=True)
    widths = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    atoms = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    x = torch.tensor([0.4, 3.0], dtype=torch.float64, requires_grad=True)

    def log_prob(*arguments: Tensor) -> Tensor:
        *rest, value = arguments
        return WithAtoms(normal_family(loc, loc + 1), *rest).log_prob(value)

    assert torch.autograd.gradcheck(log_prob, (logits, atoms, widths, x))


def test_absent_atoms_have_finite_gradients() -> None:
    logits = torch.tensor([0.0, -math.inf], requires_grad=True)
    family = normal_family(torch.tensor(0.0), torch.tensor(1.0))
    law = WithAtoms(family, logits, torch.zeros(1), torch.ones(1))
    x = torch.tensor(0.5, requires_grad=True)
    torch.testing.assert_close(law.log_prob(x), Normal(0.0, 1.0).log_prob(x))
    (by_logits, by_x) = torch.autograd.grad(law.log_prob(x), (logits, x))
    assert by_logits.isfinite().all()
    assert by_x.item() == pytest.approx(-0.5)


def test_shapes() -> None:
    law, _ = pair()
    assert (law.batch_shape, law.event_shape) == ((3,), ())
    wide = law.expand((4, 3))
    assert wide.sample((2,)).shape == (2, 4, 3)
    x = torch.randn(3, dtype=torch.float64)
    torch.testing.assert_close(wide.log_prob(x), law.log_prob(x).expand(4, 3))
    copied = pickle.loads(pickle.dumps(law))
    torch.testing.assert_close(copied.log_prob(x), law.log_prob(x))
    assert repr(law).startswith("WithAtoms(SNEFY(")


def test_atoms_are_found() -> None:
    torch.manual_seed(0)
    x = inflated(2000)
    module = autoregressive_snefy(3, hidden_dims=[8]).initialize(x)
    assert module.atoms.shape == (3, 1)
    share = (x[:, 1] == 0).float().mean()
    expected = torch.tensor([[1, 0], [1 - share, share], [1, 0]])
    torch.testing.assert_close(module.atom_logits.exp(), expected)
    # The column of the atom is standardised by itself; the last one is whitened by both others.
    scale = module.scale_tril
    assert scale[1].tolist() == pytest.approx([0, x[:, 1].std().item(), 0], rel=1e-5)
    assert scale[2].tolist() == pytest.approx([1, x[:, 1].std().item(), 1], rel=0.1)


@pytest.mark.parametrize("digits", [4, 3])
def test_rounded_numbers_are_no_atoms(digits: int) -> None:
    """The most frequent of 100,000 rounded normal numbers occurs about 4 or 40 times."""
    torch.manual_seed(0)
    x = torch.randn(100_000, 2).double().round(decimals=digits)
    assert autoregressive_snefy(2, hidden_dims=[8]).initialize(x).atoms.shape == (2, 0)


def test_narrow_peaks_are_found() -> None:
    """Thirds of numbers, rounded to integers: what the first column leaves has three values."""
    torch.manual_seed(0)
    third = (1000 * torch.randn(2000)).round()
    x = torch.stack([third, 3 * third + torch.randint(-1, 2, (2000,)), torch.randn(2000)], -1)
    x = x.double()
    module = autoregressive_snefy(3, hidden_dims=[8]).double().initialize(x)
    assert module.atoms.shape == (3, 3)
    assert module.atom_logits[::2, 1:].eq(-math.inf).all()
    # The three values have the variance 2/3, and each a third of the rows.
    step = 1 / math.sqrt(2 / 3)
    found = module.atoms[1].sort().values
    torch.testing.assert_close(found, torch.tensor([-step, 0, step]).double(), atol=0.05, rtol=0)
    shares = module.atom_logits[1, 1:].exp()
    torch.testing.assert_close(shares, torch.full((3,), 1 / 3).double(), atol=0.05, rtol=0)
    # The peaks follow the first column: without them, the start is a normal law.
    normal = torch.distributions.MultivariateNormal(x.mean(0), x.T.cov()).log_prob(x).mean()
    assert module().log_prob(x).mean() > normal + 1


def test_normal_columns_have_no_peaks() -> None:
    """Nor does a column with heavy tails, or one that has two smooth modes."""
    torch.manual_seed(0)
    student = torch.distributions.StudentT(3.0).sample((3000,))
    modes = torch.randn(3000) * 0.3 + torch.randint(2, (3000,)) * 2.0
    x = torch.stack([torch.randn(3000), student, modes], -1)
    assert autoregressive_snefy(3, hidden_dims=[8]).initialize(x).atoms.shape == (3, 0)


def test_constant_columns_are_no_atoms() -> None:
    x = torch.stack([torch.randn(100), torch.full((100,), 3.0)], -1)
    assert autoregressive_snefy(2, hidden_dims=[8]).initialize(x).atoms.shape == (2, 0)


def test_a_fit_finds_the_law() -> None:
    r"""The best mean log-density is known: :math:`0.6 \log \frac{0.6}{\tau\sqrt{2\pi}} + \ldots`"""
    torch.manual_seed(0)
    x, test = inflated(3000), inflated(4000)
    module = autoregressive_snefy(3, hidden_dims=[16]).initialize(x)
    fit(module, x, max_epochs=12, progress=False)
    width = 0.01 * module.scale_tril[1, 1].item()
    root = math.sqrt(2 * math.pi)
    normal = -math.log(root) - 0.5  # the mean log-density of a standard normal law
    best = 0.6 * math.log(0.6 / (width * root)) + 0.4 * (math.log(0.4) + normal) + 2 * normal
    with torch.no_grad():
        found = module().log_prob(test).mean().item()
    assert found == pytest.approx(best, abs=0.2)  # 4,000 test rows: ± 0.04
    torch.manual_seed(1)
    zeros = module().sample((2000,))[:, 1].abs().lt(5 * width).sum().item()
    # Smooth parts of factors have less than 0.02 of their mass within the width.
    assert binomtest(int(zeros), 2000, 0.6).proportion_ci(1 - FALSE_ALARM).low < 0.62
    assert binomtest(int(zeros), 2000, 0.6).proportion_ci(1 - FALSE_ALARM).high > 0.6


def test_missing_ends() -> None:
    torch.manual_seed(0)
    x = inflated(500)
    module = autoregressive_snefy(3, hidden_dims=[8]).initialize(x)
    law = module()
    assert isinstance(law, Autoregressive)
    terms = law.factors(x).log_prob(x)
    short = x.clone()
    short[:, 2] = torch.nan
    torch.testing.assert_close(law.log_prob(short), terms[:, :2].sum(-1))


def test_units() -> None:
    """The same data in other units have the same density, up to the Jacobian."""
    torch.manual_seed(0)
    x = inflated(800, torch.float64)
    shift, scale = torch.tensor([5.0, -3.0, 100.0]), torch.tensor([1e-3, 40.0, -7.0])
    values = []
    for y in (x, x * scale + shift):
        torch.manual_seed(1)
        module = autoregressive_snefy(3, hidden_dims=[8]).double().initialize(y)
        fit(module, y, max_epochs=3, progress=False)
        values.append(module().log_prob(y).mean().item())
    # A negative scale reflects a column: the network starts from another place.
    assert values[0] == pytest.approx(values[1] + scale.abs().log().sum().item(), abs=0.3)
    torch.manual_seed(1)
    module = autoregressive_snefy(3, hidden_dims=[8]).double().initialize(x * scale.abs() + shift)
    fit(module, x * scale.abs() + shift, max_epochs=3, progress=False)
    found = module().log_prob(x * scale.abs() + shift).mean().item()
    assert values[0] == pytest.approx(found + scale.abs().log().sum().item(), abs=1e-6)


def test_outliers_are_not_the_scale() -> None:
    torch.manual_seed(0)
    x = torch.randn(1000, 2)
    expected = autoregressive_snefy(2, hidden_dims=[8]).initialize(x[1:]).scale_tril
    x[0, 1] = 1e6
    found = autoregressive_snefy(2, hidden_dims=[8]).initialize(x)
    torch.testing.assert_close(found.scale_tril, expected)
    assert found().log_prob(x).isfinite().all()


def test_saving(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = inflated(500)
    module = autoregressive_snefy(3, hidden_dims=[8]).initialize(x)
    expected = module().log_prob(x)
    torch.save(module.state_dict(), tmp_path / "state.pt")
    other = autoregressive_snefy(3, hidden_dims=[8])
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    torch.testing.assert_close(other().log_prob(x), expected, rtol=0, atol=0)
    torch.testing.assert_close(copy.deepcopy(module)().log_prob(x), expected, rtol=0, atol=0)
    # And back to a module without atoms.
    smooth = autoregressive_snefy(3, hidden_dims=[8])
    other.load_state_dict(smooth.state_dict())
    torch.testing.assert_close(other().log_prob(x), smooth().log_prob(x), rtol=0, atol=0)


def test_context_and_default_device() -> None:
    torch.manual_seed(0)
    x, context = inflated(500), torch.randn(500, 2)
    module = autoregressive_snefy(3, 2, hidden_dims=[8])
    with torch.device("meta"):
        law = module.double().initialize(x.double(), context.double())(context.double())
        assert law.log_prob(x.double()).device.type == "cpu"
        assert law.sample().shape == (500, 3)
        assert law.sample().device.type == "cpu"
