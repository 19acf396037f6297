"""The registry of kernels, and the commands that go through it: check and ptx."""

import dataclasses
import importlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping

import pytest
from support.paths import ROOT
from support.texts import COPY

from oxijax.__main__ import main
from oxijax._cli import check as check_module
from oxijax._cli import kernel_registry
from oxijax._cli.kernel_registry import registered_kernels
from ptx import kernels as registered_by_oxijax
from ptx import registry
from ptx.definition import KernelDefinition, Written
from ptx.isa import assembler
from ptx.isa.targets import TARGETS
from ptx.registry import register

MODULE = "support.cli_registry"
CHECK, PTX = (["check", "--registry", MODULE], ["ptx", "--registry", MODULE])
REGISTERED = dict(registry.KERNELS)


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch):
    monkeypatch.setattr(registry, "KERNELS", {})
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield
    sys.modules.pop(MODULE, None)


def definition(name: str, configs: Mapping[str, int], needs: str = "sm_75") -> KernelDefinition:
    def body(k, config, plan, p) -> str:
        return f"// {config} {k.target}"

    return KernelDefinition(
        name=name,
        configs=configs,
        parameters=(),
        grid=lambda instance: (1, 1, 1),
        body=body,
        needs=needs,
    )


# ---- the registry


def test_register():
    kernel = register(definition("k", {"one": 1, "two": 2}, needs="sm_80"))
    assert list(registry.KERNELS) == ["k"]
    assert registry.KERNELS["k"] is kernel
    assert list(kernel.configs) == ["one", "two"]
    assert kernel.write_named("two", TARGETS["sm_90"]) == Written("// 2 sm_90", 0)
    assert kernel.needs == "sm_80"


def test_entries_are_frozen():
    configs = {"one": 1}
    kernel = register(definition("k", configs))
    configs["two"] = 2
    assert list(kernel.configs) == ["one"]
    with pytest.raises(AttributeError, match="cannot assign"):
        kernel.name = "other"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError, match="does not support item assignment"):
        kernel.configs["two"] = 2  # pyright: ignore[reportIndexIssue]


def test_wrong_registrations():
    register(definition("k", {"one": 1}))
    with pytest.raises(ValueError, match="'k' is registered already"):
        register(definition("k", {"two": 2}))
    with pytest.raises(ValueError, match="'empty' needs at least one configuration"):
        definition("empty", {})
    with pytest.raises(ValueError, match=r"needs of kernel 'late' must be a target, got 'sm_99'"):
        definition("late", {"one": 1}, needs="sm_99")
    with pytest.raises(ValueError, match=r"kernel k has the configurations one, not 'two'"):
        registry.KERNELS["k"].write_named("two", TARGETS["sm_90"])
    assert list(registry.KERNELS) == ["k"]


# ---- python -m oxijax check, and the option --registry


def test_a_registry_is_what_it_registers_itself():
    """What comes with oxijax, which it imports too, is in no other registry than its own."""
    for family in registered_by_oxijax.__all__:
        for value in list(vars(getattr(registered_by_oxijax, family)).values()):
            if isinstance(value, KernelDefinition) and value.name not in registry.KERNELS:
                register(value)
    importlib.import_module(MODULE)
    own = registered_kernels(MODULE)
    shipped = registered_kernels("ptx.kernels")
    assert next(iter(own)) == "copy"
    assert {"conv_forward", "deform_conv_forward", "gemm", "sampling_forward"} <= shipped.keys()
    assert own.keys() | shipped.keys() == registry.KERNELS.keys()
    assert not own.keys() & shipped.keys()


def test_no_kernel_of_oxijax_is_taken_for_somebody_elses():
    shipped = {kernel.name for kernel in kernel_registry._shipped()}
    bodies = {name: kernel.body.__module__ for name, kernel in REGISTERED.items()}
    assert shipped == {name for name, module in bodies.items() if module.startswith("ptx.kernels.")}


def check(*arguments: str) -> int:
    return main([*CHECK, *arguments])


def rows(printed: str) -> list[list[str]]:
    return [line.split() for line in printed.splitlines() if " sm_" in line and ": " not in line]


