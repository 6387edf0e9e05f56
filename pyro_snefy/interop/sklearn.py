r"""Estimators for scikit-learn: density regression and density estimation.

This module needs the extra ``sklearn``: ``pip install "pyro-snefy[sklearn]"``. Computations are in
float64 on the CPU, as in scikit-learn.
"""

__all__ = ["DensityEstimator", "DensityRegressor"]

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, DensityMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from ..distributions import SNEFY
from ..learning import conditional_snefy, fit, snefy

Array = np.ndarray[Any, Any]
Self = TypeVar("Self", bound="_Estimator")

_ROWS = 1024  # contexts in one pass, to bound the memory


class _Estimator(BaseEstimator):
    # The settings of both estimators. scikit-learn reads them off the signature.

    def __init__(
        self,
        hidden_dim: Any = 50,
        readout_dim: Any = 4,
        max_epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        validation: float = 0.1,
        patience: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.hidden_dim = hidden_dim
        self.readout_dim = readout_dim
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.lr = lr
        self.validation = validation
        self.patience = patience
        self.random_state = random_state

    def _fit(self: Self, module: torch.nn.Module, *rows: Tensor) -> Self:
        names = ("max_epochs", "batch_size", "lr", "validation", "patience")
        settings = {name: getattr(self, name) for name in names}
        self.history_ = fit(module, *rows, progress=False, **settings)
        self.module_ = module
        return self


class DensityRegressor(RegressorMixin, _Estimator):
    r"""Regression that predicts a density of the target for each row.

    .. math:: p(y | x) = \frac{\mu(u)}{Z(x) \, s(x)} \left\| V(x) \sigma(W u + b) \right\|^2,
        \qquad u = \frac{y - l(x)}{s(x)}

    This is :func:`~pyro_snefy.conditional_snefy` on the reals, fitted by :func:`~pyro_snefy.fit`.
    After :meth:`fit`, the module is the attribute ``module_``, and the history of its fit is
    ``history_``. None stands for the default of these functions.

    Arguments:
        hidden_dim: The number :math:`n` of neurons of the family.
        readout_dim: The number :math:`m` of rows of the readout.
        hidden_dims: The sizes of the hidden layers of the network from contexts to parameters.
        max_epochs: The number of passes over the data.
        batch_size: The number of rows in a step.
        lr: The highest learning rate.
        validation: The share of rows that are held out to choose the best epoch.
        patience: The fit stops after this many epochs without a better validation value.
        random_state: A seed, a :class:`numpy.random.RandomState`, or None.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(200, 3))
        >>> y = X[:, 0] + rng.normal(size=200)
        >>> model = DensityRegressor(max_epochs=3, random_state=0).fit(X, y)
        >>> model.predict_interval(X, coverage=0.8).shape
        (200, 2)
    """

    def __init__(
        self,
        hidden_dim: int | None = None,
        readout_dim: int | None = None,
        hidden_dims: Sequence[int] = (128, 128),
        max_epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        validation: float = 0.1,
        patience: int | None = None,
        random_state: Any = None,
    ) -> None:
        settings = max_epochs, batch_size, lr, validation, patience, random_state
        super().__init__(hidden_dim, readout_dim, *settings)
        self.hidden_dims = hidden_dims

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # The checks of scikit-learn expect an R² above 0.5, and `score` is a log-likelihood.
        tags.regressor_tags.poor_score = True
        return tags

    def fit(self, X: Any, y: Any) -> "DensityRegressor":
        r"""Fits the density of the targets given the rows.

        Arguments:
            X: The rows, an array or a data frame with shape :math:`(N, k)`.
            y: The targets, with shape :math:`(N,)`.
        """
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        context, target = torch.tensor(X), torch.tensor(y, dtype=torch.float64)
        with _seeded(self.random_state):
            module = conditional_snefy(
                (),
                context.shape[1],
                self.hidden_dim,
                self.readout_dim,
                hidden_dims=self.hidden_dims,
            ).double()
            return self._fit(module.initialize(target, context), target, context)

    def _contexts(self, X: Any) -> Tensor:
        check_is_fitted(self)
        return torch.tensor(validate_data(self, X, dtype=np.float64, reset=False))

    @torch.no_grad()
    def _by_rows(self, context: Tensor, f: Callable[[SNEFY], Tensor]) -> Array:
        # f gives tensors with the rows in their last dimension.
        parts = [f(self.module_(part)) for part in context.split(_ROWS)]
        return torch.cat(parts, dim=-1).numpy()

    def predict(self, X: Any) -> Array:
        r"""The means :math:`E[y | x]`, with shape :math:`(N,)`.

        Arguments:
            X: The rows, with shape :math:`(N, k)`.
        """
        return self._by_rows(self._contexts(X), lambda law: law.mean)

    def predict_quantiles(self, X: Any, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> Array:
        r"""Quantiles of :math:`p(y | x)`, with shape :math:`(N, q)`.

        Arguments:
            X: The rows, with shape :math:`(N, k)`.
            quantiles: The :math:`q` probabilities, each between 0 and 1.
        """
        context = self._contexts(X)
        levels = torch.tensor(quantiles, dtype=torch.float64).reshape(-1, 1)
        if not ((levels > 0) & (levels < 1)).all():
            raise ValueError(
                f"DensityRegressor: expected quantiles between 0 and 1, got {quantiles!r}."
            )
        return self._by_rows(context, lambda law: law.icdf(levels)).T

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Array:
        r"""Intervals that leave the probability :math:`(1 - c) / 2` on each side.

        Arguments:
            X: The rows, with shape :math:`(N, k)`.
            coverage: The probability :math:`c` of an interval.

        Returns:
            The lower and the upper ends, with shape :math:`(N, 2)`.
        """
        if not 0 < coverage < 1:
            raise ValueError(
                f"DensityRegressor: expected coverage between 0 and 1, got {coverage!r}."
            )
        return self.predict_quantiles(X, ((1 - coverage) / 2, (1 + coverage) / 2))

    @torch.no_grad()
    def score(self, X: Any, y: Any) -> float:
        r"""The mean log-likelihood :math:`\frac{1}{N} \sum_i \log p(y_i | x_i)`, in nats.

        Arguments:
            X: The rows, with shape :math:`(N, k)`.
            y: The targets, with shape :math:`(N,)`.
        """
        check_is_fitted(self)
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, reset=False)
        pairs = zip(
            torch.tensor(X).split(_ROWS),
            torch.tensor(y, dtype=torch.float64).split(_ROWS),
            strict=True,
        )
        return float(torch.cat([self.module_(c).log_prob(x) for c, x in pairs]).mean())

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = None) -> Array:
        r"""Draws targets, with shape :math:`(N, \text{n\_samples})`.

        Arguments:
            X: The rows, with shape :math:`(N, k)`.
            n_samples: The number of draws for each row.
            random_state: A seed, a :class:`numpy.random.RandomState`, or None.
        """
        context = self._contexts(X)
        with _seeded(random_state):
            return self._by_rows(context, lambda law: law.sample((n_samples,))).T


