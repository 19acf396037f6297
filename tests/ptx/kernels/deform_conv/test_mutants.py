"""Mutants of the kernels forward and backward to offset: how many are noticed, and why not all."""

import pytest
from support.deform_conv_probes import PROBES
from support.mutant_reasons import ANYWHERE, BOTH, BRANCH, END, LOAD_WORDS, TILE_ENGINE
from support.mutant_study import MutantStudy, by_kernel
from support.mutants import Reason, Result

pytestmark = pytest.mark.proof

KERNELS = ("forward", "backward-offset")

FAMILY = "ptx.kernels.deform_conv"
OFFSETS = f"{FAMILY}.samples.positions.Offsets"
TABLE = f"{FAMILY}.samples.corners"
FORWARD = f"{FAMILY}.tiled.forward"
TILED = f"{FAMILY}.tiled.backward_data"
STREAMED = f"{FAMILY}.tiled.backward_data_streamed"
TILED_END = f"{TILED}.tiled_backward_offset"
STREAMED_END = f"{STREAMED}.streamed_backward_offset"
STEPS = "source constant operator operands"

EQUIVALENT = [
    *TILE_ENGINE,
    Reason("what is converted is an integer already", ANYWHERE, "cvt", "rounding"),
    Reason(
        "the product with 0 is 0, or NaN, whichever sign, and so is what it is added to",
        ANYWHERE,
        "add",
        "operator",
    ),
    Reason("what is far is an integer", f"{OFFSETS}._coordinate", "abs", "source"),
    Reason("what is far is an integer", f"{OFFSETS}._split", "abs", "source"),
    Reason(
        "what is far is outside of the image, wherever it is, and its fraction times 0",
        (f"{OFFSETS}._split", f"{OFFSETS}._coordinate"),
        "setp min max selp",
        "constant operator",
        Result.OTHER,
    ),
    *(
        Reason(
            "what is outside of the image is made 0 when it is loaded, whatever its weight",
            f"{TABLE}.CornerTable.store",
            opcode,
            changes,
            Result.OTHER,
        )
        for opcode, changes in (("mul", "source constant"), ("selp", "source"))
    ),
    *(
        Reason(
            "to make 0 what is outside saves nothing but time where nothing is",
            function,
            opcode,
            change,
            Result.OTHER,
        )
        for function, opcode, change in (
            (f"{TABLE}.TableRows.inside", "and", "constant"),
            (f"{TABLE}.TableRows.inside", "setp", "source"),
            (f"{TABLE}.TableRows.zeroed > {BRANCH}", "bra", "deleted"),
        )
    ),
    Reason(
        "to make 0 what is outside saves nothing but time where nothing is",
        f"{TABLE}.TableRows.zeroed",
        "setp",
        "constant",
        Result.OTHER,
    ),
    Reason(
        "a block without a table multiplies once, and writes to no tile after it",
        f"{FORWARD}._streamed_product.<locals>.multiply > {END}",
        "bar",
        "deleted",
        Result.OTHER,
    ),
    Reason(
        "what is outside has weight 0, whatever finite number takes its place",
        f"{TABLE}.TableRows.zeroed",
        "selp",
        "constant",
        Result.OTHER,
    ),
    Reason(
        "a row that does not exist is below the image, however far",
        f"{TABLE}.PixelTable.store",
        "selp",
        "constant",
        Result.OTHER,
    ),
    Reason(
        "only the index of a pixel is read",
        f"{TABLE}.PixelTable.store",
        "st selp",
        "elements operands source",
        Result.OTHER,
    ),
    Reason(
        "channels come in vectors, so that the bound is between the same ones",
        (
            f"{FORWARD}._Block.channel_ok",
            f"{TILED}._Columns._gradients",
            f"{TILED}._Columns._weights",
        ),
        "setp selp sub and",
        STEPS,
        Result.OTHER,
    ),
    Reason(
        "channels come in vectors, and a group has one segment and one tile here",
        (
            f"{FORWARD}.tiled_forward.<locals>.locate.<locals>.element",
            f"{FORWARD}._Block.weight_ok",
            f"{FORWARD}._Block.weight_ok > {BOTH}",
            f"{FORWARD}._Block.each_table",
            f"{FORWARD}._Block.weight",
            f"{TILED}._Columns.taps",
            f"{TILED}._Columns.tiles",
            STREAMED_END,
            f"{STREAMED}._Columns.segment",
            f"{STREAMED}._Columns.channels_ok",
        ),
        "setp selp sub and add min mul",
        STEPS,
    ),
    Reason(
        "the first pixel that does not exist is in a row of other lanes",
        TILED_END,
        "setp",
        "operator",
    ),
    Reason(
        "each of the four lanes has the sum and may write it",
        TILED_END,
        "setp",
        "constant",
        Result.OTHER,
    ),
    *(
        Reason(
            "the lane whose sum is not written, or that has no channels",
            function,
            "shfl",
            changes,
            Result.OTHER,
        )
        for function, changes in ((TILED_END, "operator"), (STREAMED_END, "operator constant"))
    ),
    Reason(
        "what takes the place of a bias that is not there is not stored",
        f"{FORWARD}.tiled_forward.<locals>.with_bias > {LOAD_WORDS}",
        "mov",
        "destination source constant",
        Result.OTHER,
    ),
    Reason(
        "an offset that takes the place of one that is not there has no effect",
        f"{OFFSETS}.position > {LOAD_WORDS}",
        "mov",
        "constant",
        Result.OTHER,
    ),
]


class TestDeformConv(MutantStudy):
    sample, large_sample = 30, 80
    kernels = by_kernel(KERNELS, PROBES)
    reasons = EQUIVALENT
