"""Of each instruction it is known what emitted it, if somebody asks."""

import linecache

from ptx import registry
from ptx.builder import provenance
from ptx.isa.dtypes import f16
from ptx.kernels.gemm import choose

CONFIG = choose(512, 32, 32, float_type=f16, strategy="shallow_k")


def generate(target: str) -> str:
    return registry.KERNELS["gemm"].write(CONFIG, target).text


def test_every_instruction_is_somebodys():
    with provenance.recorded() as found:
        text = generate("sm_80")
    lines = text.split("\n")
    instructions = {
        number
        for number, line in enumerate(lines, 1)
        if line.endswith(";") and not line.strip().startswith((".", "ret;"))
    }
    assert found[text].keys() == instructions
    for number, (functions, file, line) in found[text].items():
        source = linecache.getline(file, line)
        assert "/ptx/builder/" not in file
        assert source.strip(), (file, line)
        assert any(name.startswith("ptx.kernels.gemm.") for name in functions) or (
            "ptx.definition." in functions[-1]  # parameters
        ), lines[number - 1]
        builder = {name for name in functions if name.startswith("ptx.builder.")}
        assert builder <= {"ptx.builder.control.Control.loop", "ptx.builder.control.Control.if_"}
        if "mma.sync" in lines[number - 1]:
            assert functions[-1] == "ptx.tile.tensor_cores.TensorCores.multiply"


def test_it_changes_no_text_and_keeps_nothing_unasked():
    plain = generate("sm_80")
    with provenance.recorded() as found:
        assert found == {}
        assert generate("sm_80") == plain
    generate("sm_75")
    assert list(found) == [plain]
    assert provenance.origin() is None
