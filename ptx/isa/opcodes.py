"""The instructions that the builder can write, with their operands and lowest targets."""

import dataclasses
import difflib

from ptx.isa.dtypes import DTYPES, DType, pred
from ptx.isa.targets import Target, UnsupportedError

__all__ = ["OPCODES", "Opcode", "OperandKind", "lookup"]


@dataclasses.dataclass(frozen=True)
class OperandKind:
    """The kind of one operand.

    Attributes:
      kind: "register" (or a constant), "vector" (registers in braces), "memory" (what a load or
        store moves: one register or a vector, by the opcode's `.v2`, `.v4`), "address", or
        "constant" or "label".
      dtype: the type of each register; None where there is none to check.
      count: registers of a vector; 1 otherwise.
    """

    kind: str
    dtype: DType | None = None
    count: int = 1

    def accepts(self, dtype: DType) -> bool:
        """Whether a register of `dtype` fits.

        PTX takes any register of the right width where the type is a bit type or an integer; an
        8-bit value in memory takes a wider register.
        """
        if self.dtype is None:
            return False
        if self.kind == "memory" and self.dtype.bits == 8:
            return dtype.bits in (16, 32, 64)
        return self.dtype.bits == dtype.bits


@dataclasses.dataclass(frozen=True)
class Opcode:
    """One instruction with all its modifiers.

    Attributes:
      name: PTX's name, for example "ld.global.nc.v4.f32".
      forms: the operands in order, the destination first where there is one; more than one form
        where operands are optional.
      lowest_ptx: lowest PTX version that has it, as (major, minor). (6, 3) stands for "all that
        the package writes": sm_75 itself needs it.
      lowest_sm: the lowest target that has it, for example "sm_80"; "sm_75" stands for all.
    """

    name: str
    forms: tuple[tuple[OperandKind, ...], ...]
    lowest_ptx: tuple[int, int]
    lowest_sm: str

    def require(self, target: Target, kernel: str = "") -> None:
        """Raises UnsupportedError, which names instruction and target, if the target lacks it."""
        if not target.supports(self.lowest_sm):
            where = f"kernel {kernel}: " if kernel else ""
            raise UnsupportedError(
                f"{where}{self.name} needs {self.lowest_sm} or later, and the target is {target}"
            )


def lookup(name: str) -> Opcode:
    """The opcode called `name`; ValueError if the table has none."""
    try:
        return OPCODES[name]
    except KeyError:
        near = _nearest(name)
        hint = f"there {'is' if len(near) == 1 else 'are'} {', '.join(near)}"
        raise ValueError(
            f"no instruction {name!r} in ptx/isa/opcodes.py: {hint if near else 'none is like it'}"
        ) from None


def _nearest(name: str, most: int = 4) -> list[str]:
    """Instructions that a misspelled name may mean.

    They are those that have all of its parts and more, for example "ex2.approx.f32" for "ex2.f32";
    else the most similar ones.
    """
    parts = str(name).split(".")
    longer = [each for each in OPCODES if set(parts) <= set(each.split("."))]
    if longer:
        return sorted(longer, key=len)[:most]
    return difflib.get_close_matches(str(name), OPCODES, most)


# The table. Braces stand for each of their alternatives, as in a shell.
#
# Operands: t is the type that the instruction's name ends in, 2t the integer twice as wide, p a
# predicate, a type's name that type, d the type before t, b32*4 a vector of registers, m what a
# load or store moves (one register, or a vector by .v2 and .v4), @ an address, # a constant; a
# bar separates forms.
#
# Source: PTX ISA 9.0, "PTX ISA Notes" and "Target ISA Notes" of each instruction; each line is
# checked against ptxas in tests/ptx/isa/test_opcodes.py.
_INT = "{u16,s16,u32,s32,u64,s64}"
_BITS = "{b16,b32,b64}"
_ORDER = "{eq,ne,lt,le,gt,ge}"
_FLOAT_ORDER = "{eq,lt,le,gt,ge,neu,nan}"
_SMALL = "{u8,s8,b8,u16,s16,b16,u32,s32,b32,f32}"
_WIDE = "{u64,s64,b64,f64}"
_MEMORY = f"{{{_SMALL},v2.{_SMALL},v4.{_SMALL},{_WIDE},v2.{_WIDE}}}"  # 16 bytes at most
_L1 = "{L1::evict_normal,L1::evict_unchanged,L1::evict_first,L1::evict_last,L1::no_allocate}"

