r"""Base measures of squared neural families: supports, statistics and transforms."""

__all__ = [
    "Base",
    "DirichletFamily",
    "Discrete",
    "FourierBase",
    "GammaFamily",
    "Gaussian",
    "GaussianMixture",
    "Geometric",
    "Interval",
    "LaplaceBase",
    "Mixture",
    "NormalFamily",
    "PointMass",
    "Poisson",
    "PoissonFamily",
    "Product",
    "ProjectedGaussian",
    "Pushforward",
    "Standardized",
    "UniformBox",
    "UniformCube",
    "UniformSphere",
]

from .base import Base, FourierBase, LaplaceBase
from .bounded import Pushforward, UniformBox, UniformCube
from .counts import Discrete, Geometric, PointMass, Poisson
from .families import DirichletFamily, GammaFamily, NormalFamily, PoissonFamily
from .gaussian import Gaussian
from .mixture import GaussianMixture, Interval, Mixture
from .product import Product
from .sphere import ProjectedGaussian, UniformSphere
from .standardized import Standardized
