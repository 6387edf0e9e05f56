r"""Results of Pyro's inference, in the format of ArviZ."""

__all__ = ["to_inference_data"]

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

import pyro
import torch
from pyro import poutine
from pyro.distributions import Delta, Unit
from pyro.distributions.util import scale_and_mask
from pyro.infer import MCMC, Predictive
from pyro.poutine.uncondition_messenger import UnconditionMessenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor

if TYPE_CHECKING:
    from arviz import InferenceData
    from xarray import DataTree

Samples = dict[str, Tensor]
Site = Any  # a node of a Pyro trace

_ROWS = 2**12  # rows of observations in one pass over several draws, to bound the memory
# The largest difference between one pass over several draws and a run for each draw, relative to
# the largest value: rounding in float32 is smaller, and a model that mixes draws differs more.
_TOLERANCE = 1e-3


def to_inference_data(
    model: Callable[..., Any],
    posterior: MCMC | Callable[..., Any] | Mapping[str, Any],
    *args: Any,
    num_samples: int = 1000,
    predictive: bool = True,
    coords: Mapping[str, Sequence[Any]] | None = None,
    **kwargs: Any,
) -> "InferenceData | DataTree":
    r"""Converts a fitted model to the data that ArviZ needs to check and compare models.

    The result has the groups ``posterior`` (with deterministic sites), ``posterior_predictive``,
    ``log_likelihood``, ``observed_data`` and, for MCMC, ``sample_stats``. Dimensions are named
    after plates. ArviZ 0.x gets an :class:`arviz.InferenceData`, ArviZ 1.x an
    :class:`xarray.DataTree`.

    If the model observes nothing, because its arguments are new inputs alone, sites without
    samples are predicted, and the group ``predictions`` stands in place of the last three groups.

    Many draws are computed in one pass if the model takes latent variables with a batch dimension
    in front: ``effect[..., group]`` does, and ``effect[group]`` does not. One pass is compared
    with a run for the first draw and one for the last; if they differ, or if the pass fails, the
    model runs once for each draw.

    A model without latent variables has no posterior, and the same log-likelihood in every draw.
    For such a model, pass ``reff=1.0`` to ``az.loo`` of ArviZ 0.x. ``az.loo`` of ArviZ 1.x takes
    no draws that are all the same: there the sum of one draw is the result.

    Arguments:
        model: The model. Its arguments include the observations, or new inputs without
            observations. Its plates do not subsample.
        posterior: One of a :class:`pyro.infer.MCMC` that has run, the guide of an SVI, and a dict
            of samples by the names of the sites, tensors or arrays with shape :math:`(S, *)`.
        args: Positional arguments of the model and of the guide.
        num_samples: The number of draws from a guide.
        predictive: Whether to draw new observations.
        coords: Labels along a dimension, such as the names of groups, by the name of the plate.
        kwargs: Keyword arguments of the model and of the guide.

    Example:
        >>> import pyro, torch, pyro.distributions as dist
        >>> def model(x):
        ...     loc = pyro.sample("loc", dist.Normal(0.0, 10.0))
        ...     with pyro.plate("rows", len(x)):
        ...         pyro.sample("x", dist.Normal(loc, 1.0), obs=x)
        >>> guide = pyro.infer.autoguide.AutoNormal(model)
        >>> data = to_inference_data(model, guide, torch.randn(20), num_samples=50)
        >>> data.log_likelihood["x"].dims
        ('chain', 'draw', 'rows')
    """
    if not (isinstance(num_samples, Integral) and num_samples >= 1):
        raise ValueError(
            f"to_inference_data: expected an integer num_samples >= 1, got {num_samples!r}."
        )
    with torch.no_grad():
        trace = poutine.trace(model).get_trace(*args, **kwargs)
        _check_plates(trace)
        sites: dict[str, Site] = {
            name: site
            for name, site in trace.nodes.items()
            if site["type"] == "sample" and not site_is_subsample(site)
        }
        observed = [name for name, site in sites.items() if _is_observed(site)]
        latent = [name for name, site in sites.items() if not site["is_observed"]]
        found, chains = _draw(posterior, latent, num_samples, args, kwargs)
        missing = [name for name in latent if name not in found]
        if missing and observed:
            raise ValueError(
                "to_inference_data: expected samples of every latent site, got none of "
                f"{sorted(missing)}; sites that were summed out have to be so in the model as well."
            )
        samples = {name: _like_site(found[name], sites[name]) for name in latent if name in found}
        draws = len(next(iter(samples.values()))) if samples else num_samples
        job = _Job(model, args, kwargs, sites, observed, (observed or missing) * predictive)
        derived, log_likelihood, predicted = _all_draws(job, samples, draws)

    def by_chain(values: Samples) -> dict[str, Any]:
        return {
            name: value.unflatten(0, (chains, -1)).cpu().numpy() for name, value in values.items()
        }

    groups = {
        "posterior": samples | derived,
        "log_likelihood": log_likelihood,
        "posterior_predictive" if observed else "predictions": predicted,
    }
    arrays: dict[str, Any] = {name: by_chain(values) for name, values in groups.items() if values}
    if observed:
        arrays["observed_data"] = {name: sites[name]["value"].cpu().numpy() for name in observed}
    if isinstance(posterior, MCMC):
        arrays["sample_stats"] = by_chain({"diverging": _divergences(posterior, draws)})
    dims = {name: _plates(site) for name, site in sites.items()}
    return _from_dict(arrays, dims, coords and dict(coords))


