r"""The site: `make docs` builds it into build/docs."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "extensions")]

import pyro_snefy  # noqa: E402

project = "pyro_snefy"
author = "The authors of pyro_snefy"
copyright = "the authors of pyro_snefy, Apache 2.0"
version = release = pyro_snefy.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "mathml",
    "public_names",
]
exclude_patterns = ["extensions", "*.py", "**/.ipynb_checkpoints"]
nitpicky = True

# Notebooks are shown with the outputs that they are kept with.
nb_execution_mode = "off"
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
suppress_warnings = ["mystnb.unknown_mime_type"]

autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 80
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"pyro_snefy {version}"
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