def test_check(capsys, tmp_path):
    file = tmp_path / "check.json"
    assert check("--kernel", "copy", "--json", str(file)) == 0
    captured = capsys.readouterr()
    assert captured.err == ""

    printed = rows(captured.out)
    assert [row[:3] for row in printed] == [
        ["copy", config, target] for config in ("small", "large") for target in TARGETS
    ]
    by_case = {(row[1], row[2]): row[3:] for row in printed}
    version, registers, spills, shared, blocks = by_case["large", "sm_90"]
    assert (version, spills, shared) == ("8.7", "0", "32768")
    assert 4 <= int(registers) <= 16
    assert int(blocks) == 228 * 1024 // (33 * 1024)
    assert by_case["small", "sm_90"][3] == "256"
    assert by_case["small", "sm_75"] == ["lacks"]
    assert "copy/small on sm_75: kernel copy: cp.async needs sm_80" in captured.out
    assert "14 assembled, 0 failed, 2 lack an instruction" in captured.out

    report = json.loads(file.read_text())
    assert report["ptxas"] in captured.out
    assert len(report["results"]) == len(printed)
    for result, row in zip(report["results"], printed, strict=True):
        assert [result["kernel"], result["configuration"], result["target"]] == row[:3]
        if result["target"] == "sm_75":
            assert result["status"] == row[3] == "lacks"
            assert result["entries"] == []
            continue
        assert result["status"] == "ok"
        (entry,) = result["entries"]
        assert entry["ptx_version"] == [8, 7]
        assert entry["threads_per_block"] == 128
        figures = ("registers", "spill_stores", "shared_bytes", "blocks_per_sm")
        assert [str(entry[figure]) for figure in figures] == row[4:]


@pytest.mark.parametrize(
    ("kernel", "status", "message"),
    [
        ("spills", "spills", "spilling spills registers: "),
        ("rejected", "error", "line 24: bat.sync        0;\n    Not a name of any known instruct"),
        ("says_too_little", "error", "red.v4.f32 needs sm_90 or later, and the target is sm_86"),
        ("dynamic_of_no_size", "error", "dynamic shared memory, and does not say how much"),
        (
            "dynamic_of_other_size",
            "error",
            "a launch has 8192 bytes of dynamic shared memory, and ",
        ),
        ("too_large", "error", "no block of copy fits on an SM: 128 threads of "),
        ("broken", "error", "ZeroDivisionError: "),
    ],
)
def test_check_fails(capsys, tmp_path, kernel, status, message):
    file = tmp_path / "check.json"
    assert check("--kernel", kernel, "--target", "sm_86", "--json", str(file)) == 1
    printed = capsys.readouterr().out
    assert message in printed
    assert "1 failed, 0 lack" in printed
    (result,) = json.loads(file.read_text())["results"]
    assert result["status"] == status
    assert any(message in reported for reported in result["messages"])


def test_one_failure_among_others(capsys):
    assert check("--target", "sm_86") == 1
    printed = capsys.readouterr().out
    assert "5 assembled, 7 failed, 0 lack" in printed
    passed = [row[:2] for row in rows(printed) if row[5:6] == ["0"] and row[-1] != "0"]
    assert passed == [["copy", "small"], ["copy", "large"], ["dynamic", "1024"]]


