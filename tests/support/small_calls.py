"""Small calls of every kernel that synchronises, and their texts without each synchronisation."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import NamedTuple

from ptx.isa.dtypes import f16
from ptx.kernels.conv import ConvConfig
from ptx.kernels.deform_conv import DeformConvConfig
from ptx.testing.mutate import Mutant, mutants
from support import conv_kernels, deform_conv_kernels
from support.gemm_kernels import GemmProblem
from support.race_freedom import Call

__all__ = ["CASES", "Case", "without_synchronisation"]


class Case(NamedTuple):
    """A call of a kernel.

    Attributes:
      call: the call.
      more: whether the proof is of a text with more accesses, as some depend on data.
      needless: how many of the instructions that synchronise are not needed in this small call:
        nothing is written to shared memory after them, or another one follows before it is read.
        Emulator and verifier have to agree on it.
    """

    call: Call
    more: bool = False
    needless: int = 3


def conv(kernel: str, channels: int, taps: int, *, width: int = 4) -> Call:
    # Without padding: the verifier has no addresses before an array's.
    outputs = min(channels, 32)
    if kernel == "backward_input":
        channels, outputs = outputs, channels
    config = ConvConfig(channels, outputs, 1, taps, pad_h=0, pad_w=0, float_type=f16, use_bias=True)
    return conv_kernels.ConvCall(kernel, config, images=1, height=2, width=width)


def deform_conv(kernel: str, channels: int, offset_groups: int = 1) -> Call:
    config = DeformConvConfig(
        channels, channels, 1, 2, pad_h=0, pad_w=0, offset_groups=offset_groups, float_type=f16
    )
    return deform_conv_kernels.DeformConvCall(kernel, config, images=1, height=1, width=4)


gemm = functools.partial(GemmProblem, float_type=f16, blocks=1)
CASES: Mapping[str, Case] = {
    "gemm-shallow_k": Case(gemm(512, 32, 32, "shallow_k")),
    "gemm-cache_persistent": Case(gemm(256, 32, 64, "cache_persistent")),
    "gemm-warp_parallel": Case(gemm(64, 32, 256, "warp_parallel", blocks=None), needless=0),
    "conv_forward-tiled": Case(conv("forward", 16, 2)),
    "conv_forward-streamed": Case(conv("forward", 32, 4, width=6)),
    "conv_backward_input-tiled": Case(conv("backward_input", 16, 2)),
    "conv_backward_input-streamed": Case(conv("backward_input", 128, 1)),
    "conv_backward_weight": Case(conv("backward_weight", 16, 2), True),
} | {
    f"deform_conv_{kernel}-{name}": Case(
        deform_conv(kernel, channels, groups),
        more=True,
        # These read the table of corners first after another barrier.
        needless=4 if kernel in ("backward_offset", "backward_input") and groups == 1 else 3,
    )
    for kernel in (
        "forward", "backward_offset", "backward_input", "backward_input_gather", "backward_weight",
    )
    for name, channels, groups in (("tiled", 8, 1), ("table", 32, 1), ("positions", 32, 4))
}  # fmt: skip


def without_synchronisation(text: str) -> list[Mutant]:
    """Each barrier, wait and commit deleted."""
    synchronisation = re.compile(r"bar\.sync|cp\.async\.(wait|commit)_group")
    every = [m for m in mutants(text) if synchronisation.match(m.original)]
    return [m for m in every if m.kind == "deleted"]