_TABLE = (
    # form                                                    operands          PTX    SM
    # ---- data movement
    ("mov.{pred,b16,b32,b64,u16,s16,u32,s32,u64,s64,f32,f64}", "t t", "6.3", "sm_75"),
    ("mov.b32", "b32 b16*2 | b16*2 b32", "6.3", "sm_75"),
    ("mov.b64", "b64 b32*2 | b32*2 b64", "6.3", "sm_75"),
    ("selp.{b16,b32,b64,u16,s16,u32,s32,u64,s64,f32,f64}", "t t t p", "6.3", "sm_75"),
    ("cvta.to.global.u64", "u64 u64", "6.3", "sm_75"),
    ("prmt.b32", "b32 b32 b32 u32", "6.3", "sm_75"),
    # ---- integers
    (f"{{add,sub,min,max,div,rem,mul.lo,mul.hi}}.{_INT}", "t t t", "6.3", "sm_75"),
    (f"mad.lo.{_INT}", "t t t t", "6.3", "sm_75"),
    ("mul.wide.{u16,s16,u32,s32}", "2t t t", "6.3", "sm_75"),
    ("mad.wide.{u16,s16,u32,s32}", "2t t t 2t", "6.3", "sm_75"),
    ("{abs,neg}.{s16,s32,s64}", "t t", "6.3", "sm_75"),
    ("{and,or,xor}.{pred,b16,b32,b64}", "t t t", "6.3", "sm_75"),
    ("not.{pred,b16,b32,b64}", "t t", "6.3", "sm_75"),
    (f"shl.{_BITS}", "t t u32", "6.3", "sm_75"),
    (f"shr.{_INT}", "t t u32", "6.3", "sm_75"),
    ("{popc,clz}.b32", "u32 b32", "6.3", "sm_75"),
    ("brev.b32", "b32 b32", "6.3", "sm_75"),
    ("bfe.{u32,s32}", "t t u32 u32", "6.3", "sm_75"),
    # ---- floating point. Without .rn, ptxas may contract a product and a sum into one fma.
    ("{add,sub,mul}.rn.{f32,f64,f16,f16x2}", "t t t", "6.3", "sm_75"),
    ("{add,sub,mul}.rn.{bf16,bf16x2}", "t t t", "7.8", "sm_90"),
    ("fma.rn.{f32,f64,f16,f16x2}", "t t t t", "6.3", "sm_75"),
    ("fma.rn.{bf16,bf16x2}", "t t t t", "7.0", "sm_80"),
    ("{min,max}.{f32,f64}", "t t t", "6.3", "sm_75"),
    ("{min,max}{,.NaN}.{f16,f16x2,bf16,bf16x2}", "t t t", "7.0", "sm_80"),
    ("{min,max}.NaN.f32", "t t t", "7.0", "sm_80"),
    ("{abs,neg}.{f32,f64}", "t t", "6.3", "sm_75"),
    ("neg.{f16,f16x2}", "t t", "6.3", "sm_75"),
    ("abs.{f16,f16x2}", "t t", "6.5", "sm_75"),
    ("{abs,neg}.{bf16,bf16x2}", "t t", "7.0", "sm_80"),
    ("div.rn.{f32,f64}", "t t t", "6.3", "sm_75"),
    ("div.{approx,full}.f32", "t t t", "6.3", "sm_75"),
    ("{rcp,sqrt}.rn.{f32,f64}", "t t", "6.3", "sm_75"),
    ("{rcp,sqrt,rsqrt,ex2,lg2,sin,cos}.approx.f32", "t t", "6.3", "sm_75"),
    ("tanh.approx.f32", "t t", "7.0", "sm_75"),
    # ---- comparison
    (f"setp.{_ORDER}.{_INT}", "p t t", "6.3", "sm_75"),
    (f"setp.{{eq,ne}}.{_BITS}", "p t t", "6.3", "sm_75"),
    (f"setp.{_FLOAT_ORDER}.{{f32,f64,f16}}", "p t t", "6.3", "sm_75"),
    (f"setp.{_FLOAT_ORDER}.bf16", "p t t", "7.8", "sm_90"),
    # ---- conversion: the destination's type is named before the source's
    (f"cvt.{_INT}.{_INT}", "d t", "6.3", "sm_75"),
    (f"cvt.{{rn,rz,rm,rp}}.{{f32,f64}}.{_INT}", "d t", "6.3", "sm_75"),
    (f"cvt.rn.f16.{_INT}", "d t", "6.3", "sm_75"),
    (f"cvt.rn.bf16.{_INT}", "d t", "7.8", "sm_90"),
    (f"cvt.{{rni,rzi,rmi,rpi}}.{_INT}.{{f32,f64,f16}}", "d t", "6.3", "sm_75"),
    (f"cvt.{{rni,rzi,rmi,rpi}}.{_INT}.bf16", "d t", "7.8", "sm_90"),
    ("cvt.{rni,rzi,rmi,rpi}.{f32.f32,f64.f64,f16.f16}", "d t", "6.3", "sm_75"),
    ("cvt.{f32.f16,f64.f32,f64.f16}", "d t", "6.3", "sm_75"),
    ("cvt.f32.bf16", "d t", "7.1", "sm_80"),
    ("cvt.{rn,rz,rm,rp}.f32.f64", "d t", "6.3", "sm_75"),
    ("cvt.{rn,rz}.f16.f32", "d t", "6.3", "sm_75"),
    ("cvt.rn.f16.f64", "d t", "6.3", "sm_75"),
    ("cvt.{rn,rz}.bf16.f32", "d t", "7.0", "sm_80"),
    ("cvt.{rn,rz}.{f16x2,bf16x2}.f32", "d t t", "7.0", "sm_80"),
    ("cvt.rna.tf32.f32", "d t", "7.0", "sm_80"),
    ("cvt.{rn,rz}.tf32.f32", "d t", "7.8", "sm_90"),
    # ---- memory
    ("ld.param.{u32,s32,u64,s64,f32,f64,b16,u16,s16,b32,b64}", "m @", "6.3", "sm_75"),
    (f"ld.global.{_MEMORY}", "m @", "6.3", "sm_75"),
    (f"ld.global.nc.{_MEMORY}", "m @", "6.3", "sm_75"),
    (f"ld.global.{{ca,cg,cs,lu,cv}}.{_MEMORY}", "m @", "6.3", "sm_75"),
    (f"ld.global.{{ca,cg,cs}}.nc.{_MEMORY}", "m @", "6.3", "sm_75"),
    (f"ld.global{{,.nc}}.{_L1}.{_MEMORY}", "m @", "7.4", "sm_75"),
    (f"ld.global{{,.nc}}.{{L2::64B,L2::128B}}.{_MEMORY}", "m @", "7.4", "sm_75"),
    (f"ld.global{{,.nc}}.L2::256B.{_MEMORY}", "m @", "7.4", "sm_80"),
    (f"ld.shared.{_MEMORY}", "m @", "6.3", "sm_75"),
    (f"st.shared.{_MEMORY}", "@ m", "6.3", "sm_75"),
    (f"st.global.{_MEMORY}", "@ m", "6.3", "sm_75"),
    (f"st.global.{{wb,cg,cs,wt}}.{_MEMORY}", "@ m", "6.3", "sm_75"),
    (f"st.global.{_L1}.{_MEMORY}", "@ m", "7.4", "sm_75"),
    ("prefetch.global.{L1,L2}", "@", "6.3", "sm_75"),
    # ---- atomics
    ("red.{global,shared}.add.{u32,s32,u64,f32,f64}", "@ t", "6.3", "sm_75"),
    ("red.{global,shared}.{min,max}.{u32,s32,u64,s64}", "@ t", "6.3", "sm_75"),
    ("red.{global,shared}.add.noftz.{f16,f16x2}", "@ t", "6.3", "sm_75"),
    ("red.{global,shared}.add.noftz.{bf16,bf16x2}", "@ t", "7.8", "sm_90"),
    ("red.global.add.{v2,v4}.f32", "@ m", "8.1", "sm_90"),
    ("atom.{global,shared}.add.{u32,s32,u64,f32,f64}", "t @ t", "6.3", "sm_75"),
    ("atom.{global,shared}.{min,max}.{u32,s32,u64,s64}", "t @ t", "6.3", "sm_75"),
    ("atom.{global,shared}.add.noftz.{f16,f16x2}", "t @ t", "6.3", "sm_75"),
    ("atom.{global,shared}.add.noftz.{bf16,bf16x2}", "t @ t", "7.8", "sm_90"),
    ("atom.global.add.{v2,v4}.f32", "m @ m", "8.1", "sm_90"),
    ("atom.{global,shared}.exch.{b32,b64}", "t @ t", "6.3", "sm_75"),
    ("atom.{global,shared}.cas.{b16,b32,b64}", "t @ t t", "6.3", "sm_75"),
    # ---- asynchronous copies
    ("cp.async.{ca,cg}.shared.global", "@ @ # | @ @ # u32", "7.0", "sm_80"),
    ("cp.async.{ca,cg}.shared.global.{L2::64B,L2::128B,L2::256B}", "@ @ # | @ @ # u32", "7.4", "sm_80"),  # noqa: E501
    ("cp.async.commit_group", "", "7.0", "sm_80"),
    ("cp.async.wait_group", "#", "7.0", "sm_80"),
    ("cp.async.wait_all", "", "7.0", "sm_80"),
    # ---- matrices
    ("ldmatrix.sync.aligned.m8n8.x1{,.trans}.shared.b16", "b32*1 @", "6.5", "sm_75"),
    ("ldmatrix.sync.aligned.m8n8.x2{,.trans}.shared.b16", "b32*2 @", "6.5", "sm_75"),
    ("ldmatrix.sync.aligned.m8n8.x4{,.trans}.shared.b16", "b32*4 @", "6.5", "sm_75"),
    ("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", "f32*4 b32*2 b32*1 f32*4", "6.5", "sm_75"),
    ("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32", "f32*4 b32*2 b32*1 f32*4", "7.0", "sm_80"),  # noqa: E501
    ("mma.sync.aligned.m16n8k16.row.col.f32.{f16.f16,bf16.bf16}.f32", "f32*4 b32*4 b32*2 f32*4", "7.0", "sm_80"),  # noqa: E501
    ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "f32*4 b32*4 b32*2 f32*4", "7.0", "sm_80"),  # noqa: E501
    ("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", "f64*2 f64*1 f64*1 f64*2", "7.0", "sm_80"),
    ("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64", "f64*4 f64*2 f64*1 f64*4", "7.8", "sm_90"),
    ("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64", "f64*4 f64*4 f64*2 f64*4", "7.8", "sm_90"),
    ("mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64", "f64*4 f64*8 f64*4 f64*4", "7.8", "sm_90"),  # noqa: E501
    # ---- warps and blocks
    ("shfl.sync.{idx,up,down,bfly}.b32", "t t u32 u32 u32", "6.3", "sm_75"),
    ("vote.sync.ballot.b32", "b32 p u32", "6.3", "sm_75"),
    ("vote.sync.{any,all}.pred", "p p u32", "6.3", "sm_75"),
    ("redux.sync.{add,min,max}.{u32,s32}", "t t u32", "7.0", "sm_80"),
    ("bar.sync", "u32", "6.3", "sm_75"),
    ("bar.warp.sync", "u32", "6.3", "sm_75"),
    ("fence.acq_rel.{cta,gpu,sys}", "", "6.3", "sm_75"),
    # ---- control
    ("bra", "label", "6.3", "sm_75"),
    ("ret", "", "6.3", "sm_75"),
)  # fmt: skip


