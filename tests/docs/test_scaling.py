"""The Python of docs/scaling.md runs as written, on the four devices that each test has."""

import re

import pytest
from support.paths import DOCS
from support.processes import python


@pytest.mark.quick
def test_the_page():
    page = (DOCS / "scaling.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert len(blocks) == 2
    status, printed = python("-c", "\n".join(blocks))
    assert status == 0, printed
