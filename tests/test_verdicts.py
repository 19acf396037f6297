"""Verdicts are kept as long as nothing changes that they depend on, and no longer."""

import contextlib
import dataclasses
import functools
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support import contents, verdicts
from support.contents import PACKAGES, digest, emulator_sources, sources_of
from support.paths import ROOT, SUPPORT
from support.verdicts import twentieth_of

import ptx.emulator
from ptx.emulator import Buffer
from ptx.isa.dtypes import f16, f32

PATHS = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))


def run(arguments, environment, status=0) -> str:
    """What Python prints."""
    command = [sys.executable, "-P", *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=90)
    assert finished.returncode == status, finished.stdout + finished.stderr
    return finished.stdout


# ---- what a key is made of


@dataclasses.dataclass(frozen=True)
class Layer:
    channels: int
    taps: int


@dataclasses.dataclass(frozen=True)
class OtherLayer:
    channels: int
    taps: int


def ask(text="text", grid=(2, 1, 1), block=32, number=1, held=(1.0, 2.0), **options):
    """Asks the emulator for a launch, which nobody runs."""
    buffers = [Buffer(np.array(held)), Buffer(np.zeros(4, np.float32), initialized=False)]
    options = {"dynamic_shared": 0, "schedule": None, **options}
    ptx.emulator.launch(text, grid, block, [*buffers, np.uint32(number)], **options)


DIFFERENT = [
    *(
        None,
        True,
        1,
        1.0,
        "1",
        b"1",
        (1,),
        [1],
        {1},
        {1: None},
        (),
        ((),),
        ("a", "b"),
        (("a",), "b"),
    ),
    *("ab", ("b", "a"), np.float32(1), np.float64(2), np.int32(1), np.array([1]), np.array([1, 0])),
    *(np.array([[1], [0]]), np.array([1, 0], np.uint64), np.array([1, 0], np.float16)),
    *(f16, f32, Layer(1, 2), Layer(2, 1), OtherLayer(1, 2), {1: 2}, {2: 1}, {"a", "b"}),
    *(ask, functools.partial(ask, "other text"), functools.partial(ask, grid=(1, 2, 1))),
    *(functools.partial(ask, block=64), functools.partial(ask, number=2)),
    *(functools.partial(ask, held=(1.0, 3.0)), functools.partial(ask, held=(1.0,))),
    *(functools.partial(ask, dynamic_shared=16), functools.partial(ask, schedule=1)),
    *(functools.partial(ask, blocks=[0]), functools.partial(ask, kernel="other")),
]


def test_different_contents_have_different_keys():
    keys = [digest(value) for value in DIFFERENT]
    assert len(set(keys)) == len(keys)
    assert all(re.fullmatch("[0-9a-f]{16}", key) for key in keys)
    assert digest(Layer) != digest(OtherLayer)
    assert digest(1, 2) != digest((1, 2)) != digest(1, (2,))


def test_equal_contents_have_equal_keys():
    for value in DIFFERENT:
        assert digest(value) == digest(value)
    assert digest({"a", "b", "c"}) == digest({"c", "a", "b"})
    assert digest(ask) == digest(lambda: ask())
    empty = [Buffer(np.full(3, value), initialized=False) for value in (1.0, 2.0)]
    assert digest(empty[0]) == digest(empty[1])
    assert digest(Buffer(np.zeros(3))) != digest(Buffer(np.zeros(3), writable=False))


# Names of modules differ: pytest does not import this file as another process does.
STABLE = [value for value in DIFFERENT if not isinstance(value, Layer | OtherLayer)]


@pytest.mark.parametrize("seed", ["1", "2"])
def test_keys_are_those_of_other_processes(seed):
    code = "import test_verdicts as t; print(*map(t.digest, t.STABLE))"
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": PATHS}
    assert run(["-c", code], environment).split() == [digest(value) for value in STABLE]


@pytest.mark.parametrize("value", [object(), print, iter([])])
def test_what_has_no_content_is_refused(value):
    with pytest.raises(TypeError, match="a verdict cannot depend on"):
        digest(value)


