r"""Results of Pyro's inference, in the format of ArviZ."""

__all__ = ["to_inference_data"]

from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from pyro import poutine
from pyro.distributions import Delta, Unit
from pyro.distributions.util import scale_and_mask
from pyro.infer import MCMC, Predictive
from pyro.poutine.util import site_is_subsample
from torch import Tensor

if TYPE_CHECKING:
    from arviz import InferenceData

Samples = dict[str, Tensor]
Site = Any  # a node of a Pyro trace


def to_inference_data(
    model: Callable[..., Any],
    posterior: MCMC | Callable[..., Any] | Mapping[str, Any],
    *args: Any,
    num_samples: int = 1000,
    predictive: bool = True,
    coords: Mapping[str, Sequence[Any]] | None = None,
    **kwargs: Any,
) -> "InferenceData":
    r"""Converts a fitted model to the data that ArviZ needs to check and compare models.

    The result has the groups ``posterior`` (with deterministic sites), ``posterior_predictive``,
    ``log_likelihood``, ``observed_data`` and, for MCMC, ``sample_stats``. Dimensions are named
    after plates.

    A model without latent variables has no posterior, and the same log-likelihood in every draw.
    For such a model, pass ``reff=1.0`` to ``az.loo``.

    Arguments:
        model: The model. Its arguments include the observations. Its plates do not subsample.
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
    import arviz  # here, because this import is slow

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
        samples, chains = _draw(posterior, latent, num_samples, args, kwargs)
        missing = sorted(set(latent) - set(samples))
        if missing:
            raise ValueError(
                f"to_inference_data: expected samples of every latent site, got none of {missing}; "
                "sites that were summed out have to be so in the model as well."
            )
        samples = {name: samples[name] for name in latent}
        draws = len(next(iter(samples.values()))) if samples else num_samples
        derived, log_likelihood = _replay(model, samples, draws, sites, observed, args, kwargs)
        groups: dict[str, Any] = {
            "posterior": samples | derived,
            "log_likelihood": log_likelihood,
        }
        if predictive and observed:
            groups["posterior_predictive"] = Predictive(
                poutine.uncondition(model),
                samples or None,
                num_samples=None if samples else draws,
                return_sites=observed,
            )(*args, **kwargs)

    def by_chain(values: Samples) -> dict[str, Any]:
        return {
            name: value.unflatten(0, (chains, -1)).cpu().numpy() for name, value in values.items()
        }

    arrays: dict[str, Any] = {name: by_chain(values) for name, values in groups.items() if values}
    arrays["observed_data"] = {name: sites[name]["value"].cpu().numpy() for name in observed}
    if isinstance(posterior, MCMC):
        arrays["sample_stats"] = by_chain({"diverging": _divergences(posterior, draws)})
    dims = {name: _plates(site) for name, site in sites.items()}
    return arviz.from_dict(**arrays, coords=coords and dict(coords), dims=dims)


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


def _replay(
    model: Callable[..., Any],
    samples: Samples,
    draws: int,
    sites: dict[str, Site],
    observed: list[str],
    args: Any,
    kwargs: Any,
) -> tuple[Samples, Samples]:
    # Returns deterministic sites and log-likelihoods. The model runs once for each draw, because it
    # need not be written for batches of latent variables.
    deterministic = [name for name, site in sites.items() if _is_deterministic(site)]
    derived: dict[str, list[Tensor]] = {name: [] for name in deterministic}
    likelihood: dict[str, list[Tensor]] = {name: [] for name in observed}
    for k in range(draws):
        given = {name: value[k] for name, value in samples.items()}
        trace = poutine.trace(poutine.condition(model, given)).get_trace(*args, **kwargs)
        for name in deterministic:
            value: Any = trace.nodes[name]["value"]
            derived[name].append(value)
        for name in observed:
            site: Site = trace.nodes[name]
            log_prob = site["fn"].log_prob(site["value"])
            likelihood[name].append(scale_and_mask(log_prob, mask=site["mask"]))
    stacked = [
        {name: torch.stack(values) for name, values in group.items()}
        for group in (derived, likelihood)
    ]
    return stacked[0], stacked[1]


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
