"""PTX kernels from Python: builder, targets, assembler gate, emulator.

Knows GPUs and numpy, and nothing of JAX.
"""

from ptx.assembler import AssemblyError, assemble
from ptx.builder import ATOMS, Atom, Fragment, Kernel, Pointer, Val, Var
from ptx.dtypes import (
    DTYPES,
    DType,
    b8,
    b16,
    b32,
    b64,
    bf16,
    bf16x2,
    f16,
    f16x2,
    f32,
    f64,
    pred,
    s8,
    s16,
    s32,
    s64,
    tf32,
    u8,
    u16,
    u32,
    u64,
)
from ptx.targets import TARGETS, Target, UnsupportedError

__all__ = [
    "ATOMS",
    "DTYPES",
    "TARGETS",
    "AssemblyError",
    "Atom",
    "DType",
    "Fragment",
    "Kernel",
    "Pointer",
    "Target",
    "UnsupportedError",
    "Val",
    "Var",
    "assemble",
    "b8",
    "b16",
    "b32",
    "b64",
    "bf16",
    "bf16x2",
    "f16",
    "f16x2",
    "f32",
    "f64",
    "pred",
    "s8",
    "s16",
    "s32",
    "s64",
    "tf32",
    "u8",
    "u16",
    "u32",
    "u64",
]
