"""The assembler gate: what ptxas reports is what we say, and what it rejects is shown."""

import dataclasses
import importlib.metadata
import shutil
import sys

import pytest
from support.texts import COPY, EMPTY, spilling

from ptx.isa.assembler import (
    Assembled,
    AssemblyError,
    ToolNotFoundError,
    assemble,
    find_ptxas,
    ptxas_version,
)
from ptx.isa.targets import TARGETS


def test_report():
    assembled = assemble(COPY, "sm_80")
    assert list(assembled) == ["copy"]
    copy = assembled["copy"]
    assert copy.kernel == "copy"
    assert copy.target is TARGETS["sm_80"]
    assert copy.ptx_version == (7, 0)
    assert 4 <= copy.registers <= 16
    assert copy.shared_bytes == 768
    assert copy.barriers == 1
    assert copy.threads_per_block == 128
    assert copy.spills == copy.local_bytes == 0
    assert copy.constant_bytes >= 16  # two pointers
    assert copy.warnings == ()


@pytest.mark.parametrize("target", TARGETS)
def test_every_target(target):
    text = COPY.replace("7.0", "6.3").replace("sm_80", "sm_75")
    copy = assemble(text, target)["copy"]
    assert copy.target.name == target
    assert copy.shared_bytes == 768
    assert copy.registers > 0


def test_kernels_come_in_the_order_of_the_text():
    assembled = assemble(COPY + EMPTY, TARGETS["sm_90"])
    assert list(assembled) == ["copy", "empty"]
    assert assembled["copy"].threads_per_block == 128
    assert assembled["empty"].threads_per_block == 96
    assert assembled["empty"].shared_bytes == 0
    assert list(assemble(COPY + EMPTY.replace("empty", "also"), "sm_90")) == ["copy", "also"]


def test_spills():
    many = assemble(spilling(60), "sm_80")["spilling"]
    assert many.registers == 24
    assert many.spill_stores > 100
    assert many.spill_loads > 100
    assert many.spills == many.spill_stores + many.spill_loads
    assert many.local_bytes > 100
    assert assemble(spilling(8), "sm_80")["spilling"].spills == 0


def test_error_shows_the_line():
    text = COPY.replace("bar.sync ", "bar.sink ").replace("tile+4", "tilt+4")
    with pytest.raises(AssemblyError) as caught:
        assemble(text, "sm_80")
    message = str(caught.value)
    barrier = 1 + text.splitlines().index("    bar.sink        0;")
    assert f"line {barrier}: bar.sink        0;\n" in message
    assert "Unknown modifier '.sink'" in message
    assert f"line {barrier + 1}: ld.shared.u32   %r1, [tilt+4];" in message
    assert "sm_80" in message
    assert "kernel.ptx" not in message  # no file of ours
    assert caught.value.target is TARGETS["sm_80"]
    first = next(d for d in caught.value.diagnostics if "sink" in d.message)
    assert (first.line, first.text) == (barrier, "bar.sink        0;")


def test_error_about_no_line():
    with pytest.raises(AssemblyError, match=r"too much shared data .*\n?.*max"):
        assemble(COPY.replace("768", "65536"), "sm_80")


def test_error_about_too_many_lines_is_short():
    text = COPY.replace("    ret;", "    wrong;\n" * 40 + "    ret;")
    with pytest.raises(AssemblyError, match=r"and 28 more lines$") as caught:
        assemble(text, "sm_80")
    assert len({d.line for d in caught.value.diagnostics}) == 40


def test_text_for_a_later_target():
    with pytest.raises(AssemblyError, match="sm_75"):
        assemble(COPY, "sm_75")


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"sm_75, .*sm_120, got 'sm_99'"):
        assemble(COPY, "sm_99")
    with pytest.raises(ValueError, match="no kernel"):
        assemble("// .entry copy()\n", "sm_80")


def test_without_ptxas(monkeypatch):
    def absent(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(importlib.metadata, "files", absent)
    for function in (find_ptxas, ptxas_version, lambda: assemble(COPY, "sm_80")):
        with pytest.raises(ToolNotFoundError, match=r"pip install nvidia-cuda-nvcc$"):
            function()


@pytest.mark.parametrize("wheel", ["nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12"])
def test_ptxas_of_a_wheel(monkeypatch, tmp_path, wheel):
    """A wheel as pip unpacks it, around the ptxas of this machine."""
    site = tmp_path / "site"
    bin_folder = site / "nvidia" / "any" / "bin"
    bin_folder.mkdir(parents=True)
    shutil.copy(find_ptxas(), bin_folder / "ptxas")
    (bin_folder / "nvcc").write_text("")
    metadata = site / f"{wheel.replace('-', '_')}-13.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {wheel}\nVersion: 13.0\n")
    recorded = ("nvidia/any/bin/nvcc", "nvidia/any/bin/ptxas")
    (metadata / "RECORD").write_text("".join(f"{file},,\n" for file in recorded))
    monkeypatch.setenv("PATH", "")
    others = [path for path in sys.path if "site-packages" not in path]
    monkeypatch.setattr(sys, "path", [str(site), *others])
    assert find_ptxas() == (bin_folder / "ptxas").resolve()
    assert assemble(COPY, "sm_80")["copy"].shared_bytes == 768


def test_version():
    assert [int(part) for part in ptxas_version().split(".")] >= [12, 9]


def made(**changes) -> Assembled:
    kernel = Assembled("k", TARGETS["sm_90"], (7, 8), 32, 0, 0, 0, 0, 0, 0, 128)
    return dataclasses.replace(kernel, **changes)


@pytest.mark.parametrize(
    ("target", "registers", "threads", "shared", "blocks"),
    [
        # What the CUDA occupancy calculator gives, and what limits it.
        ("sm_90", 32, 128, 0, 16),  # threads
        ("sm_90", 16, 32, 0, 32),  # blocks
        ("sm_90", 128, 128, 0, 4),  # registers
        ("sm_90", 250, 128, 0, 2),  # registers, in units of 8 to a thread
        ("sm_90", 129, 96, 0, 4),  # registers: 12 warps of 136 to a thread in four partitions
        ("sm_90", 255, 128, 55808, 2),
        ("sm_90", 64, 128, 55808, 4),  # 54.5 KiB and 1 KiB of the system's
        ("sm_90", 64, 128, 227 * 1024, 1),
        ("sm_90", 64, 128, 227 * 1024 + 1, 0),
        ("sm_80", 32, 256, 20480, 7),  # 21 KiB of 164
        ("sm_75", 32, 256, 16384, 4),  # nothing reserved
        ("sm_75", 32, 1024, 0, 1),
        ("sm_86", 40, 128, 0, 12),
        ("sm_89", 168, 384, 0, 1),
        ("sm_90", 255, 1024, 0, 0),
    ],
)  # fmt: skip
def test_blocks_per_sm(target, registers, threads, shared, blocks):
    kernel = made(target=TARGETS[target], registers=registers, threads_per_block=threads)
    assert kernel.blocks_per_sm(dynamic_shared=shared) == blocks
    static = dataclasses.replace(kernel, shared_bytes=shared, threads_per_block=None)
    assert static.blocks_per_sm(threads) == blocks


def test_blocks_per_sm_needs_threads():
    kernel = made(threads_per_block=None)
    with pytest.raises(ValueError, match=r"kernel k has no \.reqntid or \.maxntid"):
        kernel.blocks_per_sm()
    with pytest.raises(ValueError, match=r"1 to 1024 threads, got threads=2048"):
        kernel.blocks_per_sm(2048)
