"""The command line itself: its help, what there is not, and outputs that do not take its words."""

import errno
import os
import subprocess
import sys

import pytest
from support.paths import ROOT

from oxijax import __main__
from oxijax.__main__ import main

COMMANDS = ("bench", "check", "demo", "info", "model", "ptx", "roofline")
SIZES = {"roofline": ["8", "8", "8"]}


def test_without_a_command_it_prints_the_help(capsys):
    assert main([]) == 0
    alone = capsys.readouterr()
    assert alone.err == ""
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    assert alone.out == capsys.readouterr().out
    assert all(f"\n    {command} " in alone.out for command in COMMANDS)


@pytest.mark.parametrize(
    "arguments",
    [["nothing"], ["--nothing"], ["check", "--target", "sm_99"], ["bench", "--suite", "tpu"]],
)
def test_what_there_is_not(capsys, arguments):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert arguments[-1] in capsys.readouterr().err


# ---- standard output and standard error


@pytest.fixture(params=COMMANDS)
def printing(request, monkeypatch) -> list[str]:
    """Each command, which prints a line and no more."""

    def run(args):
        print("a line")
        return 0

    monkeypatch.setattr(__main__._COMMANDS[request.param], "run", run)
    return [request.param, *SIZES.get(request.param, ())]


@pytest.mark.quick
def test_a_full_output(printing, monkeypatch, capsys):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(printing) == 2
    words = os.strerror(errno.ENOSPC)
    assert capsys.readouterr().err == f"oxijax {printing[0]}: standard output: {words}\n"


def test_a_closed_output(printing, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)
    assert main(printing) == 2
    assert capsys.readouterr().err == "oxijax: standard output is closed\n"


def test_an_output_that_nobody_reads(printing, monkeypatch, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(printing) == 141
    assert capsys.readouterr().err == ""


def test_help_for_a_full_output(monkeypatch, capsys):
    for arguments in ([], ["--help"], ["--version"], ["info", "--help"]):
        with monkeypatch.context() as context, open("/dev/full", "w") as full:
            context.setattr(sys, "stdout", full)
            assert main(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("oxijax: standard output: ")


@pytest.mark.parametrize("closed", [False, True])
def test_a_standard_error_that_takes_no_sentence(closed, monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stderr", None if closed else full)
        monkeypatch.setattr(sys, "stdout", None)
        assert main(["info"]) == 2
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # closing writes what is left


@pytest.mark.spread(1)
@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("redirection", ["> /dev/full", ">&-", "< /dev/null 1<&0"])
def test_a_process_says_one_sentence(redirection, buffered):
    ended = subprocess.run(
        f"{sys.executable} -m oxijax ptx {redirection}",
        shell=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": buffered},
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    (line,) = ended.stderr.splitlines()
    assert line.startswith("oxijax")


@pytest.mark.parametrize("command", COMMANDS)
def test_what_the_system_refuses_is_a_sentence(command, monkeypatch, capsys):
    def run(args):
        print("a line")
        return open("/nowhere/at-all").close()

    monkeypatch.setattr(__main__._COMMANDS[command], "run", run)
    assert main([command, *SIZES.get(command, ())]) == 2
    captured = capsys.readouterr()
    assert captured.out == "a line\n"
    words = os.strerror(errno.ENOENT)
    assert captured.err == f"oxijax {command}: /nowhere/at-all: {words}\n"
