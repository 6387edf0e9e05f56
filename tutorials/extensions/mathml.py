r"""Formulas as MathML: no script is loaded, and they are there without a network."""

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


def _mathml(node: nodes.Node, block: bool) -> str:
    tex = node.astext()
    for pattern, other in _SAME:
        tex = pattern.sub(other, tex)
    try:
        return tex2mathml(tex, as_block=block)
    except MathError as error:
        _LOGGER.warning("formula %r: %s", tex, error, location=node)
        return f"<code>{nodes.Text(tex)}</code>"


def _inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(_mathml(node, False))
    raise nodes.SkipNode


def _block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(f'<div class="math-block">{_mathml(node, True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
