"""Sphinx with MyST. Build with `make docs`; nothing is loaded from a network."""

from importlib.metadata import version as installed_version

project = "Torch-Spyre"
author = "The Torch-Spyre authors"
copyright = "the Torch-Spyre authors, Apache-2.0"
release = version = installed_version("torch-spyre")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"

html_theme = "furo"
html_title = "Torch-Spyre"