def test_a_function_without_a_launch_is_refused():
    with pytest.raises(ValueError, match="launches nothing"):
        digest(lambda: None)


# ---- sources

SOURCES = {
    "tests/test_some.py": "from support import some\nimport ptx.kernels.conv",
    "tests/conftest.py": "",
    "tests/other/test_other.py": "from ptx.kernels.gemm.config import GemmConfig",
    "tests/other/conftest.py": "",
    "tests/support/contents.py": "",
    "tests/support/verdicts.py": "",
    "tests/support/some.py": "from support.deeper import name",
    "tests/support/deeper.py": "",
    "tests/support/unused.py": "",
    "ptx/kernels/conv/config.py": "",
    "ptx/kernels/conv/forward.py": "",
    "ptx/kernels/gemm/definition.py": "",
    "ptx/emulator/launch.py": "",
    "ptx/emulator/instructions/floats.py": "",
    "ptx/isa/targets.py": "",
    "ptx/testing/mutate.py": "",
    "ptx/kernel.py": "",
    "ptx/tile/loop.py": "",
}


def hashes(root: Path, test: str) -> tuple[str, str]:
    """Of a test's own sources, and of those that the emulator is made of."""
    own = sources_of.__wrapped__(root / test, root, root)
    return digest(own), digest(emulator_sources.__wrapped__(root))


@pytest.fixture
def tree(tmp_path):
    for name, text in SOURCES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize("changed", SOURCES)
