r"""Writes the pages of the reference: one for each public module, one for each public name.

A name is public if it is in ``__all__`` of a public module. It is documented under the shortest
module that has it; other modules link there. Members are the documented ones that the class
defines itself, or takes from a class that has no page. What torch, Pyro and scikit-learn define is
left out.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

import pyro_snefy

PACKAGE = pyro_snefy.__name__
# Layers below the interface: nothing in them is promised.
INTERNAL = {"constraints", "demo", "numerics", "operations"}
# Packages whose modules are public, too, if they have names that the package has not.
OPEN = {f"{PACKAGE}.interop"}


def public_modules() -> list[ModuleType]:
    """The package, its parts except internal ones, and modules of extras."""
    modules = [pyro_snefy]
    for part in pkgutil.iter_modules(pyro_snefy.__path__, f"{PACKAGE}."):
        if part.name.rpartition(".")[2] in INTERNAL:
            continue
        module = importlib.import_module(part.name)
        modules.append(module)
        if part.name in OPEN:
            inner = pkgutil.iter_modules(module.__path__, f"{part.name}.")
            found = [importlib.import_module(child.name) for child in inner]
            modules += [m for m in found if not set(m.__all__) <= set(module.__all__)]
    return modules


def public_names(module: ModuleType) -> list[str]:
    """The names of a module that are neither modules themselves nor special."""
    return sorted(
        name
        for name in module.__all__
        if not (inspect.ismodule(getattr(module, name)) or name.startswith("__"))
    )


@cache
def places() -> dict[int, str]:
    """For each public object, by its id, the name under which it is documented."""
    found: dict[int, str] = {}
    for module in sorted(public_modules(), key=lambda m: m.__name__.count(".")):
        for name in public_names(module):
            found.setdefault(id(getattr(module, name)), f"{module.__name__}.{name}")
    return found


def members(cls: type, documented: dict[int, str]) -> Iterator[str]:
    """The documented members of a class that have no page elsewhere."""
    for name in sorted(dir(cls)):
        owner = next((c for c in cls.__mro__ if name in vars(c)), None)
        hidden = name.startswith("_") and name != "__call__"
        if hidden or owner is None or not owner.__module__.startswith(PACKAGE):
            continue
        if owner is not cls and id(owner) in documented:
            continue
        doc = getattr(vars(owner)[name], "__doc__", None)
        is_member = callable(getattr(owner, name)) or isinstance(vars(owner)[name], property)
        if doc and is_member and not doc.startswith("Alias for field number"):
            yield name


def summary(thing: Any) -> str:
    """The first sentence of a docstring."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def name_page(place: str, thing: Any, documented: dict[int, str]) -> str:
    """The page of one name."""
    module, _, name = place.rpartition(".")
    head = f"{name}\n{'=' * len(name)}\n\n.. currentmodule:: {module}\n\n"
    if inspect.isclass(thing):
        own = ", ".join(members(thing, documented))
        option = f"   :members: {own}\n" if own else ""
        return head + f".. autoclass:: {place}\n   :show-inheritance:\n{option}"
    kind = "autofunction" if callable(thing) else "autodata"
    return head + f".. {kind}:: {place}\n"


def module_page(module: ModuleType, documented: dict[int, str]) -> str:
    """The page of one module: its docstring, and a table of its names."""
    title = module.__name__
    lines = [title, "=" * len(title), "", f".. automodule:: {title}", "   :no-members:", ""]
    lines += [".. list-table::", "   :widths: 30 70", "   :class: names", ""]
    own = []
    for name in public_names(module):
        thing = getattr(module, name)
        place = documented[id(thing)]
        role = "class" if inspect.isclass(thing) else "func" if callable(thing) else "data"
        lines += [f"   * - :py:{role}:`{name} <{place}>`", f"     - {summary(thing)}"]
        if place == f"{title}.{name}":
            own.append(place)
    lines += ["", ".. toctree::", "   :hidden:", ""]
    lines += [f"   {name.rpartition('.')[2]} <../names/{name}>" for name in own]
    return "\n".join(lines) + "\n"


def write_pages(app: Sphinx) -> None:
    """Writes all pages, changed ones only, and removes those of names that are gone."""
    folder = Path(app.srcdir) / "reference" / "generated"
    documented = places()
    pages = {}
    for module in public_modules():
        pages[folder / "modules" / f"{module.__name__}.rst"] = module_page(module, documented)
        for name in public_names(module):
            place = f"{module.__name__}.{name}"
            thing = getattr(module, name)
            if documented[id(thing)] == place:
                pages[folder / "names" / f"{place}.rst"] = name_page(place, thing, documented)
    for old in set(folder.glob("*/*.rst")) - set(pages):
        old.unlink()
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


@cache
def find(name: str) -> Any:
    """What a dotted name stands for, or None."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            thing = getattr(thing, part, None)
        return thing
    return None


def candidates(node: pending_xref) -> Iterator[str]:
    """The full names that a reference may stand for, from where it stands."""
    target = node["reftarget"]
    yield target
    module, cls = node.get("py:module"), node.get("py:class")
    if module and cls:
        yield f"{module}.{cls}.{target}"
    if module:
        yield f"{module}.{target}"
    yield f"builtins.{target}"
    yield f"typing.{target}"


def documented_place(name: str, documented: dict[int, str]) -> str | None:
    """Where a public object, or a member of a public class, is documented."""
    thing = find(name)
    if thing is None:
        return None
    if id(thing) in documented:
        return documented[id(thing)]
    parent, _, attribute = name.rpartition(".")
    cls = find(parent) if parent else None
    if not inspect.isclass(cls):
        return None
    owner = next((c for c in cls.__mro__ if attribute in vars(c) and id(c) in documented), None)
    return None if owner is None else f"{documented[id(owner)]}.{attribute}"


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.Node
) -> nodes.Node | None:
    """Links other names of public objects, and leaves names of other packages as they are.

    A name that cannot be imported stays unresolved, which is a warning.
    """
    if node.get("refdomain") != "py":
        return None
    documented = places()
    for name in candidates(node):
        place = documented_place(name, documented)
        entry = env.domains.python_domain.objects.get(place) if place else None
        if entry is not None:
            return make_refnode(
                app.builder, node["refdoc"], entry.docname, entry.node_id, content, place
            )
        if find(name) is not None and name.partition(".")[0] != PACKAGE:
            return content
    return None


def public_bases(app: Sphinx, name: str, thing: Any, options: Any, bases: list[Any]) -> None:
    """Of the bases of a class, keeps public ones, ours and those of other packages."""
    documented = places()
    ours = [b for b in bases if getattr(b, "__module__", "").startswith(PACKAGE)]
    bases[:] = [b for b in bases if b is not object and (b not in ours or id(b) in documented)]


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", write_pages)
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-bases", public_bases)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
