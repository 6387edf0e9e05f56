"""`pyro.render_model` draws models with squared neural families."""

import shutil
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.inspect import get_model_relations
from torch import Tensor

from pyro_snefy import SNEFY, conditional_snefy
from tests.cases import KINDS, Case

# One case for each base, and intervals with kinks, which are sampled in another way.
CASES = [*{case.base_name: case for case in KINDS}.values(), Case("ReLU", "Interval")]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_dependencies(case: Case) -> None:
    """A family depends on the latents that its parameters and its base depend on."""
    torch.manual_seed(0)
    weight, bias, readout = case.parameters(n=8)

    def model() -> None:
        scale = pyro.sample("scale", dist.Normal(0.0, 1.0))
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        pyro.sample("other", dist.Normal(0.0, 1.0))
        base = case.base().map(lambda x: x + 0 * shift)
        with pyro.plate("rows", 3):
            law = SNEFY(weight, bias, readout * scale, activation=case.activation, base=base)
            pyro.sample("x", law)

    relations = get_model_relations(model)
    of_base = ["shift"] if list(case.base().tensors()) else []
    assert set(relations["sample_sample"]["x"]) == {"scale", *of_base}
    assert relations["sample_dist"]["x"] == "SNEFY"
    assert relations["plate_sample"] == {"rows": ["x"]}


def test_picture(tmp_path: Path) -> None:
    """A regression with a latent shift: an arrow from the shift to the observations, in a plate."""
    pytest.importorskip("graphviz", reason="needs the package graphviz, of the extra tutorials")
    likelihood = conditional_snefy((), context_dim=2)

    def model(x: Tensor, y: Tensor) -> None:
        pyro.module("likelihood", likelihood)
        shift = pyro.sample("shift", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x), subsample_size=4) as rows:
            pyro.sample("y", likelihood.condition(x[rows] + shift), obs=y[rows])

    graph = pyro.render_model(
        model, model_args=(torch.randn(9, 2), torch.randn(9)), render_distributions=True
    )
    assert "shift -> y" in graph.source
    assert "y ~ SNEFY" in graph.source
    assert "y [label=y fillcolor=gray" in graph.source  # observed
    assert "cluster_data" in graph.source
    if shutil.which("dot") is None:
        pytest.skip("needs the program dot, of Debian's package graphviz")
    picture = Path(graph.render(tmp_path / "model", format="svg"))
    assert "<svg" in picture.read_text()