class DensityEstimator(DensityMixin, _Estimator):
    r"""The density of rows.

    .. math:: p(x) = \frac{\mu(x)}{Z} \left\| V \sigma(W x + b) \right\|^2

    This is :func:`~pyro_snefy.snefy` on :math:`\mathbb{R}^d`, fitted by :func:`~pyro_snefy.fit`.
    After :meth:`fit`, the module is the attribute ``module_``, and the history of its fit is
    ``history_``. None stands for the default of :func:`~pyro_snefy.fit`.

    Arguments:
        hidden_dim: The number :math:`n` of neurons.
        readout_dim: The number :math:`m` of rows of the readout.
        max_epochs: The number of passes over the data.
        batch_size: The number of rows in a step.
        lr: The highest learning rate.
        validation: The share of rows that are held out to choose the best epoch.
        patience: The fit stops after this many epochs without a better validation value.
        random_state: A seed, a :class:`numpy.random.RandomState`, or None.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(200, 2))
        >>> model = DensityEstimator(hidden_dim=8, max_epochs=3, random_state=0).fit(X)
        >>> model.score_samples(X).shape
        (200,)
    """

    def fit(self, X: Any, y: Any = None) -> "DensityEstimator":
        r"""Fits the density of the rows.

        Arguments:
            X: The rows, an array or a data frame with shape :math:`(N, d)`.
            y: Ignored.
        """
        x = torch.tensor(validate_data(self, X, dtype=np.float64, ensure_min_samples=2))
        with _seeded(self.random_state):
            module = snefy(x.shape[1], self.hidden_dim, self.readout_dim).double().initialize(x)
            return self._fit(module, x)

    @torch.no_grad()
    def score_samples(self, X: Any) -> Array:
        r"""The log-densities :math:`\log p(x_i)`, with shape :math:`(N,)`.

        Arguments:
            X: The rows, with shape :math:`(N, d)`.
        """
        check_is_fitted(self)
        x = torch.tensor(validate_data(self, X, dtype=np.float64, reset=False))
        law = self.module_()
        return torch.cat([law.log_prob(part) for part in x.split(_ROWS)]).numpy()

    def score(self, X: Any, y: Any = None) -> float:
        r"""The mean log-likelihood :math:`\frac{1}{N} \sum_i \log p(x_i)`, in nats.

        Arguments:
            X: The rows, with shape :math:`(N, d)`.
            y: Ignored.
        """
        return float(self.score_samples(X).mean())

    @torch.no_grad()
    def sample(self, n_samples: int = 1, random_state: Any = None) -> Array:
        r"""Draws rows, with shape :math:`(\text{n\_samples}, d)`.

        Arguments:
            n_samples: The number of rows.
            random_state: A seed, a :class:`numpy.random.RandomState`, or None.
        """
        check_is_fitted(self)
        with _seeded(random_state):
            return self.module_().sample((n_samples,)).numpy()


@contextmanager
def _seeded(random_state: Any) -> Iterator[None]:
    # The random numbers of torch from a seed, and afterwards as they were.
    seed = int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
