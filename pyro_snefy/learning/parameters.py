r"""Modules that own the tensors of bases, and keep them under their constraints."""

__all__ = [
    "BaseModule",
    "ConstrainedModule",
    "FamilyModule",
    "FramedModule",
    "as_base",
    "check_family",
    "check_sizes",
]

import re
from collections.abc import Collection
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import constraints, transform_to
from torch.distributions.transforms import AffineTransform, ComposeTransform, Transform

from ..activations import Activation, Exp
from ..bases import Base, Gaussian, GaussianMixture, LaplaceBase, SmoothBoxMixture
from ..constraints import is_real
from ..kernels.registry import check_closed_form, closed_form


class ConstrainedModule(nn.Module):
    r"""A module with parameters under constraints.

    .. math:: \text{scale} = T(\text{raw\_scale}), \quad
        T: \mathbb{R}^k \to \text{the constrained set}

    A constrained parameter ``scale`` is stored as the unconstrained parameter ``raw_scale``, where
    :math:`T` is ``transform_to(constraint)``. Reading the attribute ``scale`` applies :math:`T`.
    In a :class:`pyro.nn.PyroModule`, a :class:`pyro.nn.PyroSample` named ``scale`` takes the
    place of that attribute.
    """

    def __init__(self) -> None:
        super().__init__()
        self._constraints: dict[str, Any] = {}

    def constraint(self, name: str) -> Any:
        """The constraint of a parameter."""
        return self._constraints[name]

    def transform(self, name: str) -> Any:
        """The map from the unconstrained parameter to the parameter."""
        return transform_to(self.constraint(name))

    def constrain(self, name: str, value: Tensor, constraint: Any) -> None:
        """Registers a parameter, unconstrained if not every value satisfies its constraint."""
        if is_real(constraint):
            self.register_parameter(name, nn.Parameter(value.detach().clone()))
            return
        self._constraints[name] = constraint
        raw = transform_to(constraint).inv(value.detach())
        self.register_parameter(f"raw_{name}", nn.Parameter(raw.clone()))

    @torch.no_grad()
    def assign(self, name: str, value: Tensor) -> None:
        """Overwrites a parameter or a buffer in place, by a value that satisfies its constraint."""
        if name in self._constraints:
            value = self.transform(name).inv(value)
            name = f"raw_{name}"
        getattr(self, name).copy_(value)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name not in self.__dict__.get("_constraints", ()):
                raise
        return self.transform(name)(getattr(self, f"raw_{name}"))


class FamilyModule(ConstrainedModule):
    r"""A module with a base, an activation and weights, under the constraint of both."""

    activation: Activation
    base: Any  # a BaseModule

    def _add_weight(self, weight: Tensor) -> None:
        if is_real(self.constraint("weight")):
            self.weight = nn.Parameter(weight)
        else:
            self.raw_weight = nn.Parameter(weight)
            self._constraints["weight"] = None  # see `constraint`: it changes with the base

    def constraint(self, name: str) -> Any:
        return self.base().weight_constraint(self.activation)

    @property
    def _raw_weight(self) -> Tensor:
        return self.raw_weight if "weight" in self._constraints else self.weight

    def _weight_on(self, base: Base) -> Tensor:
        r"""The weights :math:`T'(T^{-1}(W))` of a family on a base that a head has moved.

        :math:`T` and :math:`T'` map the reals to the weights that this base and that one allow.
        """
        if "weight" not in self._constraints:
            return self.weight
        moved = transform_to(base.weight_constraint(self.activation))
        return moved(self.transform("weight").inv(self.weight))

    def _random_members(self) -> Tensor:
        # Natural parameters η = 2 s w of an exponential family with the activation exp(s z).
        assert isinstance(self.activation, Exp)
        weight = transform_to(self.constraint("weight"))(torch.randn_like(self._raw_weight))
        return 2 * self.activation.scale * weight

    def _set_neuron_members(self, eta: Tensor) -> None:
        # σ(w_i·t + b_i)² = exp(η_i·t - A(η_i)): each squared neuron is a member of the family.
        law = self.base().latent(eta)
        assert isinstance(law, LaplaceBase)
        assert isinstance(self.activation, Exp)
        double = 2 * self.activation.scale
        self.assign("weight", eta / double)
        self.bias.copy_(-law.log_partition(eta) / double)


