"""The simulator beside what others have measured."""

import re

import pytest
from support.paths import DOCS

from oxijax.__main__ import main
from ptx.replay.published import PUBLISHED

pytestmark = pytest.mark.slow

PAGE = (DOCS / "modelled.md").read_text()


@pytest.mark.parametrize("figure", PUBLISHED, ids=lambda f: f"{f.name}, {f.gpu}")
def test_within_a_fifth(figure):
    simulated = figure.simulated
    assert simulated == pytest.approx(figure.measured, rel=0.2)
    row = f"| {figure.name} | {figure.gpu} | {figure.measured:g} | {simulated:.3g} |"
    assert row in PAGE, f"update the page: {row}"


def test_the_page_has_each_once():
    rows = re.findall(
        r"^\| ([^|]+) \| ([^|]+) \| [\d.]+ \| [\d.e+]+ \| (?:cycles|GB/s|10\S+) \| ", PAGE, re.M
    )
    assert rows == [(figure.name, figure.gpu) for figure in PUBLISHED]
    for figure in PUBLISHED:
        assert figure.source in PAGE


def test_the_command(capsys):
    assert main(["model", "--published"]) == 0
    _, *rows = capsys.readouterr().out.splitlines()
    assert len(rows) == len(PUBLISHED)
    assert all(row.startswith(f.name) for row, f in zip(rows, PUBLISHED, strict=True))
