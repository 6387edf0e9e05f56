r"""Maximum likelihood by SVI, with minibatches, validation, early stopping and checkpoints."""

__all__ = ["History", "fit"]

import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyro
import torch
from pyro.infer import Trace_ELBO
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from .best import Average, Best, Score, bounded_mean
from .checkpoints import random_state, read_checkpoint, set_random_state, write_checkpoint
from .defaults import AsinhNet
from .history import History
from .inputs import Inputs, inputs
from .parallel import Processes, processes
from .point_process import fits_processes
from .rows import Data, Loader, Memory, Rows, random_order
from .settings import FitDefaults, Settings, defaults_of, settings
from .statistics import spread

# The share of steps in which the learning rate rises. Adam's estimates of the squared gradients are
# poor in the first steps.
_WARM_UP = 0.02
# The largest norm of the gradient of a mean log-likelihood. Longer gradients are scaled to this
# norm, so that one outlier cannot move the parameters far.
_CLIP = 10.0
_DROPOUT = 0.1  # the most of it: few rows do not determine a network
_FAR = 10.0  # nats per coordinate above a normal law: a start that should have seen the data


class _Likelihood(nn.Module):
    r"""A Pyro model of independent rows. Its ELBO is a weighted log-likelihood of the rows."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def distribution(self, rows: Rows, partial: bool) -> Any:
        distribution = self.module() if rows.context is None else self.module(rows.context)
        if rows.noise is not None:
            return _observed(distribution, rows.noise)
        if not partial or not distribution.event_shape:
            return distribution
        if not hasattr(distribution, "partially_observed"):
            raise ValueError(
                f"fit: expected x without NaN, because {type(distribution).__name__} has no method "
                "partially_observed, got NaN."
            )
        return distribution.partially_observed()

    def forward(self, rows: Rows, partial: bool, scale: Tensor | float) -> None:
        distribution = self.distribution(rows, partial)
        with pyro.plate("rows", len(rows), dim=-1), pyro.poutine.scale(scale=scale):
            pyro.sample("x", distribution, obs=rows.x)


def _observed(distribution: Any, noise: Tensor) -> Any:
    if not hasattr(distribution, "observed"):
        raise ValueError(
            f"fit: expected no noise, because {type(distribution).__name__} has no method "
            "observed, got some."
        )
    return distribution.observed(noise)


class _NoLatents(nn.Module):
    r"""The guide of a model without latent variables."""

    def forward(self, *_: Any) -> None:
        pass


@fits_processes
def fit(
    module: nn.Module,
    x: Data | DataLoader,
    context: Data | None = None,
    *,
    weights: Data | None = None,
    noise: Data | None = None,
    max_epochs: int | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
    validation: float | Data | tuple[Data, ...] = 0.1,
    patience: int | None = None,
    progress: bool = True,
    callback: Callable[[int, History], object] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
) -> History:
    r"""Fits a module by maximum likelihood.

    .. math:: \max_\theta \sum_i w_i \log p_\theta(x_i | c_i)

    Optimisation is Pyro's SVI with Adam (Kingma and Ba, arXiv:1412.6980). The learning rate rises
    for 2 % of the steps, and then falls to zero along a cosine. Gradients with a norm above 10 are
    scaled down to 10. However the fit ends, the module has the parameters of its best epoch, or
    the parameters that it started from if no epoch is better. The default network of
    :func:`~pyro_snefy.conditional_snefy` learns from :math:`N` rows with a dropout of
    :math:`\min(0.1, 20 / N)`, or :math:`\min(0.1, 450 / N)` for vectors, and its densities then get
    the widths at which the validation rows are most likely, see
    :meth:`~pyro_snefy.learning.ConditionalSNEFY.recalibrate`. A family without a context gets the
    most likely readout, see :func:`~pyro_snefy.fit_readout`, if the validation rows are more likely
    with it.

    A module may state its own defaults: its attribute ``fit_defaults`` is then a
    :class:`~pyro_snefy.learning.FitDefaults`.

    Epochs are compared by the mean negative log-likelihood of the validation rows. A row that is
    more than :math:`\max(20, 10 (q_{90} - q_{50}))` nats above their median :math:`q_{50}` counts
    as if it were there, so that one extreme row cannot decide; a warning names such rows.

    With noise, rows are :math:`x_i = y_i + \varepsilon_i`, where the module is the law of
    :math:`y_i`, and :math:`\varepsilon_i` is normal with the given standard deviations. The
    likelihood of :math:`x_i` is a closed form, see :meth:`pyro_snefy.SNEFY.observed`, so that the
    module learns the law without the noise: a deconvolution.

    Under ``torchrun``, or in a default process group, every process is given the same rows, takes
    its share of each batch, and adds its gradient to the others. A ``DataLoader`` is each process's
    own, with as many batches as the others have. The first process shows progress, calls the
    callback, and reads and writes the checkpoint, so that machines need not share a disk.

    Arguments:
        module: A module that returns a distribution when it is called, with contexts if there are
            any: a :func:`~pyro_snefy.snefy`, a :func:`~pyro_snefy.conditional_snefy`, a
            :func:`~pyro_snefy.point_process`, or a module of your own, with transforms on top for
            example.
        x: The events, with shape :math:`(N, \text{event})`: a Tensor, a NumPy array or a pandas
            frame, in any floating point dtype. NaN marks a coordinate that is not observed, if the
            distribution has a method ``partially_observed``. Or a
            :class:`torch.utils.data.DataLoader` of batches ``x`` or ``(x, context)``.
        context: The contexts, with shape :math:`(N, \text{context\_dim})`.
        weights: The weight of each row, with shape :math:`(N,)`, up to a factor.
        noise: The standard deviations of the errors of measurement in ``x``, in the shape of ``x``,
            for distributions with a method ``observed``. Then ``x`` has no NaN.
        max_epochs: The number of passes over the data. The learning rate reaches zero after the
            last of them. None stands for 200, and for more if they have fewer than 3,000 steps; for
            60 to 400 with :func:`~pyro_snefy.snefy`, the more the fewer rows there are.
        batch_size: The number of rows in a step. None stands for 64 to 128 with
            :func:`~pyro_snefy.conditional_snefy` and for 256 to 1024 with
            :func:`~pyro_snefy.snefy`, the more the more rows there are, and for 256 elsewhere. It
            has no meaning with a ``DataLoader``.
        lr: The highest learning rate. None stands for 0.005, and for 0.02 with
            :func:`~pyro_snefy.snefy`. Large networks learn well with about 0.003.
        validation: The share of rows that are held out to choose the best epoch, or other events
            ``x``, ``(x, context)`` or ``(x, context, noise)`` for it. The rows are drawn at random,
            and are the same in each fit of as many rows:
            :meth:`~pyro_snefy.learning.JointSNEFY.initialize` fits the mixture that it finds, and
            the readout, to other rows. With 0, the last epoch is kept unless the rows are less
            likely than at the start.
        patience: The fit stops after this many epochs without a better validation value. None
            stands for 30, and for 15 % of the epochs where these are more than 200 by default.
        progress: Whether to show a progress bar.
        callback: A function of the epoch, counted from 0, and of the history, called after each
            epoch: ``lambda epoch, history: history.plot(ax)``, for example.
        checkpoint: A file that is written after each epoch. If the file exists, the fit goes on
            from it, and ends with the parameters that it would have ended with without a break.

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
    _check_module(module)
    like = next(p for p in module.parameters() if p.requires_grad)
    with processes(like.device) as group:
        data = inputs(module, x, context, weights, noise, validation, like)
        chosen = settings(module, data.size, max_epochs, batch_size, lr, patience)
        run = _Run(module, data, chosen, group, Path(checkpoint) if checkpoint else None)
        return run(progress and group.rank == 0, callback)