def _alternatives(pattern: str) -> list[str]:
    """The names that a pattern with braces stands for."""
    start = pattern.find("{")
    if start < 0:
        return [pattern]
    depth, parts, begin = 0, [], start + 1
    for i in range(start, len(pattern)):
        depth += {"{": 1, "}": -1}.get(pattern[i], 0)
        if depth == 0 or (depth == 1 and pattern[i] == ","):
            parts.append(pattern[begin:i])
            begin = i + 1
        if depth == 0:
            break
    tails = _alternatives(pattern[begin:])
    heads = [pattern[:start] + name for part in parts for name in _alternatives(part)]
    return [head + tail for head in heads for tail in tails]


def _operand(token: str, name: str) -> OperandKind:
    modifiers = name.split(".")
    last = DTYPES.get(modifiers[-1])
    match token:
        case "@":
            return OperandKind("address")
        case "#":
            return OperandKind("constant")
        case "label":
            return OperandKind("label")
        case "p":
            return OperandKind("register", pred)
        case "t":
            return OperandKind("register", last)
        case "d":
            return OperandKind("register", DTYPES[modifiers[-2]])
        case "2t":
            assert last is not None
            return OperandKind("register", DTYPES[f"{last.name[0]}{last.bits * 2}"])
        case "m":
            count = next((int(m[1]) for m in modifiers if m in ("v2", "v4")), 1)
            return OperandKind("memory", last, count)
    dtype, _, count = token.partition("*")
    return OperandKind("vector" if count else "register", DTYPES[dtype], int(count or 1))


def _parse_table() -> dict[str, Opcode]:
    opcodes: dict[str, Opcode] = {}
    for pattern, operands, ptx, sm in _TABLE:
        major, minor = ptx.split(".")
        for name in _alternatives(pattern):
            forms = tuple(
                tuple(_operand(token, name) for token in form.split())
                for form in operands.split("|")
            )
            if name in opcodes:
                forms = opcodes[name].forms + forms
            opcodes[name] = Opcode(name, forms, (int(major), int(minor)), sm)
    return opcodes


OPCODES: dict[str, Opcode] = _parse_table()
