"""The sentences of every command about numbers, names and outputs that do not fit.

They come before any work. The arguments are those that the parser has, so that what a command is
given later is tested too.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from oxijax import __main__
from oxijax.__main__ import main
from oxijax._cli import CommandError, arguments
from oxijax._cli.arguments import Output, OutputFile, OutputFolder, PictureFile, write_json

SIZES = ("8", "8", "8")


def declared() -> Iterator[tuple[str, argparse.Action]]:
    """All arguments of all commands."""
    for commands in __main__._parser()._actions:
        if isinstance(commands, argparse._SubParsersAction):
            for command, parser in commands.choices.items():
                yield from ((command, action) for action in parser._actions)


def output_kind(action: argparse.Action) -> type[Output] | None:
    """What the argument names, if that is an output."""
    kind = getattr(action.type, "func", None)
    return kind if isinstance(kind, type) and issubclass(kind, Output) else None


def is_number(action: argparse.Action) -> bool:
    return getattr(action.type, "__qualname__", "").startswith(arguments.number_type.__name__)


OUTPUTS = {
    (command, action.option_strings[0]): kind
    for command, action in declared()
    if (kind := output_kind(action))
}
NUMBERS = [
    (command, (action.option_strings or [action.dest])[0])
    for command, action in declared()
    if is_number(action)
]


def words(command: str, option: str, text: str) -> list[str]:
    """The command with an argument, and with those that it cannot do without."""
    if option in "mnk":
        return [command, *(text if size == option else "8" for size in "mnk")]
    return [command, *(SIZES if command == "roofline" else ()), f"{option}={text}"]


def works(monkeypatch, command: str, run: Callable[[argparse.Namespace], int]) -> None:
    """Has a command do something else than its work."""
    monkeypatch.setattr(__main__._COMMANDS[command], "run", run)


def begins(args: argparse.Namespace) -> int:
    pytest.fail("the work begins")


def sentence(capsys, command: str) -> str:
    """All that the command says, which is one line."""
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(f"oxijax {command}: ")
    return line


def test_every_argument_has_a_type_that_judges_it():
    files = {(c, o) for c, o in OUTPUTS if o == "--json"}
    assert {command for command, _ in files} == {"bench", "check", "info", "model", "roofline"}
    others = {o: k for o, k in OUTPUTS.items() if o not in files}
    assert others == {
        ("demo", "--output"): PictureFile,
        ("ptx", "--output"): OutputFolder,
        ("roofline", "--output"): PictureFile,
    }
    assert {("bench", "--repeats"), ("demo", "--seeds"), ("roofline", "m")} <= {*NUMBERS}
    for command, action in declared():
        judged = output_kind(action) or is_number(action)
        assert action.type is None or judged, f"{command} {action.dest}"
        assert action.metavar not in ("FILE", "DIR") or judged, f"{command} {action.dest}"


# ---- outputs


def in_missing_folder(kind: type[Output]) -> str:
    # A folder is made where there is none, but not in a folder that is gone.
    return "nowhere/x.png" if issubclass(kind, OutputFile) else deleted_folder(kind)


def beside_a_file(kind: type[Output]) -> str:
    Path("file").touch()
    return "file/x.png"


def of_another_kind(kind: type[Output]) -> str:
    if issubclass(kind, OutputFile):
        Path("x.png").mkdir()
    else:
        Path("x.png").touch()
    return "x.png"


def deleted_folder(kind: type[Output]) -> str:
    Path("deleted").mkdir()
    os.chdir("deleted")
    Path("../deleted").rmdir()
    return "x.png"


@pytest.mark.quick
@pytest.mark.parametrize(
    "path", [in_missing_folder, beside_a_file, of_another_kind, deleted_folder]
)
@pytest.mark.parametrize(("command", "option"), OUTPUTS)
def test_an_output_that_cannot_be_written(command, option, path, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    works(monkeypatch, command, begins)
    text = path(OUTPUTS[command, option])
    before = sorted(tmp_path.rglob("*"))
    assert main(words(command, option, text)) == 2
    line = sentence(capsys, command)
    assert f": {option} must be a" in line
    assert " that can be written" in line
    assert f", got {text}: " in line
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("command", ["demo", "roofline"])
def test_a_picture_is_a_png_file(command, monkeypatch, tmp_path, capsys):
    works(monkeypatch, command, begins)
    path = tmp_path / "picture.jpg"
    assert main(words(command, "--output", str(path))) == 2
    line = sentence(capsys, command)
    assert "--output must be a .png file" in line
    assert line.endswith(f", got {path}")
    assert not path.exists()


def test_the_demos_own_picture_is_tried_too(monkeypatch, tmp_path, capsys):
    works(monkeypatch, "demo", begins)
    monkeypatch.chdir(tmp_path)
    deleted_folder(PictureFile)
    assert main(["demo"]) == 2
    assert "got deform_conv_demo.png: No such file" in sentence(capsys, "demo")


@pytest.mark.parametrize("error", [CommandError("no luck"), OSError(5, "no luck")])
@pytest.mark.parametrize(("command", "option"), OUTPUTS)
def test_failed_work_leaves_everything_as_it_was(
    command, option, error, monkeypatch, tmp_path, capsys
):
    def run(args: argparse.Namespace) -> int:
        raise error

    works(monkeypatch, command, run)
    assert main(words(command, option, str(tmp_path / "new.png"))) == 2
    assert sentence(capsys, command) == f"oxijax {command}: no luck"
    assert list(tmp_path.iterdir()) == []
    if issubclass(OUTPUTS[command, option], OutputFile):
        old = tmp_path / "old.png"
        old.write_text("old")
        assert main(words(command, option, str(old))) == 2
        assert old.read_text() == "old"


def writes(args: argparse.Namespace) -> int:
    write_json(args, [1, 2])
    return 0


def test_a_file_is_replaced(monkeypatch, tmp_path):
    works(monkeypatch, "info", writes)
    path = tmp_path / "x.json"
    for before in (None, "", "x" * 1000):
        if before is not None:
            path.write_text(before)
        assert main(["info", "--json", str(path)]) == 0
        assert json.loads(path.read_text()) == [1, 2]


def test_a_pipe_and_a_device_are_written(monkeypatch):
    works(monkeypatch, "info", writes)
    assert main(["info", "--json", os.devnull]) == 0
    reading, writing = os.pipe()
    assert main(["info", "--json", f"/dev/fd/{writing}"]) == 0
    os.close(writing)
    with open(reading) as pipe:
        assert json.load(pipe) == [1, 2]


def test_a_disk_that_is_full_at_the_end(monkeypatch, tmp_path, capsys):
    works(monkeypatch, "info", writes)
    path = tmp_path / "x.json"
    monkeypatch.setattr(arguments.os.path, "lexists", lambda path: False)  # as if it were new
    path.symlink_to("/dev/full")
    assert main(["info", "--json", str(path)]) == 2
    assert sentence(capsys, "info").endswith(f"got {path}: No space left on device")
    assert list(tmp_path.iterdir()) == []


# ---- numbers


def refusal(capsys, command: str, option: str, text: str) -> str:
    """The parser's last line about a number, which ends with it."""
    with pytest.raises(SystemExit) as end:
        main(words(command, option, text))
    assert end.value.code == 2
    line = capsys.readouterr().err.splitlines()[-1]
    name = option.upper() if option in "mnk" else option
    assert line.startswith(f"oxijax {command}: error: argument {name}: must be a ")
    assert line.endswith(f", got {text!r}")
    return line


