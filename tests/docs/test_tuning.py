"""The numbers of docs/tuning.md are those of the code."""

import pytest
from support.paths import DOCS

from oxijax._core.tuning import candidates, timing
from oxijax._core.tuning.candidates import MOST

PAGE = (DOCS / "tuning.md").read_text()


@pytest.mark.quick
def test_numbers():
    words = {7: "seven", 9: "nine"}
    assert f"up to {words[MOST - 1]} variants" in PAGE
    assert f"up to {candidates._MODEL_SECONDS:.0f} seconds" in PAGE
    assert f"arrays of more than {candidates._MODEL_BYTES >> 30} GiB" in PAGE
    assert f"in turn, {words[timing._ROUNDS]} times" in PAGE