class _Run:
    r"""One fit: what it trains, on which batches, and what it has found so far."""

    def __init__(
        self,
        module: nn.Module,
        data: Inputs,
        settings: Settings,
        group: Processes,
        path: Path | None,
    ) -> None:
        self.module, self.settings, self.group, self.path = module, settings, group, path
        self.model = _Likelihood(module)
        self.numbers: Tensor | None = None  # of the validation rows among all rows
        self.expected = {**settings._asdict(), "rows": data.size, "data": data.checksum()}
        saved: Any = None if path is None else read_checkpoint(path, self.expected, group)
        if saved is not None:
            module.load_state_dict(saved["module"])
        if group.size > 1:
            # A state, because first values may differ in the size of a mixture, too.
            module.load_state_dict(group.share(module.state_dict()))
        self.held_out = data.held_out
        self.source: Memory | Loader
        if isinstance(data.rows, DataLoader):
            self.source = Loader(data.rows, data.share, data.like, group)
            self.rows = None
            self.partial = None  # each batch is looked at
            if self.held_out is None:
                self.held_out = group.share(self.source.held_out())
        else:
            self.rows = data.rows
            self.partial = bool(data.rows.x.isnan().any())
            order = random_order(len(data.rows), data.rows.x.device)
            held_out, rest = order.tensor_split([int(data.share * len(order))])
            if len(held_out):
                self.held_out, self.numbers = data.rows.take(held_out), held_out
            self.source = Memory(data.rows.take(rest).normalized(), settings.batch_size, group)
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        # Complex parameters cannot be fused.
        fused = all(p.is_floating_point() for p in self.parameters)
        self.optimizer = torch.optim.Adam(self.parameters, lr=settings.lr, fused=fused)
        total = len(self.source) * settings.max_epochs
        self.schedule = LambdaLR(self.optimizer, _Schedule(total))
        noisy = self.rows is not None and self.rows.noise is not None
        averaged = (FitDefaults() if noisy else defaults_of(module)).averaged
        self.average = Average(self.parameters, averaged)
        self.history, self.first_epoch = History(), 0
        self.saved = saved

    @property
    def judges(self) -> Rows | None:
        """The rows that compare the start and the end."""
        if self.held_out is not None or not isinstance(self.source, Memory):
            return self.held_out
        return self.source.rows

    def __call__(
        self, progress: bool, callback: Callable[[int, History], object] | None
    ) -> History:
        module, history, was_training = self.module, self.history, self.module.training
        total = len(self.source) * self.settings.max_epochs
        bar = tqdm(total=total, disable=not progress, unit="step", desc="fit")
        elbo = Trace_ELBO()(self.model, _NoLatents())
        # Events are checked once, and validation is off in the steps. The parameters live in the
        # module: the scope leaves Pyro's parameter store as it was.
        with pyro.get_param_store().scope(), bar, _dropout(module, len(self.rows or ())):
            self._check_support()
            with pyro.validation_enabled(False):
                best = self.best = Best(module, self._score())
                self._warn_of_start()
                if self.saved is not None:
                    self._resume()
                    bar.update(self.first_epoch * len(self.source))
                losses: list[Tensor] = []
                try:
                    for epoch in range(self.first_epoch, self.settings.max_epochs):
                        if best.waited >= self.settings.patience:
                            break
                        module.train()
                        for rows, count in self.source.batches():
                            losses.append(self._step(elbo, rows, count))
                            bar.update()
                        self._finish_epoch(losses, epoch)
                        losses = []
                        bar.set_postfix_str(_summary(history))
                        self._write(epoch)
                        if callback is not None and self.group.rank == 0:
                            callback(epoch, history)
                except KeyboardInterrupt:
                    history.interrupted = True
                    if losses:
                        self._finish_epoch(losses, len(history.train_nll))
                finally:
                    best.restore()
                    if self.held_out is None and history.best_epoch is not None:
                        best.offer_end(self._score())
                    history.kept_start = best.values is best.first
                    module.train(was_training)
                self._finish()
                module.train(was_training)
        self._warn_of_extremes()
        return history

    def _step(self, elbo: nn.Module, rows: Rows, count: int) -> Tensor:
        # The gradient of the mean over all rows of a batch, of which this process has some.
        self.optimizer.zero_grad()
        loss = self.parameters[0].new_zeros(()).real
        if len(rows):
            partial = bool(rows.x.isnan().any()) if self.partial is None else self.partial
            scale = 1 / count if rows.weights is None else rows.weights / count
            total = elbo(rows, partial, scale)
            total.backward()
            loss = total.detach()
        if self.group.size > 1:
            for p in self.parameters:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            self.group.add([p.grad for p in self.parameters if p.grad is not None])
        nn.utils.clip_grad_norm_(self.parameters, _CLIP)
        self.optimizer.step()
        self.schedule.step()
        self.average.update()
        return loss

    def _finish_epoch(self, losses: list[Tensor], epoch: int) -> None:
        # Losses are read once in an epoch, so that no step waits for the device.
        train_nll = torch.stack(losses)
        self.group.add([train_nll])
        _check_finite(train_nll, f"step {{}} of epoch {epoch + 1}", self.settings.lr)
        score = None
        if self.held_out is None:
            # No loss has been computed after the last step: check the parameters themselves.
            sizes = torch.stack([p.detach().abs().amax() for p in self.parameters])
            _check_finite(sizes.amax(), f"the parameters after epoch {epoch + 1}", self.settings.lr)
        self.history.train_nll.append(train_nll.mean().item())
        with self.average.applied():
            if self.held_out is not None:
                score = self._score()
                value = torch.tensor(score.value, device=self.parameters[0].device)
                _check_finite(value, f"validation after epoch {epoch + 1}", self.settings.lr)
                self.history.validation_nll.append(score.value)
            if self.best.offer(score):
                self.history.best_epoch = epoch

    @torch.no_grad()
    def _score(self) -> Score:
        rows = self.judges
        if rows is None:
            return Score(math.inf, torch.zeros(0, device=self.parameters[0].device))
        self.model.eval()
        size, group = 4 * self.settings.batch_size, self.group
        values = torch.zeros(len(rows), dtype=torch.float64, device=rows.x.device)
        partial = bool(self.partial) or bool(rows.x.isnan().any())
        for k, some in enumerate(rows.split(size)):
            if k % group.size == group.rank:
                log_prob = self.model.distribution(some, partial).log_prob(some.x)
                values[k * size : (k + 1) * size] = -log_prob
        group.add([values])
        return bounded_mean(values, rows.weights)

    def _write(self, epoch: int) -> None:
        if self.path is None or self.group.rank:
            return
        state = {
            "expected": self.expected,
            "epoch": epoch,
            "module": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "history": asdict(self.history),
            "best": self.best.state(),
            "average": self.average.values,
            "steps": self.average.steps,
            "random": random_state(),
        }
        write_checkpoint(self.path, state)

    def _resume(self) -> None:
        saved = self.saved
        self.first_epoch = saved["epoch"] + 1
        self.optimizer.load_state_dict(saved["optimizer"])
        self.schedule.load_state_dict(saved["schedule"])
        for name, value in saved["history"].items():
            setattr(self.history, name, value)
        self.best.set_state(saved["best"])
        self.average.values, self.average.steps = saved["average"], saved["steps"]
        set_random_state(saved["random"])

    def _finish(self) -> None:
        # A module may know how to become better at the end. Validation has to agree.
        finish, judges = getattr(self.module, "_finish_fit", None), self.held_out
        if finish is None or judges is None:
            return
        if self.history.kept_start or self.history.interrupted:
            return
        rows = self.source.rows if isinstance(self.source, Memory) else None
        start = Best(self.module, self._score())
        finish(rows, judges, lambda: self._score().value)
        score = self._score()
        if score.value < start.start:
            self.history.final_nll, self.best.extremes = score
        else:
            start.restore()

    def _check_support(self) -> None:
        if self.rows is not None:
            self._check_rows(self.rows, "x")
        if self.held_out is not None and self.numbers is None:
            self._check_rows(self.held_out, "x of validation")

    @torch.no_grad()
    def _check_rows(self, rows: Rows, name: str) -> None:
        self.model.eval()
        x, size = rows.x, 4 * self.settings.batch_size
        partial = bool(x.isnan().any())
        for k, some in enumerate(rows.split(size)):
            distribution = self.model.distribution(some, partial)
            if partial and not distribution.event_shape:
                raise ValueError(
                    f"fit: expected {name} without NaN where events are scalars, got "
                    f"{int(x.isnan().sum())} NaN; leave these rows out."
                )
            if some.x.shape[1:] != distribution.event_shape:
                expected = ", ".join(map(str, ("N", *distribution.event_shape)))
                raise ValueError(
                    f"fit: expected {name} with shape ({expected}), got {tuple(x.shape)}."
                )
            inside = distribution.support.check(some.x)
            if not inside.all():
                row = int(inside.int().argmin())
                raise ValueError(
                    f"fit: expected {name} in the support {distribution.support} of the module, "
                    f"got {some.x[row]} in row {size * k + row}."
                )

    def _warn_of_start(self) -> None:
        # A start that is far above a normal law with the moments of the data has not seen them.
        judges = self.judges
        if self.saved is not None or judges is None or not hasattr(self.module, "initialize"):
            return
        x = judges.complete().x.double().reshape(-1, max(1, judges.x[0].numel()))
        if len(x) < 2:
            return
        normal = (spread(x).log() + 0.5 * math.log(2 * math.pi * math.e)).sum().item()
        if self.best.start > normal + _FAR * x.shape[-1]:
            warnings.warn(
                f"fit: the module starts at a negative log-likelihood of {self.best.start:.4g} per "
                f"row, where a normal law has {normal:.4g}. Call module.initialize(...) with the "
                "data first.",
                stacklevel=5,
            )

    def _warn_of_extremes(self) -> None:
        values, judges = self.best.extremes, self.held_out
        if judges is None or not len(values) or self.group.rank:
            return
        numbers = values if self.numbers is None else self.numbers[values]
        which = "validation" if self.numbers is None else "x"
        some = ", ".join(map(str, numbers[:10].tolist())) + (", ..." if len(numbers) > 10 else "")
        warnings.warn(
            f"fit: {len(numbers)} validation rows are so unlikely that they count as less unlikely "
            f"ones: rows {some} of {which}. Look whether they are errors, or use a base with "
            "heavier tails.",
            stacklevel=5,
        )