@pytest.mark.quick
@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "1e999", "9" * 5000])
@pytest.mark.parametrize(("command", "option"), NUMBERS)
def test_what_is_no_number(command, option, text, monkeypatch, capsys):
    works(monkeypatch, command, begins)
    refusal(capsys, command, option, text)


@pytest.mark.parametrize(
    ("command", "option", "text"),
    [
        *(("bench", "--repeats", text) for text in ("0", "-5", "2.5", "99999999999")),
        *(("bench", "--seconds", text) for text in ("-1", "-1e-9")),
        *(("demo", option, "0") for option in ("--seeds", "--steps")),
        *(("demo", option, "2147483648") for option in ("--seeds", "--steps")),
    ],
)
def test_a_number_out_of_range(command, option, text, monkeypatch, capsys):
    works(monkeypatch, command, begins)
    assert " number from " in refusal(capsys, command, option, text)


@pytest.mark.parametrize("text", ["0", "-8", str(2**63)])
@pytest.mark.parametrize("option", ["m", "n", "k", "--batch"])
def test_a_size_out_of_range(option, text, capsys):
    assert main(words("roofline", option, text)) == 2
    assert f"oxijax roofline: {option.strip('-')} must " in sentence(capsys, "roofline")


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [("--repeats", "1", 1), ("--seconds", "0", 0.0), ("--seconds", "1e-3", 1e-3)],
)
def test_a_number_that_fits(option, text, value, monkeypatch):
    def run(args: argparse.Namespace) -> int:
        assert getattr(args, option.strip("-")) == value
        return 0

    works(monkeypatch, "bench", run)
    assert main(["bench", option, text]) == 0


# ---- names


@pytest.mark.parametrize("module", ["", ".", "..", "../x", ".x", "x..y", "x.", "x.py", "../x.py"])
@pytest.mark.parametrize("command", ["check", "ptx"])
def test_what_is_no_modules_name(command, module, capsys):
    assert main([command, "--registry", module]) == 2
    line = sentence(capsys, command)
    assert "--registry must be a module's name, such as " in line
    assert line.endswith(f", got {module!r}")


def test_kernels_are_found_from_a_folder_that_is_deleted(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    deleted_folder(OutputFolder)
    assert main(["ptx"]) == 0
    assert "sampling_forward" in capsys.readouterr().out
