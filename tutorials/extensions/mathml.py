r"""Formulas as MathML: no script is loaded, and they are there without a network."""

import html
import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

_LOGGER = logging.getLogger(__name__)
# Commands of TeX that docutils does not know, and what it knows.
_SAME = [
    (re.compile(r"\\dots(?![a-zA-Z])"), r"\\ldots"),
    (re.compile(r"\\([bB]igg?)(?![a-zA-Z])"), ""),
]
# Spaces as in TeX: a thin one after names of functions, none around bars and stars.
_SPACES = [
    (
        re.compile(r"<mo>&ApplyFunction;</mo>(?!\s*<mo)"),
        '<mo>&ApplyFunction;</mo><mspace width="0.1667em"></mspace>',
    ),
    (re.compile(r"<mo([^>]*)>([|*])</mo>"), r'<mo\1 lspace="0" rspace="0">\2</mo>'),
]


def _mathml(node: nodes.Node, block: bool) -> str:
    tex = node.astext()
    for pattern, other in _SAME:
        tex = pattern.sub(other, tex)
    try:
        mathml = tex2mathml(tex, as_block=block)
    except MathError as error:
        _LOGGER.warning("formula %r: %s", tex, error, location=node)
        return f"<code>{html.escape(tex)}</code>"
    for pattern, other in _SPACES:
        mathml = pattern.sub(other, mathml)
    return mathml


def _inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(_mathml(node, False))
    raise nodes.SkipNode


def _block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math-block">{_mathml(node, True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
