"""The Python of docs/ptx.md runs as written, and the page says no command that there is not."""

import re

import pytest
from support.paths import DOCS

from oxijax.__main__ import main
from ptx import registry
from ptx.testing.mutate import MutationReport

PAGE = (DOCS / "ptx.md").read_text()


def test_the_page_runs(monkeypatch, capsys):
    monkeypatch.setattr(registry, "_KERNELS", {})
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    assert len(blocks) == 11
    namespace = {}
    for block in blocks:
        exec(block, namespace)
    assert isinstance(namespace["report"], MutationReport)
    assert str(namespace["report"]) in capsys.readouterr().out

    # The page registers its kernel last; the commands find it.
    assert main(["check", "--registry", "ptx.registry", "--kernel", "reverse"]) == 0
    assert "reverse" in capsys.readouterr().out
    assert main(["ptx", "reverse", "--registry", "ptx.registry", "--target", "sm_90"]) == 0
    assert ".target sm_90" in capsys.readouterr().out


@pytest.mark.parametrize("command", re.findall(r"`python -m oxijax (\w+)", PAGE))
def test_commands_exist(command, capsys):
    with pytest.raises(SystemExit) as exit_code:
        main([command, "--help"])
    assert exit_code.value.code == 0
