"""The default likelihood beside a spline flow and a mixture network: time and operations of a step.

256 rows, five contexts, float32, one thread, in seconds of this process. Steps take turns, in
another order each time, and ratios are medians over turns. The peers stand behind two layers of
128 SiLU, as the default does, and behind two layers of 128 ReLU, with which
``tests.perf.regression`` trains them. One step of the default is compiled as a whole, by
``torch.compile``. Then ``cdf`` and three quantiles of 10,000 rows. Run as
``python -m tests.perf.likelihood``.
"""

import random
import statistics
import time
from collections.abc import Callable

import pyro
import torch
import zuko
from torch import Tensor, nn

from pyro_snefy import conditional_snefy
from pyro_snefy.learning.stretches import Stretches
from tests.perf.operations import CONTEXT, ROWS, Step, operations, training_step
from tests.perf.regression import MixtureNetwork, Peer, SplineFlow

TURNS = 300


class _SmoothMixtureNetwork(MixtureNetwork):
    """The mixture network behind the hidden layers of the default."""

    def __init__(self, context_dim: int) -> None:
        super().__init__(context_dim)
        self.net[1], self.net[3] = nn.SiLU(), nn.SiLU()


class _SmoothSplineFlow(SplineFlow):
    """The spline flow behind the hidden layers of the default."""

    def __init__(self, context_dim: int) -> None:
        super().__init__(context_dim)
        hidden = {"hidden_features": (128, 128), "activation": nn.SiLU}
        self.flow = zuko.flows.NSF(1, context_dim, transforms=1, bins=8, **hidden)


def _peer(model: Peer, context: Tensor, y: Tensor) -> Step:
    return training_step(lambda: model.log_prob(y, context), list(model.parameters()))


def _ours(context: Tensor, y: Tensor, validation: bool = False, compiled: bool = False) -> Step:
    model = conditional_snefy((), CONTEXT)

    def log_prob() -> Tensor:
        return model.condition(context).log_prob(y)

    forward = torch.compile(log_prob, fullgraph=True) if compiled else log_prob
    step = training_step(forward, list(model.parameters()))

    def validated() -> None:
        with pyro.validation_enabled(validation):
            step()

    return validated


def _seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.distributions.Distribution.set_default_validate_args(False)
    context, y = torch.randn(ROWS, CONTEXT), torch.randn(ROWS)
    peers = {
        "flow, SiLU": _SmoothSplineFlow(CONTEXT),
        "mixture, SiLU": _SmoothMixtureNetwork(CONTEXT),
        "flow, ReLU": SplineFlow(CONTEXT),
        "mixture, ReLU": MixtureNetwork(CONTEXT),
    }
    steps = {name: _peer(model, context, y) for name, model in peers.items()}
    steps |= {
        "default": _ours(context, y),
        "default, validated": _ours(context, y, validation=True),
        "default, compiled": _ours(context, y, compiled=True),
    }
    counts = {name: operations(step).total() for name, step in steps.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(TURNS):
        for name in random.sample(list(steps), len(steps)):
            steps[name]()  # finds the caches as the step before left them
            times[name].append(_seconds(steps[name]))
    for name in steps:
        line = f"{name:20s}{1e3 * statistics.median(times[name]):7.2f} ms"
        for peer in peers:
            pairs = zip(times[name], times[peer], strict=True)
            line += f"{statistics.median(own / other for own, other in pairs):7.2f} x {peer}"
        print(f"{line}{counts[name]:6d} operations")
    many = torch.randn(10_000, CONTEXT)
    levels = torch.tensor([[0.05], [0.5], [0.95]])
    with torch.no_grad():
        likelihood = conditional_snefy((), CONTEXT)
        for when, stretches in (("", None), (", as after a fit", Stretches(0.65, 1.2, 0.6))):
            likelihood.stretches = stretches
            law = likelihood(many)
            cdf, quantiles = (
                _seconds(lambda: law.cdf(torch.randn(10_000))),  # noqa: B023, called at once
                _seconds(lambda: law.icdf(levels)),  # noqa: B023
            )
            print(f"10,000 rows{when}: cdf {cdf:.2f} s, three quantiles of each {quantiles:.2f} s")
        marginal = conditional_snefy(2, CONTEXT)(many[:1000]).marginal([0])
        cdf = _seconds(lambda: marginal.cdf(torch.randn(1000, 1)))
        median = _seconds(lambda: marginal.icdf(0.5))
        print(f"1,000 laws of pairs: cdf of a coordinate {cdf:.2f} s, medians {median:.2f} s")


if __name__ == "__main__":
    main()
