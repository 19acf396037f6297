"""The opcode table against ptxas: each form exists, and exists no earlier than the table says."""

import collections
import re

import pytest

import ptx
from ptx.builder.text import register_type
from ptx.isa.opcodes import OPCODES, Opcode, OperandKind, lookup

FLOOR = ((6, 3), "sm_75")
PTX_VERSIONS = [
    *((6, minor) for minor in range(3, 6)),
    *((7, minor) for minor in range(9)),
    *((8, minor) for minor in range(9)),
]
GROUPS = collections.defaultdict(list)
for _opcode in OPCODES.values():
    GROUPS[_opcode.lowest_ptx, _opcode.lowest_sm].append(_opcode)


def operand(kind: OperandKind, opcode: Opcode, place: int) -> str:
    """An operand as the table describes it."""
    match kind.kind:
        case "address":
            if "param" in opcode.name:
                return "[parameter]"
            shared = ".shared" in opcode.name and not (".global" in opcode.name and place > 0)
            return "[%u32_]" if shared else "[%u64_]"
        case "constant":
            return "0" if "wait" in opcode.name else "16" if ".cg" in opcode.name else "4"
        case "label":
            return "$end"
    assert kind.dtype is not None
    dtype = kind.dtype
    if dtype.bits == 8:
        dtype = ptx.u16
    register = f"%{register_type(dtype)}_"
    vector = kind.kind == "vector" or kind.count > 1
    return "{" + ", ".join([register] * kind.count) + "}" if vector else register


def module(
    opcodes: list[Opcode], version: tuple[int, int], target: str
) -> tuple[str, dict[int, str]]:
    """A kernel of the instructions, and the instruction of each line."""
    types = sorted({register_type(d).name for d in ptx.DTYPES.values() if d.bits != 8})
    lines = [f".version {version[0]}.{version[1]}", f".target {target}", ".address_size 64"]
    lines += [".visible .entry all_forms(.param .u64 parameter)", "{"]
    lines += [f".reg .{t} %{t}_;" for t in types]
    instructions = {}
    for opcode in opcodes:
        for form in opcode.forms:
            operands = ", ".join(operand(kind, opcode, i) for i, kind in enumerate(form))
            lines.append(f"{opcode.name} {operands};")
            instructions[len(lines)] = opcode.name
    return "\n".join([*lines, "$end:", "ret;", "}", ""]), instructions


def accepted(opcodes: list[Opcode], version: tuple[int, int], target: str) -> list[str]:
    """The instructions that ptxas takes at a PTX version and a target."""
    text, instructions = module(opcodes, version, target)
    try:
        ptx.assemble(text, target)
        rejected = set()
    except ptx.AssemblyError as error:
        rejected = {diagnostic.line for diagnostic in error.diagnostics}
    if None in rejected:
        raise ValueError(f"ptxas rejects the file as a whole, PTX {version} for {target}")
    return sorted({name for line, name in instructions.items() if line not in rejected})


@pytest.mark.parametrize(("version", "target"), GROUPS, ids=lambda v: str(v))
def test_forms_assemble_at_their_lowest(version, target):
    """Each form of the table, at the lowest PTX version and target that the table gives it."""
    opcodes = GROUPS[version, target]
    version = max(version, ptx.TARGETS[target].lowest_ptx)
    assert accepted(opcodes, version, target) == sorted(opcode.name for opcode in opcodes)


@pytest.mark.parametrize(
    ("version", "target"), [g for g in GROUPS if g[1] != "sm_75"], ids=lambda v: str(v)
)
def test_no_lower_target_has_them(version, target):
    targets = list(ptx.TARGETS)
    below = targets[targets.index(target) - 1]
    assert accepted(GROUPS[version, target], (8, 8), below) == []


@pytest.mark.parametrize(
    ("version", "target"),
    [g for g in GROUPS if g[0] > ptx.TARGETS[g[1]].lowest_ptx],
    ids=lambda v: str(v),
)
def test_no_lower_ptx_version_has_them(version, target):
    below = PTX_VERSIONS[PTX_VERSIONS.index(version) - 1]
    assert accepted(GROUPS[version, target], below, target) == []


def test_the_groups_are_as_many_as_the_tests_expect():
    """A table that was read wrongly, or not at all, would leave the tests above with nothing."""
    assert FLOOR in GROUPS
    assert ((7, 0), "sm_80") in GROUPS
    assert ((8, 1), "sm_90") in GROUPS
    assert len(OPCODES) > 1500


def test_lookup_names_the_instruction():
    with pytest.raises(ValueError, match=r"no instruction 'add\.rn\.f8'"):
        lookup("add.rn.f8")


def test_a_target_that_lacks_an_instruction():
    with pytest.raises(ptx.UnsupportedError, match=r"kernel k: cp\.async\.wait_all.*sm_80.*sm_75"):
        lookup("cp.async.wait_all").require(ptx.TARGETS["sm_75"], "k")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("ex2.f32", "there is ex2.approx.f32"),
        ("ld.f32", "there are ld.param.f32, ld.global.f32, ld.shared.f32"),
        ("sqrt.f32", "there are sqrt.rn.f32, sqrt.approx.f32"),
        ("popcount.b32", "popc.b32"),
        ("ad.u32", "add.u32"),
        ("tanhyperbolic", "none is like it"),
    ],
)
def test_a_misspelled_instruction_gets_the_nearest(name, near):
    with pytest.raises(ValueError, match=re.escape(f"no instruction {name!r} in ")) as caught:
        lookup(name)
    assert near in str(caught.value)
