"""The tile engine: what every heavy kernel is put together from.

One main loop (`multiply_all`) over two stages of shared memory, with the parts that differ from
kernel to kernel handed in: producers that fill a stage (`DenseTile`, or a kernel's own gather), a
math atom (`TensorCores` or `FusedMultiplyAdd`) and an epilogue that takes the accumulators.
"""

from ptx.tile.dense import DenseTile
from ptx.tile.math import FusedMultiplyAdd, TensorCores, TileMath
from ptx.tile.pipeline import Cursor, Producer, multiply_all
from ptx.tile.shared import SharedTile

__all__ = [
    "Cursor",
    "DenseTile",
    "FusedMultiplyAdd",
    "Producer",
    "SharedTile",
    "TensorCores",
    "TileMath",
    "multiply_all",
]
