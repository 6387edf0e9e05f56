"""The site: its reference builds without a warning and has every public name; its pages are right.

`make docs` builds all of it, with warnings as errors.
"""

import importlib
import os
import pydoc
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pyro_snefy
from pyro_snefy import SNEFY, bases

ROOT = Path(__file__).parent.parent
SITE = ROOT / "tutorials"
PAGES = sorted(SITE.glob("*.md"))
PUBLIC = [
    "pyro_snefy",
    "pyro_snefy.activations",
    "pyro_snefy.bases",
    "pyro_snefy.distributions",
    "pyro_snefy.divergences",
    "pyro_snefy.interop",
    "pyro_snefy.interop.sklearn",  # of an extra
    "pyro_snefy.kernels",
    "pyro_snefy.learning",
    "pyro_snefy.network",
    "pyro_snefy.sampling",
    "pyro_snefy.testing",
]


def _public(module: str) -> dict[str, object]:
    loaded = pytest.importorskip(module)
    return {name: getattr(loaded, name) for name in loaded.__all__}


def _is_documented(name: str, thing: object, found: set[str]) -> bool:
    """Whether the inventory has the object, under the name of any public module that has it."""
    owners = [module for module in PUBLIC if _public(module).get(name) is thing]
    return any(f"{module}.{name}" in found for module in owners)


def test_reference(tmp_path: Path) -> None:
    """The reference builds without a warning, references resolve, and no name is missing."""
    for package in ("sphinx", "furo", "myst_nb", "sklearn"):
        pytest.importorskip(package, reason=f"needs {package}, of the extra docs")
    inventory = importlib.import_module("sphinx.util.inventory")
    source = tmp_path / "source"
    source.mkdir()
    for part in ("extensions", "reference", "static"):
        shutil.copytree(SITE / part, source / part, ignore=shutil.ignore_patterns("generated"))
    shutil.copy(SITE / "conf.py", source)
    (source / "index.md").write_text("# Site\n\n```{toctree}\nreference/index\n```\n")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    # The plain theme: sidebars take furo most of the time.
    options = ["-W", "--keep-going", "-q", "-D", "html_theme=basic"]
    run = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, source, tmp_path / "site"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    with open(tmp_path / "site" / "objects.inv", "rb") as file:
        text = inventory.InventoryFile.load(file, "", lambda base, uri: uri)
    found = {name for kind, names in text.items() if kind.startswith("py:") for name in names}
    missing = [
        f"{module}.{name}"
        for module in PUBLIC
        for name, thing in _public(module).items()
        if not name.startswith("__") and f"{PUBLIC[0]}.{name}" not in PUBLIC
        if not _is_documented(name, thing, found)
    ]
    assert not missing
    # Inherited noise is left out, and own methods are not.
    assert "pyro_snefy.SNEFY.log_prob" in found
    assert "pyro_snefy.SNEFY.set_default_validate_args" not in found
    assert "pyro_snefy.learning.JointSNEFY.initialize" in found
    assert "pyro_snefy.learning.JointSNEFY.register_buffer" not in found


def test_public_modules_are_listed() -> None:
    """Every module that the package names is in the list above."""
    modules = {f"pyro_snefy.{name}" for name in pyro_snefy.__all__}
    assert {name for name in modules if name in sys.modules} <= set(PUBLIC)


def test_dir() -> None:
    """What a user sees first is what is public, and all of it is there."""
    assert set(dir(pyro_snefy)) == set(pyro_snefy.__all__)
    assert all(hasattr(pyro_snefy, name) for name in pyro_snefy.__all__)


def _help(thing: object) -> str:
    return pydoc.render_doc(thing, renderer=pydoc.plaintext)


EXTENSION_POINTS = {"Base", "FourierBase", "LaplaceBase", "Pushforward"}
BASES = sorted({x for x in bases.__all__ if x[0].isupper()} - {"Partial", "TensorField"})


@pytest.mark.parametrize("name", BASES)
def test_help_of_bases(name: str) -> None:
    """What a user needs, on two screens; what the library asks for is listed where it is declared.

    All of it is still there: only the listing is short.
    """
    cls = getattr(bases, name)
    found = _help(cls)
    assert all(x in found for x in ("log_density", "map(", "marginal(", "support"))
    if name in EXTENSION_POINTS:
        own = {x for x in vars(cls) if not x.startswith("_")}
        assert own - set(vars(bases.Base)) <= set(dir(cls))
        return
    assert found.count("\n") <= 120
    assert "Example" in found
    asked = ("map_batches", "pair_deficits", "members", "codimension", "pair_log_partitions")
    assert not [x for x in asked if f"|  {x}" in found]
    assert callable(cls.map_batches)


def test_help_of_the_interface_of_bases() -> None:
    """What a new base supplies is on the classes that it inherits."""
    assert all(x in _help(bases.Base) for x in ("codimension", "columns", "regression", "example"))
    assert "deficit" in _help(bases.FourierBase)
    assert "log_partition" in _help(bases.LaplaceBase)


def test_dir_of_a_base() -> None:
    found = dir(bases.Poisson(2.0))
    assert {"rate", "batch_shape", "log_density"} <= set(found)
    assert "map_batches" not in found


def test_help_of_families() -> None:
    """No internals: every name is explained, but for what torch and Pyro leave unexplained."""
    own = {x: thing for x, thing in vars(SNEFY).items() if not x.startswith("_")}
    assert not [x for x, thing in own.items() if not getattr(thing, "__doc__", None)]
    assert not [x for x in ("_network", "from_network", "with_tensors") if x in _help(SNEFY)]


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_have_docstrings(module: str) -> None:
    named = {name: thing for name, thing in _public(module).items() if not name.startswith("__")}
    assert not [name for name, thing in named.items() if not getattr(thing, "__doc__", None)]


def _examples(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [p for p in PAGES if _examples(p)], ids=lambda p: p.stem)
def test_examples(page: Path) -> None:
    """The examples of a page run, one after the other."""
    scope: dict[str, object] = {"__name__": page.stem}
    for example in _examples(page):
        exec(compile(example, page.name, "exec"), scope)


def test_papers_are_in_the_references() -> None:
    cited = {
        number: path.relative_to(ROOT)
        for path in sorted((ROOT / "pyro_snefy").rglob("*.py"))
        for number in re.findall(r"arXiv:(\d{4}\.\d{4,5})", path.read_text())
    }
    listed = set(re.findall(r"\[arXiv:(\d{4}\.\d{4,5})\]", (SITE / "references.md").read_text()))
    assert cited
    assert {n: path for n, path in cited.items() if n not in listed} == {}


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda p: p.stem)
def test_links_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]


def _rows(text: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    return {row[0]: row[1:] for row in cells if len(row) > 1}


def test_figures_of_the_readme() -> None:
    """Every row of figures in the README is the beginning of a row of the page of figures."""
    readme = (ROOT / "README.md").read_text()
    figures = readme[readme.index("## Figures") : readme.index("## Read on")]
    every = _rows((SITE / "benchmarks.md").read_text())
    few = {name: row for name, row in _rows(figures).items() if re.search(r"\d", row[0])}
    assert len(few) > 10
    assert {name: every[name][: len(row)] for name, row in few.items()} == few