def test_what_makes_a_verdict_void(tree, changed):
    tests = "tests/test_some.py", "tests/other/test_other.py"
    before = [hashes(tree, test) for test in tests]
    with (tree / changed).open("a") as file:
        file.write("\n# changed")
    own, of_other = (
        [index for index, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        for old, new in zip(before, [hashes(tree, test) for test in tests], strict=True)
    )
    folder, name = changed.rsplit("/", 1)
    everywhere = [0] if name in ("contents.py", "verdicts.py") or folder == "tests" else []
    if name in ("test_some.py", "some.py", "deeper.py", "config.py"):
        assert (own, of_other) == ([0], [])
    elif folder == "tests/other" or name == "definition.py":
        assert (own, of_other) == ([], [0])
    elif name in ("launch.py", "floats.py", "targets.py", "mutate.py", "kernel.py"):
        assert own == of_other == [1]
    else:
        assert own == of_other == everywhere


def test_a_launch_is_another_one_in_another_emulator(monkeypatch):
    before = digest(ask), digest("text")
    monkeypatch.setattr(contents, "emulator_sources", lambda: (("ptx/emulator/launch.py", "0"),))
    after = digest(ask), digest("text")
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_sources_are_the_same_in_another_checkout(tmp_path):
    for name in ("ptx", "tests/support", "tests/ptx/kernels", "tests/conftest.py"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, tmp_path / name)
    test = "tests/ptx/kernels/test_race_freedom.py"
    assert hashes(tmp_path, test) == hashes(ROOT, test)
    names = [name for name, _ in sources_of(ROOT / test)]
    assert {"tests/support/small_calls.py", "ptx/kernels/conv/config.py"} <= set(names)


# ---- what is proven

PLUGIN = """\
from pathlib import Path
from support.verdicts import Verdicts, add_options

def pytest_addoption(parser):
    parser.addoption("--sample")
    add_options(parser)

def pytest_configure(config):
    config.pluginmanager.register(Verdicts(config, config.rootpath))
"""
TESTS = """\
import os
from pathlib import Path
import pytest

VALUES = [pytest.param(i + int(os.environ["SHIFT"]), id=str(i)) for i in range(15)]

def prove(value, kept):
    if kept(Path(__file__).with_name("content")):
        return
    with Path(__file__).with_name("ran").open("a") as file:
        file.write(f"{value}\\n")
    assert str(value) != os.environ["FAILS"]

@pytest.mark.parametrize("value", VALUES)
def test_first(value, kept):
    prove(value, kept)

@pytest.mark.parametrize("value", VALUES)
def test_last(value, kept):
    prove(value + 15, kept)
"""

ADDS_MARKER = """
    config.addinivalue_line("markers", "kept: once it has passed")
"""
MARKED = """\
from pathlib import Path
import pytest

@pytest.mark.kept("docs/performance.md")
@pytest.mark.parametrize("value", range(15))
def test_marked(value):
    with Path(__file__).with_name("ran").open("a") as file:
        file.write(f"{value}\\n")
"""


class Project:
    """A checkout that has nothing but the mechanism, and thirty proofs."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch):
        self.root, self.monkeypatch, tests = root, monkeypatch, root / "tests"
        self.content, self.store = tests / "content", tests / "data" / "verdicts.txt"
        self.ran = tests / "ran"
        (tests / "support").mkdir(parents=True)
        self.store.parent.mkdir()
        for name in ("__init__.py", "contents.py", "paths.py", "verdicts.py"):
            shutil.copy(SUPPORT / name, tests / "support")
        options = 'testpaths = ["tests"]\naddopts = "-q --import-mode=importlib"\n'
        (root / "pyproject.toml").write_text(f"[tool.pytest.ini_options]\n{options}")
        (root / "plugin.py").write_text(PLUGIN)
        self.test = tests / f"test_of_{root.name}.py"  # a process has one module of a name
        self.test.write_text(TESTS)
        self.content.write_text("before")

    @property
    def keys(self) -> list[str]:
        return self.store.read_text().split()

    def run(
        self, *options: str, fails: int | None = None, shift: int = 0, process: bool = False
    ) -> tuple[list[int], str]:
        """Runs the tests: which proofs were made, and what the summary says of verdicts.

        Args:
          *options: of pytest.
          fails: the proof that fails.
          shift: is added to each parameter, and not to its name.
          process: in a process of its own, as workers need it.
        """
        self.ran.write_text("")
        status, said = 0 if fails is None else 1, io.StringIO()
        path = os.pathsep.join(map(str, (self.root, self.root / "tests", PACKAGES)))
        command = ["-p", "plugin", "-p", "no:faulthandler", "-p", "no:cacheprovider", *options]
        with self.monkeypatch.context() as patch, contextlib.redirect_stdout(said):
            patch.chdir(self.root)
            patch.setenv("FAILS", str(fails))
            patch.setenv("SHIFT", str(shift))
            if process:
                own = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")}
                said.write(run(["-m", "pytest", *command], {**own, "PYTHONPATH": path}))
            else:
                patch.syspath_prepend(self.root)
                for name in ("plugin", f"tests.{self.test.stem}"):
                    sys.modules.pop(name, None)
                sources_of.cache_clear()  # as another process has none
                assert pytest.main(["-s", *command]) == status
        (summary,) = re.findall("^verdicts: (.*)$", said.getvalue(), re.M)
        return sorted(map(int, self.ran.read_text().split())), summary


@pytest.fixture
def project(tmp_path, monkeypatch):
    return Project(tmp_path, monkeypatch)


def test_what_is_kept_is_not_proven_but_for_a_twentieth(project):
    made, summary = project.run("--keep-verdicts", "--afresh", "all")
    assert made == [*range(30)]
    assert summary.startswith("0 kept, 30 proven, 0 of them afresh")
    assert project.keys == sorted(set(project.keys))
    assert len(project.keys) == 30
    found: list[int] = []
    for twentieth in map(str, range(20)):
        made, summary = project.run("--afresh", twentieth)
        count = sum(twentieth_of(key) == twentieth for key in project.keys)
        assert len(made) == count
        assert summary.startswith(f"{30 - count} kept, {count} proven, {count} of them afresh")
        assert f"--afresh {twentieth}" in summary
        found += made
    assert sorted(found) == [*range(30)]
    assert project.run("--afresh", "all")[0] == [*range(30)]


@pytest.mark.parametrize("changed", ["content", "test", "parameters", "versions", "nothing"])
def test_what_has_changed_is_proven(project, changed, monkeypatch):
    project.run("--keep-verdicts")
    shift = 0
    match changed:
        case "content":
            project.content.write_text("after")
        case "test":
            project.test.write_text(f"{TESTS}\n# changed")
        case "parameters":
            shift = 1
        case "versions":
            monkeypatch.setattr(verdicts, "versions", lambda: ("another machine",))
    keys = project.keys
    turn = twentieth_of(keys[0])  # one that has a key
    made, _ = project.run("--afresh", turn, shift=shift)
    if changed == "nothing":
        assert len(made) == sum(twentieth_of(key) == turn for key in keys)
    else:
        assert len(made) == 30
    assert project.keys == keys  # nobody has asked to keep anything


OF_WORKERS = """
import os
from support import verdicts
verdicts.current_twentieth = lambda: "none" if "PYTEST_XDIST_WORKER" in os.environ else "{turn}"
"""


def test_workers_keep_verdicts_too(project):
    """Those of another process; and each proves the part of the process that has started it."""
    project.run("--keep-verdicts")
    keys = project.keys
    project.store.write_text("\n".join(keys[5:]))
    turn = twentieth_of(keys[5])  # one that has a key
    expected, _ = project.run("--afresh", turn)
    (project.root / "plugin.py").write_text(PLUGIN + OF_WORKERS.format(turn=turn))
    made, summary = project.run("--keep-verdicts", "-n", "2", process=True)
    assert made == expected
    again = sum(twentieth_of(key) == turn for key in keys[5:])
    assert len(made) == 5 + again
    assert summary.startswith(f"{25 - again} kept, {5 + again} proven, {again} of them afresh")
    assert project.keys == keys


def test_what_fails_is_not_kept(project):
    project.store.write_text("0123456789abcdef\n")
    made, _ = project.run("--keep-verdicts", fails=3)
    assert made == [*range(30)]
    assert len(project.keys) == 30
    assert "0123456789abcdef" in project.keys  # of what the failure may have kept from running
    project.run("--keep-verdicts")
    assert len(project.keys) == 30
    project.run("--keep-verdicts", "--afresh", "all", fails=4)
    assert len(project.keys) == 29
    assert 4 in project.run()[0]


def test_what_nothing_asks_for_goes_after_the_whole_suite(project):
    project.store.write_text("0123456789abcdef\n")
    for option in (["-k", "first or last"], ["tests"], ["--collect-only"]):
        project.run("--keep-verdicts", *option)
        assert "0123456789abcdef" in project.keys
    assert len(project.keys) == 31
    project.run("--keep-verdicts")
    assert "0123456789abcdef" not in project.keys
    assert len(project.keys) == 30


@pytest.mark.parametrize("changed", ["library", "page", "test", "assembler", "nothing"])
def test_what_a_marked_test_depends_on(project, changed, monkeypatch):
    project.test.write_text(MARKED)
    (project.root / "plugin.py").write_text(PLUGIN + ADDS_MARKER)
    assert project.run("--keep-verdicts")[0] == [*range(15)]
    turns = [twentieth_of(key) for key in project.keys]
    match changed:
        case "library":
            monkeypatch.setattr(verdicts, "library", changed_library("ptx/model.py"))
        case "page":
            monkeypatch.setattr(verdicts, "library", changed_library("docs/performance.md"))
        case "test":
            project.test.write_text(f"{MARKED}\n# changed")
        case "assembler":
            monkeypatch.setattr(verdicts, "assembler", lambda: ("another",))
    made, _ = project.run("--afresh", turns[0])
    assert len(made) == (turns.count(turns[0]) if changed == "nothing" else 15)


def changed_library(name: str):
    """The library with another content of one file."""

    def sources(*patterns: str):
        hashes = dict(contents.library(*patterns))
        assert name in hashes
        return tuple({**hashes, name: "changed"}.items())

    return sources


def test_each_twentieth_has_its_turn(monkeypatch):
    day = 86_400
    for period in (3_200, day, 7 * day):
        twentieths = set()
        for time in range(0, 20 * period, period):
            monkeypatch.setattr(verdicts.time, "time", lambda time=time: 1.7e9 + time)
            twentieths.add(verdicts.current_twentieth())
        assert twentieths == {str(i) for i in range(20)}
