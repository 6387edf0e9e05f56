r"""Maximum likelihood by SVI, with minibatches, validation and early stopping."""

__all__ = ["History", "fit"]

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import pyro
import torch
from pyro.infer import Trace_ELBO
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from tqdm.auto import tqdm

from .parameters import check_sizes
from .point_process import fits_processes

# The share of steps in which the learning rate rises. Adam's estimates of the squared gradients are
# poor in the first steps.
_WARM_UP = 0.02
# The largest norm of the gradient of a mean log-likelihood. Longer gradients are scaled to this
# norm, so that one outlier cannot move the parameters far.
_CLIP = 10.0

_Rows = tuple[Tensor, Tensor | None]


@dataclass
class History:
    r"""The course of a fit.

    Arguments:
        train_nll: The mean negative log-likelihood of the training rows, averaged over each epoch.
        validation_nll: The mean negative log-likelihood of the validation rows, after each epoch.
            It is empty if there are no validation rows.
        best_epoch: The epoch whose parameters were kept, counted from 0.
        kept_start: Whether the parameters before the first epoch were better than after all
            epochs, and were kept instead.
        interrupted: Whether Ctrl-C ended the fit.

    Example:
        >>> History(train_nll=[1.5, 1.2], validation_nll=[1.6, 1.4], best_epoch=1).best_epoch
        1
    """

    train_nll: list[float] = field(default_factory=list)
    validation_nll: list[float] = field(default_factory=list)
    best_epoch: int | None = None
    interrupted: bool = False
    kept_start: bool = False

    def plot(self, ax: Any = None) -> Any:
        """Draws the curves with matplotlib, and returns the axes.

        Arguments:
            ax: The axes to draw in. If None, new ones.
        """
        if ax is None:
            import matplotlib.pyplot as plt

            _, ax = plt.subplots()
        ax.plot(range(1, len(self.train_nll) + 1), self.train_nll, label="train")
        if self.validation_nll:
            epochs = range(1, len(self.validation_nll) + 1)
            ax.plot(epochs, self.validation_nll, label="validation")
        if self.best_epoch is not None and not self.kept_start:
            ax.axvline(self.best_epoch + 1, ls=":", c="grey", label="kept")
        ax.set(xlabel="epoch", ylabel="negative log-likelihood (nats)")
        ax.legend(frameon=False)
        return ax


class _Likelihood(nn.Module):
    r"""A Pyro model of independent rows. Its ELBO is the mean log-likelihood of the rows."""

    def __init__(self, module: nn.Module, partial: bool) -> None:
        super().__init__()
        self.module, self.partial = module, partial

    def distribution(self, context: Tensor | None) -> Any:
        distribution = self.module() if context is None else self.module(context)
        if not self.partial or not distribution.event_shape:
            return distribution
        if not hasattr(distribution, "partially_observed"):
            raise ValueError(
                f"fit: expected x without NaN, because {type(distribution).__name__} has no method "
                "partially_observed, got NaN."
            )
        return distribution.partially_observed()

    def forward(self, x: Tensor, context: Tensor | None) -> None:
        distribution = self.distribution(context)
        with pyro.plate("rows", len(x), dim=-1), pyro.poutine.scale(scale=1 / len(x)):
            pyro.sample("x", distribution, obs=x)


class _NoLatents(nn.Module):
    r"""The guide of a model without latent variables."""

    def forward(self, x: Tensor, context: Tensor | None) -> None:
        pass


