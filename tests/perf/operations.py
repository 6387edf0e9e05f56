"""The number of operations of a training step, which is what a step with small tensors costs.

An operation is an ``aten`` event of the profiler that launches work, and that calls no other event
that launches work. Views, and questions about dtypes and shapes, launch no work. Allocations do.
``python -m tests.perf.operations`` prints the table.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyro
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from pyro_snefy import SNEFY, Bias, Head, LocationScale, ReadoutHead, conditional_snefy
from pyro_snefy.activations import Activation, Cos, Exp, ReLU, Snake
from pyro_snefy.bases import Base, Gaussian, GaussianMixture, UniformSphere

Step = Callable[[], None]

ROWS, CONTEXT = 256, 5

# Events that return a view of their input, and events that ask for a dtype or a shape.
_VIEWS = """
    _conj _neg_view _reshape_alias _unsafe_view adjoint alias as_strided as_strided_
    broadcast_tensors broadcast_to chunk conj contiguous detach detach_ diagonal dsplit expand
    expand_as flatten hsplit imag lift lift_fresh matrix_H mH mT meshgrid moveaxis movedim narrow
    numpy_T permute ravel real reshape reshape_as resolve_conj resolve_neg select slice split
    split_with_sizes squeeze squeeze_ swapaxes swapdims t tensor_split to transpose unbind
    unflatten unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_ view view_as
    view_as_complex view_as_real vsplit
"""
_QUESTIONS = """
    can_cast is_complex is_floating_point is_nonzero is_same_size promote_types result_type size
    stride sym_numel sym_size sym_stride
"""
FREE = frozenset(f"aten::{name}" for name in (_VIEWS + _QUESTIONS).split())


def operations(step: Step) -> Counter[str]:
    """The operations of a step by name. The step runs three times, and the last run counts."""
    step()
    step()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    events = profiler.events()
    assert events is not None
    return Counter(
        event.name for event in events if _works(event) and not any(map(_works, _below(event)))
    )


def _works(event: Any) -> bool:
    return event.name.startswith("aten::") and event.name not in FREE


def _below(event: Any) -> Iterator[Any]:
    for child in event.cpu_children:
        yield child
        yield from _below(child)


def training_step(log_prob: Callable[[], Tensor], parameters: list[Tensor]) -> Step:
    """Forward and backward of a mean negative log-likelihood, without an optimiser."""

    def step() -> None:
        for parameter in parameters:
            parameter.grad = None
        (-log_prob().mean()).backward()

    return step


def _default() -> Step:
    return _likelihood(conditional_snefy((), CONTEXT))


def _heads(*heads: Head) -> Step:
    base = Gaussian(torch.tensor(0.0), torch.tensor(1.0), event_dim=0)
    return _likelihood(conditional_snefy(base, CONTEXT, 32, 16, Snake(10.0), heads=heads))


def _likelihood(model: nn.Module) -> Step:
    context, y = torch.randn(ROWS, CONTEXT), torch.randn(ROWS)
    return training_step(lambda: model.condition(context).log_prob(y), list(model.parameters()))


def _linear_bias() -> Step:
    n, m = 32, 16
    base = Gaussian(torch.tensor(0.0), torch.tensor(1.0), event_dim=0)
    net = nn.Linear(CONTEXT, n)
    weight, readout = nn.Parameter(torch.randn(n, 1)), nn.Parameter(torch.randn(m, n) / n)
    context, y = torch.randn(ROWS, CONTEXT), torch.randn(ROWS)

    def log_prob() -> Tensor:
        return SNEFY(weight, net(context), readout, activation=Snake(10.0), base=base).log_prob(y)

    return training_step(log_prob, [*net.parameters(), weight, readout])


def _joint(
    activation: Activation, x: Tensor, base: Callable[[], Base], own: list[Tensor], missing: float
) -> Step:
    n, d = 50, x.shape[-1]
    weight, bias = nn.Parameter(torch.randn(n, d)), nn.Parameter(torch.randn(n))
    readout = nn.Parameter(torch.randn(1, n))
    x = torch.where(torch.rand(x.shape) < missing, torch.nan, x)

    def log_prob() -> Tensor:
        joint = SNEFY(weight, bias, readout, activation=activation, base=base())
        return (joint.partially_observed() if missing else joint).log_prob(x)

    return training_step(log_prob, [weight, bias, readout, *own])


def _on_gaussian(activation: Activation, d: int, missing: float = 0.0) -> Step:
    loc, scale = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.ones(d))
    x = torch.randn(ROWS, d)
    return _joint(activation, x, lambda: Gaussian(loc, scale), [loc, scale], missing)


def _on_mixture() -> Step:
    k = 8
    own = [torch.zeros(k), torch.randn(k, 2), torch.rand(k, 2) + 0.5]
    own = [nn.Parameter(x) for x in own]
    return _joint(Cos(), torch.randn(ROWS, 2), lambda: GaussianMixture(*own), own, 0.0)


def _on_sphere() -> Step:
    x = nn.functional.normalize(torch.randn(ROWS, 3), dim=-1)
    return _joint(Exp(), x, lambda: UniformSphere(3), [], 0.0)


PATHS: dict[str, Callable[[], Step]] = {
    "default likelihood": _default,
    "location and scale, bias, readout": lambda: _heads(LocationScale(), Bias(), ReadoutHead()),
    "bias": lambda: _heads(Bias()),
    "location and scale, bias": lambda: _heads(LocationScale(), Bias()),
    "location and scale, readout": lambda: _heads(LocationScale(), ReadoutHead()),
    "bias from a linear layer, n=32": _linear_bias,
    "joint Cos, Gaussian, d=2": lambda: _on_gaussian(Cos(), 2),
    "joint Cos, mixture of 8, d=2": _on_mixture,
    "joint Exp, sphere, d=3": _on_sphere,
    "joint ReLU, Gaussian, d=2": lambda: _on_gaussian(ReLU(), 2),
    "partially observed Cos, d=6": lambda: _on_gaussian(Cos(), 6, missing=0.3),
}


def count(path: str, validation: bool) -> int:
    """The number of operations of a training step, in float32 with 256 rows."""
    torch.manual_seed(0)
    with pyro.validation_enabled(validation):
        return operations(PATHS[path]()).total()


def table() -> str:
    """The counts of every path, without validation and with it."""
    lines = [f"{'operations of forward and backward':36s}{'plain':>8s}{'validated':>12s}"]
    for path in PATHS:
        plain, validated = count(path, False), count(path, True)
        lines.append(f"{path:36s}{plain:8d}{validated:12d}")
    return "\n".join(lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(table())
