"""A simulator of one SM, which replays the machine code of a kernel.

What each warp does, where it branches and what it accesses, is the emulator's trace of the PTX
text. ptxas's own instructions are then issued in their order, with the stalls and counters that
ptxas has given them, on four schedulers, their pipes, and what all of them share: the unit for
memory, L1, and this SM's part of L2 and of the GPU's memory.
"""

from ptx.replay.code import Code, compile_code
from ptx.replay.machine import MACHINES, Machine
from ptx.replay.memory import Memory
from ptx.replay.sm import Replayed, replay
from ptx.replay.warps import TraceError

__all__ = [
    "MACHINES",
    "Code",
    "Machine",
    "Memory",
    "Replayed",
    "TraceError",
    "compile_code",
    "replay",
]