@fits_processes
def fit(
    module: nn.Module,
    x: Tensor,
    context: Tensor | None = None,
    *,
    max_epochs: int = 200,
    batch_size: int = 256,
    lr: float = 5e-3,
    validation: float = 0.1,
    patience: int = 30,
    progress: bool = True,
) -> History:
    r"""Fits a module by maximum likelihood.

    .. math:: \max_\theta \sum_i \log p_\theta(x_i | c_i)

    Optimisation is Pyro's SVI with Adam (Kingma and Ba, arXiv:1412.6980). The learning rate rises
    for 2 % of the steps, and then falls to zero along a cosine. Gradients with a norm above 10 are
    scaled down to 10. However the fit ends, the module has the parameters of its best epoch, or
    the parameters that it started from if no epoch is better.

    Arguments:
        module: A module that returns a distribution when it is called, with contexts if there are
            any: a :func:`~pyro_snefy.snefy`, a :func:`~pyro_snefy.conditional_snefy`, a
            :func:`~pyro_snefy.point_process`, or a module of your own, with transforms on top for
            example.
        x: The events, with shape :math:`(N, \text{event})`. NaN marks a coordinate that is not
            observed, if the distribution has a method ``partially_observed``.
        context: The contexts, with shape :math:`(N, \text{context\_dim})`.
        max_epochs: The number of passes over the data. The learning rate reaches zero after the
            last of them.
        batch_size: The number of rows in a step.
        lr: The highest learning rate. Families without a context learn well with up to 0.03, and
            large networks with about 0.003.
        validation: The share of rows, drawn at random, that are held out to choose the best epoch.
            With 0, the last epoch is kept unless the rows are less likely than at the start.
        patience: The fit stops after this many epochs without a better validation value.
        progress: Whether to show a progress bar.

    Returns:
        The history of the fit. After Ctrl-C, it ends with the epoch that was interrupted.

    Raises:
        FloatingPointError: If the loss is not finite. The module then has the best parameters
            so far.

    Example:
        >>> from pyro_snefy import fit, snefy
        >>> x = torch.randn(500, 2)
        >>> history = fit(snefy(2).initialize(x), x, max_epochs=3, progress=False)
        >>> len(history.validation_nll)
        3
    """
    _check(module, x, context, lr, validation)
    check_sizes("fit", max_epochs=max_epochs, batch_size=batch_size, patience=patience)
    max_epochs, batch_size, patience = int(max_epochs), int(batch_size), int(patience)
    x, context = x.detach(), None if context is None else context.detach()
    model = _Likelihood(module, partial=bool(x.isnan().any()))
    train, held_out = _split(x, context, validation)
    judges = train if held_out is None else held_out
    steps = -(-len(train[0]) // batch_size)
    total = steps * max_epochs
    parameters = [p for p in module.parameters() if p.requires_grad]
    fused = all(p.is_floating_point() for p in parameters)  # complex parameters cannot be fused
    optimizer = torch.optim.Adam(parameters, lr=lr, fused=fused)
    schedule = LambdaLR(optimizer, _Schedule(total))
    elbo = Trace_ELBO()(model, _NoLatents())
    history, was_training = History(), module.training

    def finish_epoch(losses: list[Tensor], epoch: int) -> None:
        # Losses are read once in an epoch, so that no step waits for the device.
        train_nll = torch.stack(losses)
        _check_finite(train_nll, f"step {{}} of epoch {epoch + 1}", lr)
        score = None
        if held_out is None:
            # No loss has been computed after the last step: check the parameters themselves.
            sizes = torch.stack([p.detach().abs().amax() for p in parameters])
            _check_finite(sizes.amax(), f"the parameters after epoch {epoch + 1}", lr)
        else:
            score = _evaluate(model, held_out, batch_size)
            _check_finite(score, f"validation after epoch {epoch + 1}", lr)
            history.validation_nll.append(score.item())
        history.train_nll.append(train_nll.mean().item())
        if best.offer(None if score is None else score.item()):
            history.best_epoch = epoch

    bar = tqdm(total=total, disable=not progress, unit="step", desc="fit")
    # Events are checked once, and validation is off in the steps. The parameters live in the
    # module: the scope leaves Pyro's parameter store as it was.
    with pyro.get_param_store().scope(), bar:
        _check_support(model, x, context, batch_size)
        with pyro.validation_enabled(False):
            losses: list[Tensor] = []
            best = _Best(module, _evaluate(model, judges, batch_size).item())
            try:
                for epoch in range(max_epochs):
                    module.train()
                    for rows in _batches(train, batch_size, shuffle=True):
                        optimizer.zero_grad()
                        loss = elbo(*rows)
                        loss.backward()
                        nn.utils.clip_grad_norm_(parameters, _CLIP)
                        optimizer.step()
                        schedule.step()
                        losses.append(loss.detach())
                        bar.update()
                    finish_epoch(losses, epoch)
                    losses = []
                    bar.set_postfix_str(_summary(history))
                    if best.waited >= patience:
                        break
            except KeyboardInterrupt:
                history.interrupted = True
                if losses:
                    finish_epoch(losses, len(history.train_nll))
            finally:
                best.restore()
                if held_out is None and history.best_epoch is not None:
                    best.offer_end(_evaluate(model, judges, batch_size).item())
                history.kept_start = best.values is best.first
                module.train(was_training)
    return history


class _Schedule:
    # A factor of the learning rate: min(1, (k + 1) / w) (1 + cos(πk / K)) / 2 at step k of K, with
    # a rise of w steps.

    def __init__(self, steps: int) -> None:
        self.steps, self.warm_up = steps, 1 + int(_WARM_UP * steps)

    def __call__(self, step: int) -> float:
        rise = min(1.0, (step + 1) / self.warm_up)
        return rise * (1 + math.cos(math.pi * min(1.0, step / self.steps))) / 2


class _Best:
    r"""A copy of the parameters and buffers of a module at its lowest score, the start included."""

    def __init__(self, module: nn.Module, score: float) -> None:
        self.tensors = [*module.parameters(), *module.buffers()]
        self.start = score if math.isfinite(score) else math.inf
        self.lowest, self.waited = math.inf, 0  # of the epochs: patience is not about the start
        self.values = self.first = self._copies()

    @torch.no_grad()
    def _copies(self) -> list[Tensor]:
        return [tensor.clone() for tensor in self.tensors]

    def offer(self, score: float | None) -> bool:
        """Whether a score is the lowest of the epochs so far, or None.

        The present values are kept if the score is lower than at the start, too.
        """
        if score is not None and score >= self.lowest:
            self.waited += 1
            return False
        self.lowest, self.waited = math.inf if score is None else score, 0
        if score is None or score < self.start:
            self.values = self._copies()
        return True

    def offer_end(self, score: float) -> None:
        """Goes back to the start if the score of the end is higher."""
        if not score <= self.start:
            self.values = self.first
            self.restore()

    @torch.no_grad()
    def restore(self) -> None:
        """Writes the best values back into the module."""
        for tensor, value in zip(self.tensors, self.values, strict=True):
            tensor.copy_(value)


def _batches(rows: _Rows, size: int, shuffle: bool = False) -> Iterator[_Rows]:
    x, context = rows
    if shuffle:
        pieces = torch.randperm(len(x), device=x.device).split(size)
        return ((x[i], None if context is None else context[i]) for i in pieces)
    contexts = repeat(None) if context is None else context.split(size)
    return zip(x.split(size), contexts, strict=False)


def _split(x: Tensor, context: Tensor | None, validation: float) -> tuple[_Rows, _Rows | None]:
    order = torch.randperm(len(x), device=x.device)
    held_out, rest = order.tensor_split([int(validation * len(x))])
    train, other = ((x[i], None if context is None else context[i]) for i in (rest, held_out))
    return train, other if len(held_out) else None


@torch.no_grad()
def _evaluate(model: _Likelihood, rows: _Rows, batch_size: int) -> Tensor:
    model.eval()
    total = [
        -model.distribution(context).log_prob(x).sum()
        for x, context in _batches(rows, 4 * batch_size)
    ]
    return torch.stack(total).sum() / len(rows[0])


def _summary(history: History) -> str:
    text = f"train {history.train_nll[-1]:.4f}"
    if history.validation_nll:
        text += f", validation {history.validation_nll[-1]:.4f}"
        text += f" (best {min(history.validation_nll):.4f})"
    return text


def _check_finite(values: Tensor, where: str, lr: float) -> None:
    finite = values.isfinite()
    if finite.all():
        return
    step = int(finite.int().argmin())
    value = values.reshape(-1)[step].item()
    raise FloatingPointError(
        f"fit: expected a finite loss, got {value} at {where.format(step + 1)}. The module has the "
        f"best parameters until then. Try a learning rate below {lr:g}, start from initialize(x), "
        "look for outliers in x, or use float64."
    )


@torch.no_grad()
def _check_support(model: _Likelihood, x: Tensor, context: Tensor | None, batch_size: int) -> None:
    model.eval()
    for k, (rows, given) in enumerate(_batches((x, context), 4 * batch_size)):
        distribution = model.distribution(given)
        if model.partial and not distribution.event_shape:
            raise ValueError(
                f"fit: expected x without NaN where events are scalars, got {int(x.isnan().sum())} "
                "NaN; leave these rows out."
            )
        if rows.shape[1:] != distribution.event_shape:
            expected = ", ".join(map(str, ("N", *distribution.event_shape)))
            raise ValueError(f"fit: expected x with shape ({expected}), got {tuple(x.shape)}.")
        inside = distribution.support.check(rows)
        if not inside.all():
            row = int(inside.int().argmin())
            raise ValueError(
                f"fit: expected x in the support {distribution.support} of the module, got "
                f"{rows[row]} in row {4 * batch_size * k + row}."
            )


def _check(
    module: nn.Module, x: Tensor, context: Tensor | None, lr: float, validation: float
) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(f"fit: expected module to be a torch.nn.Module, got {module!r}.")
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError(f"fit: expected a module with parameters to learn, got none in {module}.")
    for name, value in (("x", x), ("context", context)):
        if not (isinstance(value, Tensor) or (value is None and name == "context")):
            raise TypeError(f"fit: expected {name} to be a Tensor, got {value!r}.")
        if value is not None and value.dim() < 1:
            raise ValueError(f"fit: expected {name} with one row for each event, got shape ().")
    if len(x) and x.isnan().all():
        raise ValueError("fit: expected x with observed values, got NaN alone.")
    for name, bad in (
        ("x", x.isinf()),
        ("context", None if context is None else ~context.isfinite()),
    ):
        if bad is not None and bad.any():
            raise ValueError(
                f"fit: expected a finite {name}, got {int(bad.sum())} values that are not."
            )
    if context is not None and len(context) != len(x):
        raise ValueError(
            f"fit: expected one context for each row of x, got {len(context)} and {len(x)}."
        )
    try:
        inspect.signature(module.forward).bind(*(() if context is None else (context,)))
    except TypeError as error:
        kind = "a context" if context is None else "no context"
        raise TypeError(
            f"fit: expected {kind} for {type(module).__name__}, got "
            f"{'None' if context is None else tuple(context.shape)}: {error}."
        ) from None
    if not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"fit: expected a finite lr > 0, got {lr!r}.")
    if not 0 <= validation < 1:
        raise ValueError(f"fit: expected a validation share in [0, 1), got {validation!r}.")
    if int(validation * len(x)) >= len(x):
        raise ValueError(f"fit: expected rows to train on, got x with {len(x)} rows.")
    for name, part in module.named_modules():
        if isinstance(part, PyroModule) and part._pyro_samples:
            site = ".".join(filter(None, (name, next(iter(part._pyro_samples)))))
            raise ValueError(
                f"fit: expected a module without priors, got one for {site}; with priors, use "
                "SVI with an autoguide, or MCMC."
            )
