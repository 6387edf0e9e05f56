"""The estimators for scikit-learn: its own checks, and densities of known laws."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("sklearn", reason="the extra sklearn is not installed")

import pandas as pd
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from pyro_snefy.interop.sklearn import DensityEstimator, DensityRegressor

REGRESSOR = DensityRegressor(
    hidden_dim=4, readout_dim=2, hidden_dims=(8,), max_epochs=2, random_state=0
)
ESTIMATOR = DensityEstimator(hidden_dim=4, readout_dim=2, max_epochs=2, random_state=0)


@pytest.mark.filterwarnings("ignore")  # the data of the checks are extreme
@parametrize_with_checks([REGRESSOR, ESTIMATOR])
def test_checks_of_scikit_learn(estimator: object, check: object) -> None:
    check(estimator)


def _regression(rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(rows, 2))
    return X, 2 * X[:, 0] + 0.5 * rng.normal(size=rows)


def test_regressor_finds_a_normal_law() -> None:
    """y = 2 x + noise of standard deviation 0.5: mean, quantiles, coverage, draws, likelihood.

    Shares of 400 draws are within five standard deviations: 6e-7 is the rate of false alarms of
    each, and an error of 0.115 is seen half of the time.
    """
    X, y = _regression(600)
    model = DensityRegressor(
        hidden_dim=6, hidden_dims=(16,), max_epochs=80, batch_size=60, random_state=0
    ).fit(X, y)
    at = np.array([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    np.testing.assert_allclose(model.predict(at), [-2, 0, 2], atol=0.3)
    expected = stats.norm(2 * at[:, :1], 0.5).ppf([[0.1, 0.5, 0.9]])
    quantiles = model.predict_quantiles(at, (0.1, 0.5, 0.9))
    np.testing.assert_allclose(quantiles, expected, atol=0.3)
    interval = model.predict_interval(at, coverage=0.8)
    np.testing.assert_allclose(interval, quantiles[:, ::2], rtol=1e-12)
    truth = stats.norm(2 * X[:, 0], 0.5).logpdf(y).mean()
    assert model.score(X, y) == pytest.approx(truth, abs=0.15)
    draws = model.sample(at, 400, random_state=0)
    assert draws.shape == (3, 400)
    for row, found in zip(at, draws, strict=True):  # draws have the quantiles of the density
        below = (found < model.predict_quantiles(row[None], (0.3,))[0]).mean()
        assert abs(below - 0.3) < 0.115  # five standard deviations


def test_density_of_a_normal_law() -> None:
    """None of six other seeds failed. A loss of 0.1 nats is seen, or an error of 0.15."""
    rng = np.random.default_rng(2)
    law = stats.multivariate_normal([1.0, -2.0], [[1.0, 0.6], [0.6, 1.0]])
    X, new = law.rvs(800, random_state=rng), law.rvs(500, random_state=rng)
    model = DensityEstimator(hidden_dim=8, max_epochs=10, random_state=0).fit(X)
    assert model.score(new) == pytest.approx(law.logpdf(new).mean(), abs=0.1)
    assert model.score(new) == model.score_samples(new).mean()
    draws = model.sample(2000, random_state=3)
    np.testing.assert_allclose(draws.mean(0), X.mean(0), atol=0.15)
    np.testing.assert_allclose(np.cov(draws.T), np.cov(X.T), atol=0.2)
    np.testing.assert_array_equal(draws, model.sample(2000, random_state=3))


def test_pipelines_and_frames() -> None:
    X, y = _regression(80)
    frame = pd.DataFrame(X, columns=["a", "b"])
    pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), clone(REGRESSOR))
    pipeline.fit(frame, pd.Series(y))
    assert pipeline[-1].feature_names_in_.tolist() == ["a", "b"]
    assert pipeline.predict(frame).shape == (80,)
    scores = cross_val_score(clone(REGRESSOR), frame, y, cv=3, error_score="raise")
    assert np.isfinite(scores).all()
    for estimator, target in ((REGRESSOR, y), (ESTIMATOR, None)):
        search = GridSearchCV(clone(estimator), {"hidden_dim": [2, 4]}, cv=2, error_score="raise")
        search.fit(frame, target)
        found = search.cv_results_["mean_test_score"]
        assert search.best_params_["hidden_dim"] == [2, 4][int(np.argmax(found))]


def test_random_state() -> None:
    X, y = _regression(40)
    first, again, other = (
        clone(REGRESSOR).set_params(random_state=seed).fit(X, y).predict(X) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)


def test_errors() -> None:
    X, y = _regression(20)
    model = clone(REGRESSOR).fit(X, y)
    with pytest.raises(ValueError, match=r"coverage between 0 and 1, got 1.5"):
        model.predict_interval(X, 1.5)
    with pytest.raises(ValueError, match=r"quantiles between 0 and 1, got \[0.0\]"):
        model.predict_quantiles(X, [0.0])


def test_the_package_does_not_import_it() -> None:
    code = "import sys, pyro_snefy; print('sklearn' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
