"""`oxijax.config` describes every switch that there is."""

import re

from support.paths import ROOT

import oxijax
from oxijax._core.config import Config


def test_every_switch_is_described():
    text = Config.__doc__ or ""
    options = {name for name in dir(oxijax.config) if not name.startswith("_")}
    assert {f"oxijax.config.{name}" for name in options} <= set(
        re.findall(r"oxijax\.\w+\.\w+", text)
    )
    sources = [path.read_text() for path in (ROOT / "oxijax").rglob("*.py")]
    variables = {name for source in sources for name in re.findall(r'"(OXIJAX_\w+)"', source)}
    assert "OXIJAX_TUNING_DIR" in variables
    assert [name for name in variables if f"`{name}`" not in text] == []
