"""The instructions; a module for each chapter of the PTX ISA's list registers its own."""

import importlib
import pkgutil

from ptx.emulator.instructions.synchronization import BarrierWait, barrier_wait
from ptx.emulator.instructions.table import compile_instruction

__all__ = ["BarrierWait", "barrier_wait", "compile_instruction"]

for _chapter in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_chapter.name}")
