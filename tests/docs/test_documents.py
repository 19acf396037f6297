"""The Python of README runs as written, and so do the examples."""

import re
import runpy

import pytest
from support.paths import ROOT


@pytest.mark.quick
def test_readme_python():
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    assert len(blocks) >= 2
    namespace = {}
    for block in blocks:
        exec(block, namespace)
    assert namespace["y"].shape == (2, 32, 32, 8)


@pytest.mark.parametrize("command", ["demo", "test"])
def test_readme_commands_are_marked(command):
    """`.ci/run` takes README's commands from these markers."""
    marker = rf"<!-- command: {command} -->\n```sh\npython3 -m venv \.venv\n"
    assert re.search(marker, (ROOT / "README.md").read_text())


def test_example_learns():
    losses = runpy.run_path(str(ROOT / "examples" / "flax_nnx.py"))["main"](steps=40)
    assert losses[-1] < 0.5 * losses[0]