def _from_dict(
    groups: dict[str, Any],
    dims: dict[str, list[str]],
    coords: dict[str, Sequence[Any]] | None,
) -> "InferenceData | DataTree":
    import arviz  # here, because this import is slow

    labels: Any = {"coords": coords, "dims": dims, "pred_coords": coords, "pred_dims": dims}
    if int(arviz.__version__.partition(".")[0]) >= 1:
        return arviz.from_dict(groups, **labels)
    return arviz.from_dict(**groups, **labels)


def _is_observed(site: Site) -> bool:
    # pyro.factor makes an observed site with the distribution Unit, which is no observation.
    return site["is_observed"] and not (_is_deterministic(site) or isinstance(site["fn"], Unit))


def _is_deterministic(site: Site) -> bool:
    # pyro.deterministic and reparameterisers make observed sites with the distribution Delta.
    fn = site["fn"]
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return site["is_observed"] and isinstance(fn, Delta)


def _check_plates(trace: poutine.Trace) -> None:
    for name, site in trace.nodes.items():
        if site["type"] == "sample" and site_is_subsample(site):
            fn: Any = site["fn"]
            if fn.subsample_size is not None and fn.subsample_size < fn.size:
                raise ValueError(
                    "to_inference_data: expected a model whose plates take all rows, got the "
                    f"plate {name} with {fn.subsample_size} of {fn.size}."
                )


def _draw(
    posterior: MCMC | Callable[..., Any] | Mapping[str, Any],
    latent: list[str],
    num_samples: int,
    args: Any,
    kwargs: Any,
) -> tuple[Samples, int]:
    # Returns samples of shape (S, *), and the number of chains in them.
    if isinstance(posterior, MCMC):
        grouped = posterior.get_samples(group_by_chain=True)
        if not grouped:
            raise ValueError(
                "to_inference_data: expected posterior to be an MCMC that has run, got one without "
                "samples; call its method run first."
            )
        chains = len(next(iter(grouped.values())))
        return {name: value.flatten(0, 1) for name, value in grouped.items()}, chains
    if isinstance(posterior, Mapping):
        samples = {name: torch.as_tensor(value) for name, value in posterior.items()}
        shapes = {name: tuple(samples[name].shape) for name in latent if name in samples}
        if () in shapes.values() or len({shape[0] for shape in shapes.values()}) > 1:
            raise ValueError(
                "to_inference_data: expected posterior to have samples of one number of draws, "
                f"with shapes (S, *), got {shapes}."
            )
        return samples, 1
    if not callable(posterior):
        raise TypeError(
            "to_inference_data: expected posterior to be an MCMC, a guide or a dict of samples, "
            f"got {posterior!r}."
        )
    if not latent:
        return {}, 1
    guide = Predictive(posterior, num_samples=num_samples, return_sites=latent)
    return guide(*args, **kwargs), 1


def _like_site(value: Tensor, site: Site) -> Tensor:
    # Guides give samples of shape (S, 1, ...) outside of their plates.
    shape = (len(value), *site["value"].shape)
    return value.reshape(shape) if value.numel() == torch.Size(shape).numel() else value


class _Job(NamedTuple):
    model: Callable[..., Any]
    args: Any
    kwargs: Any
    sites: dict[str, Site]
    observed: list[str]
    predicted: list[str]

    def trace(self, model: Any, given: Samples) -> Any:
        """A run of a form of the model, given values of its sites."""
        return poutine.trace(poutine.condition(model, given)).get_trace(*self.args, **self.kwargs)


class _Draws(NamedTuple):
    r"""Deterministic sites, log-likelihoods and predictions, each (S, *)."""

    derived: Samples
    log_likelihood: Samples
    predicted: Samples


class _Uncondition(UnconditionMessenger):
    # Leaves deterministic sites as they are.

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def _pyro_sample(self, msg: Any) -> None:
        if msg["name"] in self.names:
            super()._pyro_sample(msg)


