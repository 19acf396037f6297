"""The tile engine, which every heavy kernel is put together from.

One main loop (`loop`) over stages of shared memory, with the parts that differ from kernel to
kernel handed in: sources that fill a stage (`dense`, `stream`, or a kernel's own gather), the
layout of tiles in shared memory (`layout`), the arithmetic (`tensor_cores`, `fma`, or `stream` for
an A that is made in registers), and an epilogue that takes the sums.
"""
