"""What each instruction does; a module for each chapter of the PTX ISA's list."""

from ptx.emulator.instructions import (
    asynchronous,
    atomics,
    bits,
    calls,
    carry,
    comparison,
    conversion,
    floats,
    integers,
    matrices,
    memory,
    movement,
    synchronization,
    warps,
)
from ptx.emulator.instructions.synchronization import BarrierWait, barrier_wait
from ptx.emulator.instructions.table import compile_instruction

__all__ = [
    "BarrierWait",
    "asynchronous",
    "atomics",
    "barrier_wait",
    "bits",
    "calls",
    "carry",
    "comparison",
    "compile_instruction",
    "conversion",
    "floats",
    "integers",
    "matrices",
    "memory",
    "movement",
    "synchronization",
    "warps",
]
