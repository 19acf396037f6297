"""Why mutants of the tile engine are not noticed, in whichever kernel; and where constructs are."""

from __future__ import annotations

from support.mutants import Reason, Result

__all__ = [
    "ACCUMULATE", "ANYWHERE", "BRANCH", "LOAD_WORDS", "NEGLIGIBLE", "PIPELINE", "TILE_ENGINE",
]  # fmt: skip

# Functions by which reasons name a construct: where a function moves, its name changes here.
ANYWHERE = "ptx"
LOOP = "ptx.builder.control.Control.loop"
BRANCH = "ptx.builder.control.Control.if_"
COUNTERS = "ptx.tile.pipeline.Cursor.advance"
RESET = "ptx.tile.pipeline.Cursor.reset"
PIPELINE = "ptx.tile.pipeline.multiply_all"
RING_START = "ptx.tile.ring.Ring.start"
RING_NEXT = "ptx.tile.ring.Ring.next"
RING_RELEASE = "ptx.tile.ring.Ring.release"
STREAM_BEGIN = "ptx.tile.stream.StreamedProduct.begin"
STREAM_STEP = "ptx.tile.stream.StreamedProduct.step"
STREAM_FILL = "ptx.tile.stream.StreamedTile.fill"
DENSE_TILE = "ptx.tile.dense.DenseTile.begin"
LOAD_WORDS = "ptx.tile.vectors.load_words"
ACCUMULATE = "ptx.tile.math.TensorCores.multiply"

TILE_ENGINE = [
    Reason(
        "counters of the first chunks are known numbers, and other registers hold the same ones",
        COUNTERS,
        "setp selp mov add sub mul",
        "source constant operator operands",
    ),
    Reason(
        "a counter begins again before it is read again, or nothing is read any more",
        COUNTERS,
        "mov",
        "destination",
        Result.OTHER,
    ),
    Reason(
        "the sum over chunks in another order, each of them once, is the same",
        RESET,
        "mov",
        "constant",
        Result.OTHER,
    ),
    Reason(
        "a chunk beyond the last may be copied, as nobody reads it",
        STREAM_STEP,
        "setp sub mov",
        "source destination constant operator operands",
        Result.OTHER,
    ),
    Reason(
        "a chunk beyond the last may be copied, as nobody reads it",
        f"{STREAM_STEP} > {BRANCH}",
        "bra",
        "guard deleted",
        Result.OTHER,
    ),
    Reason(
        "there are as many chunks as are begun to be copied first",
        f"{STREAM_BEGIN} > {BRANCH}",
        "bra",
        "guard deleted",
        Result.OTHER,
    ),
    Reason(
        "there are as many chunks as are begun to be copied first",
        STREAM_BEGIN,
        "setp",
        "source constant operator operands",
    ),
    Reason(
        "a chunk beyond the last may be copied, as nobody reads it",
        PIPELINE,
        "sub setp",
        "source destination constant operator operands",
        Result.OTHER,
    ),
    Reason(
        "a pass beyond the last multiplies zeros",
        f"{PIPELINE} > {LOOP}",
        "setp add",
        "source constant operator operands",
        Result.OTHER,
    ),
    Reason(
        "the last pass has begun to copy a chunk of zeros that nobody reads",
        PIPELINE,
        "cp",
        "deleted one",
        Result.OTHER,
    ),
    Reason(
        "what is copied after the last chunk, nobody reads",
        RING_START,
        "setp sub mov",
        "source destination constant operator operands",
        Result.OTHER,
    ),
    Reason(
        "what is copied after the last chunk, nobody reads",
        RING_NEXT,
        "setp",
        "source constant operator operands",
        Result.OTHER,
    ),
    Reason(
        "what is copied after the last chunk, nobody reads",
        RING_RELEASE,
        "sub mov",
        "source destination constant operator",
        Result.OTHER,
    ),
    Reason(
        "of the tests whether a chunk's element is there, one implies the other",
        DENSE_TILE,
        "and setp",
        "source constant operator operands",
    ),
    Reason(
        "a loop has a first pass, and ends after the same one",
        LOOP,
        "setp add",
        "source constant operator operands",
    ),
    Reason(
        "a loop has a first pass",
        LOOP,
        "bra",
        "deleted",
        Result.OTHER,
    ),
]
# These compute something else, which is far less than what the results are rounded to.
NEGLIGIBLE = [
    Reason(
        "the last of 24 bits, if a sum or product has that many",
        ANYWHERE,
        "add sub mul fma",
        "rounding",
        Result.NEAR,
    ),
    Reason(
        "the last bit of a neighbour, or of a number that takes the place of 0",
        ANYWHERE,
        "and selp mov",
        "constant",
        Result.NEAR,
    ),
]
