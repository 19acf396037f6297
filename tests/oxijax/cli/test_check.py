"""The registry of kernels, and the commands that go through it: check and ptx."""

import dataclasses
import importlib
import json
import sys
from collections.abc import Mapping

import pytest
from support.texts import COPY

from oxijax.__main__ import main
from ptx import registry
from ptx.isa import assembler
from ptx.isa.targets import TARGETS
from ptx.kernel import KernelDefinition, Written
from ptx.registry import kernels, register

MODULE = "support.cli_registry"


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch):
    monkeypatch.setattr(registry, "_KERNELS", {})
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
    assert list(kernels()) == ["k"]
    assert kernels()["k"] is kernel
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
    with pytest.raises(TypeError, match="does not support item assignment"):
        kernels()["other"] = kernel  # pyright: ignore[reportIndexIssue]


def test_wrong_registrations():
    register(definition("k", {"one": 1}))
    with pytest.raises(ValueError, match="'k' is registered already"):
        register(definition("k", {"two": 2}))
    with pytest.raises(ValueError, match="'empty' needs at least one configuration"):
        definition("empty", {})
    with pytest.raises(ValueError, match=r"needs of kernel 'late' must be a target, got 'sm_99'"):
        definition("late", {"one": 1}, needs="sm_99")
    with pytest.raises(ValueError, match=r"kernel k has the configurations one, not 'two'"):
        kernels()["k"].write_named("two", TARGETS["sm_90"])
    assert list(kernels()) == ["k"]


# ---- python -m oxijax check


def check(*arguments: str) -> int:
    return main(["check", "--registry", MODULE, *arguments])


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
    register(dataclasses.replace(kernels()["copy"], name="twins", configs=twins))
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


@pytest.mark.parametrize("command", ["check", "ptx"])
def test_no_kernels(capsys, command):
    assert main([command]) == 2
    assert "the module ptx.kernels registers no kernel" in capsys.readouterr().err
    assert main([command, "--registry", "ptx.nothing"]) == 2
    assert "no module ptx.nothing\n" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["check", "ptx"])
def test_a_missing_import_of_the_registry_is_not_hidden(command, tmp_path, monkeypatch):
    (tmp_path / "needy_registry.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        main([command, "--registry", "needy_registry"])


def test_check_of_nothing_is_no_pass(capsys):
    assert check("--kernel", "copy", "--target", "sm_75") == 2
    assert "nothing was assembled" in capsys.readouterr().err
    assert check("--kernel", "copy", "--kernel", "nothing") == 2
    assert "no kernel nothing; there are copy, spills" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        check("--target", "sm_99")
    assert "sm_99" in capsys.readouterr().err


def test_check_without_ptxas(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.metadata.files", lambda name: None)
    assert check("--kernel", "copy") == 2
    assert 'pip install "oxijax[test]"' in capsys.readouterr().err


# ---- python -m oxijax ptx


def ptx(*arguments: str) -> int:
    return main(["ptx", "--registry", MODULE, *arguments])


def test_ptx_prints_the_text(capsys):
    assert ptx("copy") == 0  # the first configuration, for the lowest target
    assert capsys.readouterr().out == COPY.replace("768", "256").replace("7.0", "8.7")
    assert ptx("copy", "--config", "large", "--target", "sm_90a") == 0
    printed = capsys.readouterr().out
    assert ".target sm_90a" in printed
    assert "tile[32768]" in printed


def test_ptx_writes_all_texts(capsys, tmp_path):
    register(definition("k", {"one": 1, "odd/two": 2}))
    arguments = ("ptx", "--registry", "ptx.registry", "--output", str(tmp_path / "all"))
    assert main([*arguments, "--target", "sm_80"]) == 0
    files = {
        path.relative_to(tmp_path / "all").as_posix(): path.read_text()
        for path in (tmp_path / "all").rglob("*.ptx")
    }
    assert files == {"k/one.ptx": "// 1 sm_80", "k/odd/two.ptx": "// 2 sm_80"}
    for option in ("--sass", "--config=one"):
        assert main([*arguments, option]) == 2
        assert "--output writes the PTX of all configurations" in capsys.readouterr().err


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
    assert printed[0] == "copy (sm_80 and later): small, large"
    assert len(printed) == 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "no kernel 'nothing'; there are copy, spills"),
        (["copy", "--config", "huge"], "no configuration 'huge'; there are small, large"),
        (["copy", "--target", "sm_75"], "cp.async needs sm_80"),
    ],
)
def test_ptx_of_what_is_not_there(capsys, arguments, message):
    assert ptx(*arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
