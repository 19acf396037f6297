"""The Python of pages runs as written, block after block."""

import re

import pytest
from support.paths import DOCS

PAGES = ("layers", "porting")


@pytest.mark.parametrize("page", PAGES)
def test_python(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (DOCS / f"{page}.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert len(blocks) >= 3
    namespace = {}
    for block in blocks:
        exec(block, namespace)
