"""The Python of docs/tuning.md runs as written, on an emulated GPU whose times are made up."""

import re

import pytest
from support.paths import DOCS

import oxijax
from oxijax._core.tuning import candidates, plans, timing, tune
from oxijax._core.tuning.candidates import MOST
from oxijax.testing import emulate_gpu

PAGE = (DOCS / "tuning.md").read_text()


def test_the_page(monkeypatch, tmp_path):
    monkeypatch.setenv("OXIJAX_TUNING_DIR", str(tmp_path))
    monkeypatch.setattr(tune, "_check_gpu", lambda: None)
    monkeypatch.setattr(tune, "time_launches", lambda _, launches: [7.5] * len(launches))
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    assert len(blocks) == 2
    printed = []
    namespace = {"print": lambda value: printed.append(str(value))}
    try:
        with emulate_gpu("sm_80"):
            for block in blocks:
                exec(block, namespace)
        assert printed[0].count("kept") == 2
        assert len(oxijax.config.tuning) == 2
        assert oxijax.config.tuning.dumps() == namespace["text"]
    finally:
        oxijax.config.tuning.clear()
        plans.tuned_plans._read.clear()


@pytest.mark.quick
def test_numbers():
    """What the page says of candidates is what the code has."""
    words = {7: "seven", 9: "nine"}
    assert f"{words[MOST - 1]} others at most" in PAGE
    assert f"up to {candidates._MODEL_SECONDS:.0f} seconds" in PAGE
    assert f"arrays of more than {candidates._MODEL_BYTES >> 30} GiB" in PAGE
    assert f"in turns, {words[timing._ROUNDS]} times" in PAGE
