"""The simulator beside what others have measured."""

import pytest

from oxijax.__main__ import main
from ptx.replay.published import PUBLISHED

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("figure", PUBLISHED, ids=lambda f: f"{f.name}, {f.gpu}")
def test_within_a_fifth(figure):
    assert figure.simulated == pytest.approx(figure.measured, rel=0.2)


def test_the_command(capsys):
    assert main(["model", "--published"]) == 0
    _, *rows = capsys.readouterr().out.splitlines()
    assert len(rows) == len(PUBLISHED)
    for row, figure in zip(rows, PUBLISHED, strict=True):
        assert row.startswith(figure.name)
        assert figure.source in row
