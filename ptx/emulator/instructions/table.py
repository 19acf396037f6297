"""The table of instructions: each is a function from a `Form` to a step."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from ptx.emulator.form import Form, elementwise
from ptx.emulator.lanes import Step
from ptx.emulator.syntax import Instruction
from ptx.isa.dtypes import DTYPES, DType

__all__ = [
    "BITS",
    "FLOATS",
    "INTEGERS",
    "PACKED_HALVES",
    "ROUNDINGS",
    "compile_instruction",
    "elementwise_instruction",
    "instruction",
]

BITS = ("b16", "b32", "b64")
ROUNDINGS = ("rn", "rz", "rm", "rp")
INTEGERS = ("u16", "s16", "u32", "s32", "u64", "s64")
FLOATS = ("f16", "bf16", "f16x2", "bf16x2", "f32", "f64")
PACKED_HALVES = {"f16x2": np.float16, "bf16x2": ml_dtypes.bfloat16}

Compiler = Callable[[Form], Step]

_TABLE: dict[tuple[str, str], Compiler] = {}


def instruction(*opcodes: str, kind: str = "") -> Callable[[Compiler], Compiler]:
    """Registers the function that compiles these opcodes.

    Args:
      opcodes: names up to the first dot.
      kind: "float" or "integer" where the function is for these types only; "carry" where it is
        for the forms with `.cc`.
    """

    def register(compiler: Compiler) -> Compiler:
        for opcode in opcodes:
            assert (opcode, kind) not in _TABLE, opcode
            _TABLE[opcode, kind] = compiler
        return compiler

    return register


def elementwise_instruction(
    opcode: str,
    function: Callable[..., np.ndarray],
    sources: int,
    *dtypes: str,
    kind: str = "",
    result: DType | None = None,
) -> None:
    """Registers an instruction that is one numpy function, without modifiers.

    Args:
      opcode: the name up to the first dot.
      function: a function of the source registers.
      sources: their number.
      *dtypes: the types of which all sources are one.
      kind: as in `instruction`.
      result: the type of the destination; None is the sources'.
    """

    @instruction(opcode, kind=kind)
    def compiler(form: Form) -> Step:
        dtype = form.dtype(*dtypes)
        return elementwise(form, function, [dtype] * sources, result or dtype)


def compile_instruction(form: Form) -> Step:
    """The step of an instruction.

    Raises:
      UnknownInstructionError: the table does not have it.
    """
    key = form.instruction
    compiler = _TABLE.get((key.opcode, _kind(key))) or _TABLE.get((key.opcode, ""))
    if compiler is None:
        form.unknown(f"unknown instruction {key.opcode}")
    return compiler(form)


def _kind(key: Instruction) -> str:
    if "cc" in key.modifiers:
        return "carry"
    dtype = DTYPES.get(key.modifiers[-1]) if key.modifiers else None
    return "float" if dtype is not None and dtype.is_float else "integer"
