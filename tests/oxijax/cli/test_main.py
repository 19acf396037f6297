"""The command line itself: its help, and what it says of commands that there are not."""

import pytest

from oxijax.__main__ import main

COMMANDS = ("bench", "check", "demo", "info", "model", "ptx", "roofline")


def test_without_a_command_it_prints_the_help(capsys):
    assert main([]) == 0
    alone = capsys.readouterr()
    assert alone.err == ""
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    assert alone.out == capsys.readouterr().out
    assert all(f"\n    {command} " in alone.out for command in COMMANDS)


@pytest.mark.parametrize("arguments", [["nothing"], ["--nothing"]])
def test_what_there_is_not(capsys, arguments):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert "nothing" in capsys.readouterr().err
