"""The Python of docs/scaling.md runs as written."""

import re

import pytest
from support.paths import DOCS
from support.processes import python


@pytest.mark.quick
def test_the_page():
    page = (DOCS / "scaling.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    assert len(blocks) == 2
    flags = "--xla_force_host_platform_device_count=4"
    status, printed = python("-c", "\n".join(blocks), XLA_FLAGS=flags)
    assert status == 0, printed
