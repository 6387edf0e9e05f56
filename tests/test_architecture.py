"""The layers of the package, read from its source: nothing imports from a layer above its own."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from pyro.distributions import TorchDistribution

import pyro_snefy
from pyro_snefy import SNEFY, distributions

ROOT = Path(pyro_snefy.__file__).parent
PACKAGE = ROOT.name

# What each folder, or module beside the folders, may import besides itself:
# numerics <- activations, bases <- kernels <- network <- operations, sampling <- distributions
# <- learning <- interop.
_BELOW_BASES = {"constraints", "numerics", "activations"}
_BELOW_NETWORK = _BELOW_BASES | {"bases", "kernels"}
_BELOW_DISTRIBUTIONS = _BELOW_NETWORK | {"network", "operations", "sampling"}
_BELOW_LEARNING = _BELOW_DISTRIBUTIONS | {"distributions"}
MAY_IMPORT = {
    "constraints": {"numerics"},
    "numerics": {"constraints"},
    "activations": {"constraints", "numerics"},
    "bases": _BELOW_BASES,
    "kernels": _BELOW_BASES | {"bases"},
    "network": _BELOW_NETWORK,
    "operations": _BELOW_NETWORK | {"network"},
    "sampling": _BELOW_NETWORK | {"network", "operations"},
    "distributions": _BELOW_DISTRIBUTIONS,
    "divergences": _BELOW_LEARNING,
    "learning": _BELOW_LEARNING,
    "interop": _BELOW_LEARNING | {"learning"},
    "testing": _BELOW_LEARNING,
}
EVERYTHING = {"__init__", "demo"}  # may import from every layer

# What a SNEFY promises beyond the interface of every Pyro distribution.
PUBLIC = {
    "acceptance_rate",
    "activation",
    "base",
    "bias",
    "censored",
    "characteristic_function",
    "condition_number",
    "conditional",
    "covariance_matrix",
    "crps",
    "fisher_information",
    "gram",
    "highest_density_region",
    "interval_probability",
    "log_cdf",
    "log_normalizer",
    "marginal",
    "moment_generating_function",
    "observed",
    "partially_observed",
    "posterior",
    "readout",
    "readout_gap",
    "weight",
    "with_mean",
}

MODULES = {str(path.relative_to(ROOT)): path for path in sorted(ROOT.rglob("*.py"))}


class Import(NamedTuple):
    """A name that a module imports from this package or from another."""

    line: int
    module: str  # in full, relative imports resolved
    name: str | None  # None for `import module`
    bound: str  # the name in the importing module

    def __str__(self) -> str:
        return f"import {self.module}" if self.name is None else f"{self.module}.{self.name}"


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def _layer(module: str) -> str:
    """The folder of a module given by its path, or its own name if it is in no folder."""
    return Path(module).parts[0].removesuffix(".py")


def _imports(tree: ast.Module, module: str) -> Iterator[Import]:
    """Every import: inside functions, and under TYPE_CHECKING, too."""
    package = [PACKAGE, *Path(module).parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                name = alias.name if alias.asname else alias.name.partition(".")[0]
                yield Import(node.lineno, alias.name, None, bound)
                if name != alias.name:  # `import a.b` binds `a`
                    yield Import(node.lineno, name, None, bound)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*start, *filter(None, [node.module])])
            for alias in node.names:
                yield Import(node.lineno, source, alias.name, alias.asname or alias.name)


def _own(found: Import) -> str | None:
    """The layer that an import is from: "" for the package as a whole, None for other packages."""
    package, *inside = found.module.split(".")
    if package != PACKAGE:
        return None
    if inside:
        return inside[0]
    return found.name if found.name in {_layer(module) for module in MODULES} else ""


def _dotted(node: ast.expr) -> list[str]:
    """The parts of `a.b.c`; empty for other expressions."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute):
        start = _dotted(node.value)
        return [*start, node.attr] if start else []
    return []


def _full_names(tree: ast.Module, module: str) -> Iterator[tuple[int, str]]:
    """The names of other packages that a module imports or uses, in full, with their lines."""
    imports = [x for x in _imports(tree, module) if _own(x) is None]
    bound = {x.bound: x.module if x.name is None else f"{x.module}.{x.name}" for x in imports}
    yield from ((x.line, bound[x.bound] if x.name else x.module) for x in imports)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            first, *rest = _dotted(node) or [""]
            if first in bound:
                yield node.lineno, ".".join([bound[first], *rest])


