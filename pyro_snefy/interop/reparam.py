r"""Reparameterisation of latent variables on the sphere."""

__all__ = ["SphereReparam"]

import math
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.infer.reparam.reparam import Reparam
from pyro.ops.tensor_utils import safe_normalize

from ..constraints import unit_sphere


class SphereReparam(Reparam):
    r"""Replaces a latent variable on the unit sphere by a latent variable in the whole space.

    .. math:: x = \frac{z}{\|z\|}, \quad p(z) = \mathcal{N}(z; 0, I) \, \frac{p(x)}{u(x)}

    where :math:`u` is the uniform density on the sphere: the density of :math:`x` if :math:`z` is
    standard normal. NUTS and autoguides need a one-to-one map from :math:`\mathbb{R}^d`, which the
    sphere does not have. They work with :math:`z`, at the site ``{name}_normal``. The site of
    :math:`x` becomes deterministic, as with
    :class:`pyro.infer.reparam.ProjectedNormalReparam`, and :math:`p(x) / u(x)` becomes a factor at
    the site ``{name}_density``.

    The latent variable may have any distribution on the unit sphere. Observed sites raise
    :class:`NotImplementedError`.

    Example:
        >>> from pyro_snefy import SNEFY
        >>> from pyro_snefy.activations import Exp
        >>> from pyro_snefy.bases import UniformSphere
        >>> prior = SNEFY(
        ...     torch.randn(4, 3), readout=torch.ones(1, 4), activation=Exp(), base=UniformSphere(3)
        ... )
        >>> def model():
        ...     return pyro.sample("direction", prior)
        >>> model = pyro.poutine.reparam(model, {"direction": SphereReparam()})
        >>> model().norm()
        tensor(1.)
    """

    def apply(self, msg: Any) -> Any:
        name, fn, value = msg["name"], msg["fn"], msg["value"]
        if msg["is_observed"]:
            raise NotImplementedError(
                f"SphereReparam: expected a latent site, got {name}, which is observed."
            )
        distribution, event_dim = self._unwrap(fn)
        if distribution.support not in (unit_sphere, constraints.sphere):
            raise ValueError(
                f"SphereReparam: expected a distribution on the unit sphere at the site {name}, "
                f"got {distribution} with the support {distribution.support}."
            )
        if value is None:
            like = getattr(distribution, next(iter(distribution.arg_constraints)))
        else:
            like = value
        zeros = like.new_zeros(distribution.shape())
        normal = dist.Normal(zeros, torch.ones_like(zeros)).to_event(1)
        # An initial value x is on the sphere. It is an initial value of z too, since x / ‖x‖ = x.
        z = pyro.sample(
            f"{name}_normal",
            self._wrap(normal, event_dim),
            obs=value,
            infer={"is_observed": False},
        )
        x = safe_normalize(z) if value is None else value
        d = distribution.event_shape[-1]
        # The surface of the unit sphere in R^d is 2 π^(d/2) / Γ(d/2) = 1 / u.
        log_area = math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)
        # `fn` sums log-densities over the dimensions of `to_event`: as many as `count` in each sum.
        count = distribution.batch_shape.numel() // fn.batch_shape.numel()
        pyro.factor(f"{name}_density", fn.log_prob(x) + count * log_area)
        # The same site as pyro.deterministic makes.
        return {
            "fn": dist.Delta(x, event_dim=event_dim).mask(False),
            "value": x,
            "is_observed": True,
        }
