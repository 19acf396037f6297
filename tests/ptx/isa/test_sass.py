"""Machine code, loop by loop."""

import importlib.metadata

import pytest

from oxijax.__main__ import main
from ptx import Kernel, f32, u32
from ptx.isa.assembler import ToolNotFoundError, find_tool
from ptx.isa.sass import disassemble, opcode, parse

# As nvdisasm prints: an inner loop, which has a vote, in an outer one; behind the end a branch to
# itself and no-ops.
PRINTED = """
        .target sm_90
.text.k:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   IADD3 R2, R2, 0x1, RZ ;
.L_x_1:
        /*0020*/                   VOTE.ANY P0, P1 ;
        /*0030*/                   FADD R3, R3, R2 ;
        /*0040*/              @!P0 BRA `(.L_x_2) ;
        /*0050*/                   SEL R4, R4, RZ, P2 ;
        /*0060*/                   SEL R5, R5, RZ, P2 ;
.L_x_2:
        /*0070*/               @P3 HMMA.16816.F32.BF16 R8, R4, R6, R8 ;
        /*0080*/                   ISETP.NE.AND P0, PT, R2, R3, PT ;
        /*0090*/              @!P0 BRA `(.L_x_3) ;
        /*00a0*/                   LDG.E.128.CONSTANT R4, [R6.64] ;
.L_x_3:
        /*00b0*/               @P0 BRA `(.L_x_1) ;
        /*00c0*/               @P1 BRA `(.L_x_0) ;
        /*00d0*/                   EXIT ;
.L_x_4:
        /*00e0*/                   BRA `(.L_x_4);
        /*00f0*/                   NOP;
"""


def test_parse():
    sass = parse(PRINTED)
    assert len(sass.instructions) == 14
    assert sass.straight == ("MOV R1, c[0x0][0x28]", "EXIT")
    outer, inner = sass.loops
    assert (outer.first, outer.last, outer.depth, outer.has_tensor) == (1, 12, 0, True)
    assert [opcode(i) for i in outer.own] == ["IADD3", "BRA"]
    assert (inner.first, inner.last, inner.depth, inner.has_tensor) == (2, 11, 1, True)
    # Behind a branch on a vote, but not on what else a predicate has held since.
    assert inner.rare == ("SEL R4, R4, RZ, P2", "SEL R5, R5, RZ, P2")
    assert inner.opcodes["SEL"] == 2
    assert inner.count("LDG.E.128", "HMMA") == 2


def test_loops_that_cut_each_other():
    cut = PRINTED.replace("@P1 BRA `(.L_x_0)", "@P1 BRA `(.L_x_2)")
    with pytest.raises(ValueError, match="is cut by another"):
        parse(cut)


def summing(target: str) -> str:
    k = Kernel("summing", target, block=32)
    x, y = k.pointer("x", f32, readonly=True), k.pointer("y", f32)
    n, total = k.param("n", u32), k.var(f32, 0.0)
    with k.loop(0, n, 4, unroll=False) as i:
        for value in x.load(i, 4):
            total += value
    y.store(k.tid(), total)
    return k.text()


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90", "sm_120"])
def test_disassemble(target):
    (loop,) = disassemble(summing(target), target).loops
    assert loop.count("FADD") == 4
    (load,) = (i for i in loop.own if opcode(i).startswith("LDG"))
    assert ".128" in load
    assert not loop.has_tensor


def test_nvdisasm_of_the_wheel(monkeypatch, tmp_path):
    program = tmp_path / "nvidia" / "cu13" / "bin" / "nvdisasm"
    program.parent.mkdir(parents=True)
    program.write_text("")
    file = importlib.metadata.PackagePath("nvidia/cu13/bin/nvdisasm")
    file.dist = importlib.metadata.Distribution.at(tmp_path / "wheel.dist-info")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(
        "importlib.metadata.files", lambda name: [file] if name == "nvidia-cuda-nvdisasm" else []
    )
    assert find_tool("nvdisasm", ["nvidia-cuda-nvcc", "nvidia-cuda-nvdisasm"]) == program
    monkeypatch.setattr("importlib.metadata.files", lambda name: None)
    with pytest.raises(ToolNotFoundError, match=r"pip install nvidia-cuda-nvdisasm$"):
        find_tool("nvdisasm", ["nvidia-cuda-nvdisasm"])


def test_the_command(capsys, monkeypatch):
    arguments = ["ptx", "deform_conv_forward", "--config", "R50-c3/bf16"]
    assert main([*arguments, "--target", "sm_90", "--sass"]) == 0
    printed = capsys.readouterr().out
    assert "of them behind a vote" in printed
    assert "     64 HMMA.16816.F32.BF16" in printed
    assert "     16 LDG.E.128.CONSTANT" in printed
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.metadata.files", lambda name: None)
    assert main([*arguments, "--target", "sm_90", "--sass"]) == 2
    assert "no nvdisasm on PATH" in capsys.readouterr().err