class BaseModule(ConstrainedModule):
    r"""A module that owns the tensors of a base, so that they are moved and saved with it.

    Calling the module returns the base. Each tensor is an attribute: ``loc`` and ``scale`` for a
    Gaussian, ``bases_1_rate`` for the rate of a Poisson base that is the second factor of a
    product. Tensors to learn are parameters under their constraints. Other tensors are buffers.

    Arguments:
        base: The base.
        learn: Whether all tensors are learnt, except for tensors that define the support; or the
            names of the tensors to learn.

    Example:
        >>> import torch
        >>> from pyro_snefy.bases import Poisson
        >>> module = BaseModule(Poisson(torch.tensor(2.0)), learn=True).double()
        >>> module().rate.dtype
        torch.float64
        >>> [name for name, _ in module.named_parameters()]
        ['raw_rate']
    """

    def __init__(self, base: Base, learn: bool | Collection[str] = False) -> None:
        super().__init__()
        # Detached, because a deep copy of the module would fail on tensors with a graph.
        self._base = base.map(Tensor.detach)
        self._names = [re.sub(r"\W+", "_", name) for name, _ in base.tensors()]
        pairs = zip(base.tensors(), base.tensor_constraints(), strict=True)
        for name, ((_, value), constraint) in zip(self._names, pairs, strict=True):
            chosen = learn if isinstance(learn, bool) else name in learn
            if chosen and constraint is not None:
                self.constrain(name, value, constraint)
            else:
                self.register_buffer(name, value)

    def forward(self) -> Base:
        """The base, built from the present values of the tensors."""
        tensors = iter([getattr(self, name) for name in self._names])
        return self._base.map(lambda _: next(tensors))

    def set(self, base: Base) -> None:
        """Overwrites the tensors by the tensors of a base of the same type and shapes."""
        for name, (_, value) in zip(self._names, base.tensors(), strict=True):
            self.assign(name, value)


class FramedModule(BaseModule):
    r"""A normal law, or a mixture of some or of boxes, learnt in units of its own first values.

    .. math:: m_k = a_k + F_k r_k, \quad L_k = F_k T_k

    The first means :math:`a_k` and factors :math:`F_k` are the buffers ``frame_loc`` and
    ``frame_scale``; :math:`r_k` and :math:`T_k` are learnt. A step of an optimiser moves a mean by
    a part of the width of its component, however narrow the component is, and in whichever
    direction it is narrow. The edges of boxes, from ``frame_low`` and ``frame_high``, move by parts
    of the width that they are smeared over.

    Arguments:
        base: The base, with ``loc`` or with ``low`` and ``high``, and ``scale`` or ``scale_tril``.

    Example:
        >>> import torch
        >>> from pyro_snefy.bases import Gaussian
        >>> module = FramedModule(Gaussian(torch.ones(2), torch.full((2,), 0.1)))
        >>> module.raw_loc.data += 1.0
        >>> module.loc.tolist()
        [1.100000023841858, 1.100000023841858]
    """

    frame_scale: Tensor

    def __init__(self, base: Gaussian | GaussianMixture | SmoothBoxMixture) -> None:
        super().__init__(base, learn=True)
        for name in self._places():
            value = getattr(self, name)
            delattr(self, name)
            self.register_parameter(f"raw_{name}", nn.Parameter(torch.zeros_like(value)))
            self._constraints[name] = constraints.real
            self.register_buffer(f"frame_{name}", torch.empty_like(value))
        self.register_buffer("frame_scale", torch.empty_like(_scale(base)))
        self.set(base)

    def _places(self) -> list[str]:
        return [name for name in self._names if name in ("loc", "low", "high")]

    def transform(self, name: str) -> Any:
        full = "scale_tril" in self._names
        if name in self._places():
            kind = _Frame if full else AffineTransform
            return kind(getattr(self, f"frame_{name}"), self.frame_scale)
        inner = super().transform(name)  # a logarithm has no unit
        return ComposeTransform([inner, _Frame(None, self.frame_scale)]) if full else inner

    @torch.no_grad()
    def set(self, base: Base) -> None:
        """Overwrites the tensors by the tensors of a base, which are the units from then on."""
        assert isinstance(base, Gaussian | GaussianMixture | SmoothBoxMixture)
        for name in self._places():
            getattr(self, f"frame_{name}").copy_(getattr(base, name))
        self.frame_scale.copy_(_scale(base))
        super().set(base)