def _below_distributions() -> list[str]:
    return [module for module in MODULES if _layer(module) in _BELOW_DISTRIBUTIONS]


@pytest.mark.parametrize("module", MODULES)
def test_imports_come_from_below(module: str) -> None:
    layer = _layer(module)
    if layer in EVERYTHING:
        return
    assert layer in MAY_IMPORT, f"{module} has no layer: move it, or add it to MAY_IMPORT."
    allowed = MAY_IMPORT[layer] | {layer}
    wrong = [
        f"{PACKAGE}/{module}:{found.line}: {found}"
        for found in _imports(_tree(MODULES[module]), module)
        if _own(found) is not None and _own(found) not in allowed
    ]
    assert not wrong, f"{layer} may import {sorted(allowed)}, got:\n" + "\n".join(wrong)


def test_layers_are_there() -> None:
    assert {_layer(module) for module in MODULES} == {*MAY_IMPORT, *EVERYTHING}


@pytest.mark.parametrize("module", _below_distributions())
def test_no_distribution_below_distributions(module: str) -> None:
    """Functions take and return networks: no name of a distribution occurs in them."""
    names = {"TorchDistribution", *distributions.__all__}
    wrong = []
    for node in ast.walk(_tree(MODULES[module])):
        if isinstance(node, ast.ImportFrom):
            used = {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute):
            used = {node.attr}
        elif isinstance(node, ast.Name):
            used = {node.id}
        else:
            continue
        wrong += [f"{PACKAGE}/{module}:{node.lineno}: {name}" for name in sorted(used & names)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", _below_distributions())
def test_no_any_stands_for_a_distribution(module: str) -> None:
    wrong = []
    for node in ast.walk(_tree(MODULES[module])):
        if isinstance(node, ast.arg) and node.arg in ("law", "joint", "distribution"):
            annotation = "Any" if node.annotation is None else ast.unparse(node.annotation)
            if "Any" in annotation:
                wrong.append(f"{PACKAGE}/{module}:{node.lineno}: {node.arg}: {annotation}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("module", MODULES)
def test_no_private_names_of_torch(module: str) -> None:
    """Nor of Pyro. The one exception is Distribution._validate_args: whether to validate."""
    wrong = []
    for line, name in _full_names(_tree(MODULES[module]), module):
        package, *parts = name.split(".")
        hidden = [x for x in parts if x.startswith("_") and not x.endswith("__")]
        if package in ("torch", "pyro") and hidden not in ([], ["_validate_args"]):
            wrong.append(f"{PACKAGE}/{module}:{line}: {name}")
    assert not wrong, "\n".join(wrong)


def test_public_names() -> None:
    """Every public name of a SNEFY is a promise to users."""
    family = SNEFY(torch.randn(4, 2), torch.randn(4), torch.randn(1, 4))
    found = {name for name in dir(family) if not name.startswith("_")}
    assert found - set(dir(TorchDistribution)) == PUBLIC


@pytest.mark.parametrize(
    ("module", "source", "expected"),
    [
        ("kernels/a.py", "from ..network import Network", "network"),
        ("kernels/a.py", "from .. import network", "network"),
        ("kernels/a.py", "import pyro_snefy.network as n", "network"),
        ("kernels/a.py", "def f():\n    from pyro_snefy.network import Network", "network"),
        ("kernels/a.py", "if TYPE_CHECKING:\n    from ..network import Network", "network"),
        ("kernels/a.py", "from pyro_snefy import SNEFY", ""),
        ("kernels/a.py", "from .registry import kernel", "kernels"),
        ("activations.py", "from .bases import Base", "bases"),
        ("activations.py", "from torch import Tensor", None),
    ],
)
def test_imports_are_read(module: str, source: str, expected: str | None) -> None:
    """The reader of imports resolves them, wherever they are."""
    assert next(_own(found) for found in _imports(ast.parse(source), module)) == expected


def test_version() -> None:
    """The version is the one of the metadata of the project."""
    project = (ROOT.parent / "pyproject.toml").read_text()
    assert f'\nversion = "{pyro_snefy.__version__}"\n' in project
