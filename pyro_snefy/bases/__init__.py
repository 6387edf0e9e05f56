r"""Base measures of squared neural families: supports, statistics and transforms."""

__all__ = [
    "Base",
    "Bernoulli",
    "Binomial",
    "DirichletFamily",
    "Discrete",
    "FourierBase",
    "GammaFamily",
    "Gaussian",
    "GaussianMixture",
    "Geometric",
    "Interval",
    "Laplace",
    "LaplaceBase",
    "Logistic",
    "Mixture",
    "NegativeBinomial",
    "NormalFamily",
    "Partial",
    "PointMass",
    "Poisson",
    "PoissonFamily",
    "Product",
    "ProjectedGaussian",
    "Pushforward",
    "SmoothBox",
    "SmoothBoxMixture",
    "Standardized",
    "StudentT",
    "TensorField",
    "UniformAngle",
    "UniformBox",
    "UniformCube",
    "UniformSphere",
]

from .base import Base, Partial, TensorField
from .box import Interval, UniformBox
from .counts import (
    Bernoulli,
    Binomial,
    Discrete,
    Geometric,
    NegativeBinomial,
    PointMass,
    Poisson,
)
from .engines import FourierBase, LaplaceBase
from .families import DirichletFamily, GammaFamily, NormalFamily, PoissonFamily
from .gaussian import Gaussian
from .heavy_tails import Laplace, Logistic, StudentT
from .mixture import GaussianMixture, Mixture
from .product import Product
from .pushforward import Pushforward, Standardized, UniformCube
from .smooth_box import SmoothBox, SmoothBoxMixture
from .sphere import ProjectedGaussian, UniformAngle, UniformSphere