def _scale(base: Gaussian | GaussianMixture | SmoothBoxMixture) -> Tensor:
    full = None if isinstance(base, SmoothBoxMixture) else base.scale_tril
    scale = base.scale if full is None else full
    assert scale is not None
    return scale


class _Frame(Transform):
    # Vectors r to a + F r, and without a, matrices T to F T, with lower triangular F.
    bijective = True

    def __init__(self, loc: Tensor | None, factor: Tensor) -> None:
        rank = 2 if loc is None else 1
        self.domain = self.codomain = constraints.independent(constraints.real, rank)
        self.loc, self.factor = loc, factor
        super().__init__()

    def _call(self, x: Tensor) -> Tensor:
        if self.loc is None:
            return self.factor @ x
        return self.loc + (self.factor @ x.unsqueeze(-1)).squeeze(-1)

    def _inverse(self, y: Tensor) -> Tensor:
        columns = y if self.loc is None else (y - self.loc).unsqueeze(-1)
        x = torch.linalg.solve_triangular(self.factor, columns, upper=False)
        return x.tril() if self.loc is None else x.squeeze(-1)


def as_base(base_or_dim: Base | int | tuple[()], caller: str) -> Base:
    r"""The given base, or a standard normal base."""
    if isinstance(base_or_dim, Base):
        return base_or_dim
    if isinstance(base_or_dim, tuple) and not base_or_dim:
        return Gaussian(torch.tensor(0.0), torch.tensor(1.0), event_dim=0)
    if isinstance(base_or_dim, Integral) and base_or_dim >= 1:
        return Gaussian(torch.zeros(int(base_or_dim)), torch.ones(int(base_or_dim)))
    raise ValueError(
        f"{caller}: expected base_or_dim to be a Base, a positive integer or (), "
        f"got {base_or_dim!r}."
    )


def check_sizes(caller: str, **sizes: int) -> None:
    """Raises unless all sizes are integers of at least one."""
    for name, size in sizes.items():
        if not (isinstance(size, Integral) and size >= 1):
            raise ValueError(f"{caller}: expected an integer {name} >= 1, got {size!r}.")


def check_family(caller: str, activation: Activation, base: Base, bias: bool) -> None:
    """Raises unless activation and base are what they are called, with a closed form."""
    for name, value, kind in (("activation", activation, Activation), ("base", base, Base)):
        if not isinstance(value, kind):
            hint = f"; write {value.__name__}()" if isinstance(value, type) else ""
            raise TypeError(
                f"{caller}: expected {name} to be an instance of {kind.__name__}, "
                f"got {value!r}{hint}."
            )
    if bias and not closed_form(activation, base, bias) and closed_form(activation, base, False):
        raise NotImplementedError(
            f"{caller}: expected an activation with a closed form with biases on {base}, "
            f"got {activation}, which has one without biases."
        )
    check_closed_form(activation, base, bias)