def test_check_counts_dynamic_shared_memory(capsys):
    assert check("--kernel", "dynamic", "--target", "sm_80") == 0
    (row,) = rows(capsys.readouterr().out)
    assert row[-1] == str(min(16, 164 * 1024 // (512 + 4096 + 1024)))


def test_a_text_that_configurations_share_is_assembled_once(capsys, monkeypatch):
    importlib.import_module(MODULE)
    twins = {"one": 256, "two": 256}
    register(dataclasses.replace(registry.KERNELS["copy"], name="twins", configs=twins))
    assembled = []

    def run(ptxas, text, target):
        assembled.append(target.name)
        return run_ptxas(ptxas, text, target)

    run_ptxas = assembler._run
    monkeypatch.setattr(assembler, "_run", run)
    assembler._assemble.cache_clear()
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # one after the other
    assert check("--kernel", "twins", "--target", "sm_80", "--target", "sm_90") == 0
    assert assembled == ["sm_80", "sm_90"]
    printed = {(row[1], row[2]): row[3:] for row in rows(capsys.readouterr().out)}
    assert printed["one", "sm_80"] == printed["two", "sm_80"]
    assert printed["one", "sm_90"] == printed["two", "sm_90"]


def test_a_narrow_terminal_cuts_no_figure(capsys, monkeypatch):
    arguments = ("--kernel", "copy", "--target", "sm_80", "--target", "sm_75")
    assert check(*arguments) == 0
    wide = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "30")
    assert check(*arguments) == 0
    narrow = capsys.readouterr().out
    assert rows(narrow) == rows(wide)
    assert "…" not in narrow


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_check_shows_progress_on_a_terminal(capsys, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert check("--kernel", "copy", "--target", "sm_80") == 0
    assert "2/2" in terminal.getvalue()
    assert " sm_80 " not in terminal.getvalue()
    assert len(rows(capsys.readouterr().out)) == 2


def test_check_prints_a_row_before_the_next_is_known(capsys, monkeypatch):
    seen = []

    def check_one(kernel, config, target):
        seen.append(rows(capsys.readouterr().out))
        return check_module.CheckResult(kernel.name, config, target, "lacks")

    monkeypatch.setattr(check_module, "_check_one", check_one)
    monkeypatch.setattr(
        check_module, "_check_each", lambda cases: (check_one(*case) for case in cases)
    )
    assert check("--kernel", "copy", "--target", "sm_80", "--target", "sm_90") == 2
    assert [len(printed) for printed in seen] == [0, 1, 1, 1]


def test_what_is_not_asked_for_is_not_assembled(monkeypatch):
    importlib.import_module(MODULE)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    begun = []

    def check_one(kernel, config, target):
        begun.append(target.name)
        return check_module.CheckResult(kernel.name, config, target, "lacks")

    monkeypatch.setattr(check_module, "_check_one", check_one)
    cases = check_module._cases(
        [registry.KERNELS["copy"]], list(TARGETS.values()) * 1000, ["small"]
    )
    checked = check_module._check_each(cases)
    assert next(checked).target.name == "sm_75"
    checked.close()
    assert 1 <= len(begun) < len(cases)


def test_a_reader_that_has_enough_ends_the_command(tmp_path):
    (tmp_path / "many.py").write_text(
        "from ptx.definition import KernelDefinition\nfrom ptx.registry import register\n"
        "configs = {f'{number:0500}': number for number in range(1000)}\n"
        "register(KernelDefinition(name='many', configs=configs, parameters=(),\n"
        "    grid=lambda instance: (1, 1, 1), body=lambda k, config, plan, p: ''))\n"
    )
    command = [sys.executable, "-m", "oxijax", "ptx", "many", "--list", "--registry", "many"]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == f"{0:0500}\n"
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *(
            ([command, *registry], message)
            for command in ("check", "ptx")
            for registry, message in (
                ([], "the module ptx.kernels registers no kernel"),
                (["--registry", "ptx.nothing"], "no module ptx.nothing\n"),
                (["--registry", "json"], "the module json registers no kernel"),
            )
        ),
        ([*CHECK, "--kernel=copy", "--target=sm_75"], "nothing was assembled"),
        ([*CHECK, "--kernel=copy", "--kernel=nothing"], "no kernel nothing; there are copy, spi"),
        ([*CHECK, "--config=nothing-*"], "no configuration nothing-* of these kernels"),
        ([*PTX, "nothing"], "no kernel 'nothing'; there are copy, spills"),
        ([*PTX, "copy", "--config=huge"], "no configuration 'huge'; there are small, large"),
        ([*PTX, "copy", "--target=sm_75"], "cp.async needs sm_80"),
        *(
            ([*PTX, "copy", "--list", option], "--list prints the names of all configurations")
            for option in ("--sass", "--config=small", "--target=sm_90", "--output=x")
        ),
        *(
            ([*PTX, "--output=x", option], "--output writes the PTX of all configurations")
            for option in ("--sass", "--config=one")
        ),
    ],
)
def test_what_is_refused(capsys, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == "" or "nothing was assembled" in message


@pytest.mark.parametrize("command", ["check", "ptx"])
def test_a_missing_import_of_the_registry_is_not_hidden(command, tmp_path, monkeypatch):
    (tmp_path / "needy_registry.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        main([command, "--registry", "needy_registry"])


def test_check_without_ptxas(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.metadata.files", lambda name: None)
    assert check("--kernel", "copy") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("oxijax check: no ptxas on PATH, and none of the wheels ")
    assert line.endswith(': pip install "nvidia-cuda-nvcc>=13,<14" "nvidia-cuda-nvdisasm>=13,<14"')


# ---- python -m oxijax ptx


def ptx(*arguments: str) -> int:
    return main([*PTX, *arguments])


def test_ptx_prints_the_text(capsys):
    assert ptx("copy") == 0  # the first configuration, for the lowest target
    assert capsys.readouterr().out == COPY.replace("768", "256").replace("7.0", "8.7")
    assert ptx("copy", "--config", "large", "--target", "sm_90a") == 0
    printed = capsys.readouterr().out
    assert ".target sm_90a" in printed
    assert "tile[32768]" in printed


def test_ptx_writes_all_texts(tmp_path):
    register(definition("k", {"one": 1, "odd/two": 2}))
    folder = tmp_path / "all"
    options = ("--output", str(folder), "--target", "sm_80")
    assert main(["ptx", "--registry", "ptx.registry", *options]) == 0
    files = {
        path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.ptx")
    }
    assert files == {"k/one.ptx": "// 1 sm_80", "k/odd/two.ptx": "// 2 sm_80"}


def test_ptx_writes_the_texts_of_one_kernel(capsys, tmp_path):
    assert ptx("says_too_little", "--output", str(tmp_path), "--target", "sm_80") == 0
    assert "red.v4.f32 needs sm_90 or later" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert ptx("copy", "--output", str(tmp_path), "--target", "sm_90") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
    text = (tmp_path / "copy" / "large.ptx").read_text()
    assert ptx("copy", "--config", "large", "--target", "sm_90") == 0
    assert capsys.readouterr().out == text


def test_ptx_lists_the_kernels(capsys):
    assert ptx() == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["copy", "sm_80", "and", "later", "2", "configurations"]
    assert printed[1].split() == ["spills", "sm_80", "and", "later", "1", "configuration"]
    assert len(printed) == 9
    assert ptx("copy", "--list") == 0
    assert capsys.readouterr().out == "small\nlarge\n"
