r"""Reparameterisers of squared neural latents."""

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
    r"""Moves a latent variable from the sphere to the space around it.

    .. math:: x = \frac{z}{\|z\|}, \quad p(z) = \mathcal{N}(z; 0, I) \, \frac{p(x)}{u(x)}

    where :math:`u` is the uniform density on the sphere, which :math:`x` has under the normal
    law. NUTS and autoguides, which need a map from :math:`\mathbb{R}^d` that is one-to-one, work
    with the auxiliary :math:`z` at the site ``{name}_normal``. The latent itself becomes a
    deterministic site, as with :class:`pyro.infer.reparam.ProjectedNormalReparam`, and its density
    a factor at the site ``{name}_density``. Any distribution on the unit sphere will do.

    This works for latent variables, not for likelihoods.

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
        law, event_dim = self._unwrap(fn)
        if law.support not in (unit_sphere, constraints.sphere):
            raise ValueError(
                f"SphereReparam: expected a distribution on the unit sphere at the site {name}, "
                f"got {law} with the support {law.support}."
            )
        like = getattr(law, next(iter(law.arg_constraints))) if value is None else value
        zeros = like.new_zeros(law.shape())
        normal = dist.Normal(zeros, torch.ones_like(zeros)).to_event(1)
        # A value to start from is on the sphere, and stands for itself in the space around.
        z = pyro.sample(
            f"{name}_normal",
            self._wrap(normal, event_dim),
            obs=value,
            infer={"is_observed": False},
        )
        x = safe_normalize(z) if value is None else value
        d = law.event_shape[-1]
        log_area = math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)
        count = law.batch_shape.numel() // fn.batch_shape.numel()
        pyro.factor(f"{name}_density", fn.log_prob(x) + count * log_area)
        # As a site of pyro.deterministic.
        return {
            "fn": dist.Delta(x, event_dim=event_dim).mask(False),
            "value": x,
            "is_observed": True,
        }