@contextmanager
def _dropout(module: nn.Module, count: int) -> Iterator[None]:
    """The default networks in a module learn from so many rows for a while, 0 if not known."""
    nets = [part for part in module.modules() if isinstance(part, AsinhNet)]
    for net in nets:
        net.dropout = min(_DROPOUT, net.dropped / count) if count else 0.0
    try:
        yield
    finally:
        for net in nets:
            net.dropout = 0.0


class _Schedule:
    # A factor of the learning rate: min(1, (k + 1) / w) (1 + cos(πk / K)) / 2 at step k of K, with
    # a rise of w steps.

    def __init__(self, steps: int) -> None:
        self.steps, self.warm_up = steps, 1 + int(_WARM_UP * steps)

    def __call__(self, step: int) -> float:
        rise = min(1.0, (step + 1) / self.warm_up)
        return rise * (1 + math.cos(math.pi * min(1.0, step / self.steps))) / 2


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


def _check_module(module: nn.Module) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(f"fit: expected module to be a torch.nn.Module, got {module!r}.")
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError(f"fit: expected a module with parameters to learn, got none in {module}.")
    for name, part in module.named_modules():
        if isinstance(part, PyroModule) and part._pyro_samples:
            site = ".".join(filter(None, (name, next(iter(part._pyro_samples)))))
            raise ValueError(
                f"fit: expected a module without priors, got one for {site}; with priors, use "
                "SVI with an autoguide, or MCMC."
            )
