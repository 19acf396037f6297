"""Mutants of the kernels of a convolution: how many are noticed, and why not all."""

import pytest
from support.conv_kernels import KERNELS
from support.conv_probes import PROBES
from support.mutant_reasons import (
    ACCUMULATE,
    BRANCH,
    END,
    LOAD_WORDS,
    PIPELINE,
    STREAMED_TILE,
    TILE_ENGINE,
)
from support.mutant_study import MutantStudy, by_kernel
from support.mutants import Reason, Result

pytestmark = pytest.mark.proof


WINDOWS = "ptx.kernels.conv.tiled.windows.WindowRows.__init__"
STRIDES = "ptx.kernels.conv.tiled.window_products._axis"
CHOSEN = "ptx.kernels.conv.strides.chosen"
PRODUCT = "ptx.kernels.conv.tiled.product.WindowProduct"
TAP = f"{PRODUCT}._tap"
STORE = f"{PRODUCT}.store"
TILED = f"{PRODUCT}._tiled"
CHUNK = f"{TILED}.<locals>"
WEIGHT_GRADIENT = "ptx.kernels.conv.tiled.backward_weight.tiled_backward_weight"
BIAS = "ptx.tile.epilogue.plus_bias.<locals>.finish"

EQUIVALENT = [
    *TILE_ENGINE,
    Reason(
        "no block is beyond the last strip, and windows that do not exist have no taps inside",
        WINDOWS,
        "and selp setp max min div rem add",
        "source constant operator operands",
    ),
    Reason(
        "a window that does not exist has no taps inside, wherever it begins",
        WINDOWS,
        "selp",
        "constant",
        Result.OTHER,
    ),
    Reason("each thread has a row", f"{WINDOWS} > {BRANCH}", "bra", "guard deleted", Result.OTHER),
    Reason(
        "the first step is at the first tap, and what is added to 0 is the same",
        TAP,
        "add sub mul mad",
        "source constant operator operands",
    ),
    Reason(
        "of both operands one has zeros there, or the other test implies it",
        (
            f"{CHUNK}.at",
            f"{CHUNK}.windows",
            f"{CHUNK}.weights",
            f"{WEIGHT_GRADIENT}.<locals>.shifted",
            f"{WEIGHT_GRADIENT}.<locals>.gradients",
        ),
        "and setp selp add mul div rem shr sub",
        "source constant operator operands",
    ),
    Reason(
        "what lies beyond the depth of K is multiplied with weights that are 0",
        f"{CHUNK}.windows",
        "and",
        "source",
        Result.OTHER,
    ),
    Reason(
        "what lies beyond the depth of K is multiplied with weights that are 0",
        f"{CHUNK}.windows > {CHUNK}.at",
        "setp",
        "source",
        Result.OTHER,
    ),
    Reason(
        "images are larger than a stride",
        STRIDES,
        "min max add mul",
        "source constant operator operands",
        Result.NEAR,
    ),
    Reason("two classes of a stride have the same number", CHOSEN, "selp", "source"),
    Reason(
        "the weights of a column that does not exist make a sum that is not stored",
        (
            f"{PRODUCT}._streamed.<locals>.locate.<locals>.column_ok",
            f"{PRODUCT}._streamed > {STREAMED_TILE}",
            f"{PIPELINE} > {STREAMED_TILE}",
        ),
        "setp selp",
        "source operator",
        Result.OTHER,
    ),
    Reason(
        "channels of the last chunk that do not exist are 0, whatever they are multiplied with",
        f"{PIPELINE} > {ACCUMULATE}",
        "mma",
        "source elements",
    ),
    Reason(
        "each part has pixels, and those beyond the last one add 0",
        WEIGHT_GRADIENT,
        "add setp",
        "source constant operator operands",
        Result.NEAR,
    ),
    Reason(
        "the first part may have all pixels: of parts only the sum is compared",
        WEIGHT_GRADIENT,
        "add",
        "operator",
        Result.OTHER,
    ),
    Reason(
        "channels come in vectors, so that the bound is between the same ones",
        tuple(f"{f}.<locals>.locate.<locals>.element" for f in (STORE, WEIGHT_GRADIENT)),
        "setp add and",
        "source constant operator operands",
    ),
    Reason(
        "what takes the place of a bias that is not there is not stored",
        f"{BIAS} > {LOAD_WORDS}",
        "mov",
        "destination source constant",
        Result.OTHER,
    ),
    Reason(
        "the bias of the next group is added to what is not stored",
        BIAS,
        "setp",
        "operator",
        Result.OTHER,
    ),
    Reason(
        "after the last chunk nothing is written to shared memory",
        f"{TILED} > {END}",
        "bar",
        "deleted",
        Result.OTHER,
    ),
]


class TestConv(MutantStudy):
    sample, large_sample = 20, 200
    kernels = by_kernel(KERNELS, PROBES)
    reasons = EQUIVALENT
