"""Runs PTX text without a GPU, and raises on what a GPU would silently get wrong."""

from ptx.emulator.errors import (
    DivergenceError,
    EmulatorError,
    InFlightError,
    MisalignedError,
    OutOfBoundsError,
    ParseError,
    RaceError,
    ReadOnlyError,
    StepLimitError,
    StoppedError,
    UndefinedResultError,
    UninitializedError,
    UnknownInstructionError,
    UnwrittenError,
)
from ptx.emulator.global_memory import Allocation
from ptx.emulator.launch import Buffer, launch
from ptx.emulator.module import KernelFacts, LoadedModule
from ptx.emulator.report import BankConflicts, Report, Sectors

__all__ = [
    "Allocation",
    "BankConflicts",
    "Buffer",
    "DivergenceError",
    "EmulatorError",
    "InFlightError",
    "KernelFacts",
    "LoadedModule",
    "MisalignedError",
    "OutOfBoundsError",
    "ParseError",
    "RaceError",
    "ReadOnlyError",
    "Report",
    "Sectors",
    "StepLimitError",
    "StoppedError",
    "UndefinedResultError",
    "UninitializedError",
    "UnknownInstructionError",
    "UnwrittenError",
    "launch",
]
