"""Paths of the checkout and its data."""

import pathlib

__all__ = ["DATA", "DOCS", "ROOT", "SUPPORT"]

SUPPORT = pathlib.Path(__file__).parent
ROOT = SUPPORT.parents[1]
DATA = ROOT / "tests" / "data"
DOCS = ROOT / "docs"