def _all_draws(job: _Job, samples: Samples, draws: int) -> _Draws:
    largest = max((_batch(job, name).numel() for name in job.observed + job.predicted), default=1)
    size = max(_ROWS // max(largest, 1), 1)
    parts = [range(k, min(k + size, draws)) for k in range(0, draws, size)]
    first = _take(samples, parts[0])
    try:
        block = _block(job, first, len(parts[0]))
        together = _agrees(job, first, len(parts[0]), *block)
    except Exception:  # a model that is not written for batches may fail in any way
        together = False
    if together:
        rest = [_block(job, _take(samples, part), len(part))[0] for part in parts[1:]]
        return _joined([block[0], *rest])
    return _joined([_single(job, _take(samples, range(k, k + 1))) for k in range(draws)])


def _block(job: _Job, samples: Samples, size: int) -> tuple[_Draws, dict[str, Site]]:
    # One pass over several draws, in a plate left of all others; with the sites of predictions.
    rank = max((len(_batch(job, name)) for name in job.sites), default=0)
    given = {
        name: value.reshape(
            size, *[1] * (rank - len(_batch(job, name))), *job.sites[name]["value"].shape
        )
        for name, value in samples.items()
    }

    def in_plate(model: Any) -> Any:
        return pyro.plate("_draws", size, dim=-rank - 1)(model)

    draws = _Draws({}, {}, {})
    trace = job.trace(in_plate(job.model), given)
    for name, site in job.sites.items():
        if _is_deterministic(site):
            value, shape = trace.nodes[name]["value"], site["value"].shape
            if value.shape == shape:  # depends on no latent variable
                value = value.expand(size, *shape)
            draws.derived[name] = value.reshape(size, *shape)
    for name in job.observed:
        found = _log_likelihood(trace.nodes[name])
        draws.log_likelihood[name] = found.reshape(size, *_batch(job, name))
    if job.predicted:
        trace = job.trace(in_plate(_Uncondition(job.predicted)(job.model)), given)
    sites = {name: trace.nodes[name] for name in job.predicted}
    for name, site in sites.items():
        draws.predicted[name] = site["value"].reshape(size, *job.sites[name]["value"].shape)
    return draws, sites


def _single(job: _Job, samples: Samples) -> _Draws:
    # One draw, in a run of its own. Samples and results have the shape (1, *).
    given = {name: value[0] for name, value in samples.items()}
    trace = job.trace(job.model, given)
    derived = {
        name: trace.nodes[name]["value"][None]
        for name, site in job.sites.items()
        if _is_deterministic(site)
    }
    likelihood = {name: _log_likelihood(trace.nodes[name])[None] for name in job.observed}
    if job.predicted:
        trace = job.trace(_Uncondition(job.predicted)(job.model), given)
    return _Draws(derived, likelihood, {n: trace.nodes[n]["value"][None] for n in job.predicted})


def _agrees(
    job: _Job, samples: Samples, size: int, draws: _Draws, predictions: dict[str, Site]
) -> bool:
    # Whether a pass over several draws says the same as runs for the first and for the last.
    densities = {
        name: site["fn"].log_prob(site["value"]).reshape(size, *_batch(job, name))
        for name, site in predictions.items()
    }
    for k in {0, size - 1}:
        part = range(k, k + 1)
        alone = _single(job._replace(predicted=[]), _take(samples, part))
        given = {name: value[k] for name, value in (samples | draws.predicted).items()}
        trace = job.trace(_Uncondition(job.predicted)(job.model), given)
        sites = {name: trace.nodes[name] for name in job.predicted}
        expected = {n: site["fn"].log_prob(site["value"])[None] for n, site in sites.items()}
        pairs = zip(
            (alone.derived, alone.log_likelihood, expected),
            (draws.derived, draws.log_likelihood, densities),
            strict=True,
        )
        if not all(
            _close(_take(found, part)[name], value)
            for values, found in pairs
            for name, value in values.items()
        ):
            return False
    return True


def _close(found: Tensor, expected: Tensor) -> bool:
    scale = expected[expected.isfinite()].abs().amax() if expected.isfinite().any() else 0.0
    return torch.allclose(found, expected, 0.0, _TOLERANCE * float(scale), equal_nan=True)


def _log_likelihood(site: Site) -> Tensor:
    found: Tensor = scale_and_mask(site["fn"].log_prob(site["value"]), mask=site["mask"])
    return found


def _batch(job: _Job, name: str) -> torch.Size:
    shape: torch.Size = job.sites[name]["fn"].batch_shape
    return shape


def _take(samples: Samples, part: range) -> Samples:
    return {name: value[part.start : part.stop] for name, value in samples.items()}


def _joined(parts: list[_Draws]) -> _Draws:
    groups = zip(*parts, strict=True)
    return _Draws(*({n: torch.cat([g[n] for g in group]) for n in group[0]} for group in groups))


def _divergences(mcmc: MCMC, draws: int) -> Tensor:
    # Returns whether each draw diverged, chain after chain.
    found = mcmc.diagnostics()["divergences"]
    diverging = torch.zeros(len(found), draws // len(found), dtype=torch.bool)
    for chain, (_, index) in zip(diverging, sorted(found.items()), strict=True):
        chain[list(index)] = True
    return diverging.flatten()


def _plates(site: Site) -> list[str]:
    frames = {frame.dim: frame.name for frame in site["cond_indep_stack"] if frame.vectorized}
    rank = len(site["fn"].batch_shape)
    if sorted(frames) != list(range(-rank, 0)):
        return []  # ArviZ names the dimensions that belong to no plate
    return [frames[dim] for dim in range(-rank, 0)]
