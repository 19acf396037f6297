"""Reasons why mutants of the tile engine survive in any kernel, and places of its constructs."""

from __future__ import annotations

from support.mutants import Reason, Result

__all__ = [
    "ACCUMULATE", "ANYWHERE", "BOTH", "BRANCH", "END", "LOAD_WORDS", "NEGLIGIBLE", "PIPELINE",
    "STREAMED_TILE", "TILE_ENGINE",
]  # fmt: skip

# Functions by which reasons name a construct: where a function moves, its name changes here.
ANYWHERE = "ptx"
LOOP = "ptx.builder.control.Control.loop"
BRANCH = "ptx.builder.control.Control.if_"
COUNTERS = "ptx.tile.loop.Cursor.advance"
INITIAL = "ptx.tile.loop.Cursor.__init__"
RESET = "ptx.tile.loop.Cursor.reset"
START = "ptx.tile.loop.Loop.start"
NEXT = "ptx.tile.loop.Loop.next"
RELEASE = "ptx.tile.loop.Loop.release"
PRECEDING = "ptx.tile.loop.Loop._preceding"
FOLLOWING = "ptx.tile.loop.Loop._following"
END = "ptx.tile.loop.Loop.end"
PIPELINE = "ptx.tile.loop.multiply_all"
COMMIT, WAIT = "ptx.tile.loop.Loop._commit", "ptx.tile.loop.Loop._wait"
STREAM_START = "ptx.tile.stream.StreamedProduct.start"
STREAMED_TILE = "ptx.tile.stream.StreamedTile.begin"
DENSE_TILE = "ptx.tile.dense.DenseTile.begin"
BOTH = "ptx.tile.vectors.both"
LOAD_WORDS = "ptx.tile.vectors.load_words"
LANE_OFFSET = "ptx.tile.tensor_cores.TensorCores._lane_offset"
ACCUMULATE = "ptx.tile.tensor_cores.TensorCores.multiply"

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
        "nothing is begun after the last chunk, whatever the outermost counter says",
        f"{NEXT} > {COUNTERS}",
        "setp",
        "source constant",
        Result.OTHER,
    ),
    Reason(
        "counters begin again before they are read", INITIAL, "mov", "destination", Result.OTHER
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
        (START, NEXT),
        "setp sub mov",
        "source destination constant operator operands",
        Result.OTHER,
    ),
    Reason(
        "a chunk beyond the last may be copied, as nobody reads it",
        f"{STREAMED_TILE} > {BRANCH}",
        "bra",
        "guard deleted",
        Result.OTHER,
    ),
    Reason(
        "stages are few, and registers hold the number of the same one",
        (RELEASE, PRECEDING, FOLLOWING),
        "setp selp mov add sub",
        "source constant operator operands",
    ),
    Reason(
        "a pass beyond the last multiplies zeros",
        f"{PIPELINE} > {LOOP}",
        "setp add mov",
        "source constant operator operands",
        Result.OTHER,
    ),
    Reason(
        "the last pass has begun to copy a chunk of zeros that nobody reads",
        (f"{END} > {COMMIT}", f"{END} > {WAIT}"),
        "cp",
        "deleted one",
        Result.OTHER,
    ),
    Reason(
        "where nothing is copied asynchronously, groups of copies are empty",
        f"{NEXT} > {COMMIT}",
        "cp",
        "deleted one",
        Result.OTHER,
    ),
    Reason(
        "what is beyond the depth is multiplied with zeros of the other operand",
        f"{DENSE_TILE} > {LOAD_WORDS}",
        "mov",
        "source",
        Result.OTHER,
    ),
    Reason(
        "the lower one of two bits is the same in a number with more of them",
        LANE_OFFSET,
        "and",
        "source",
    ),
    Reason(
        "a counter that is 0 is set to 0",
        f"{STREAM_START} > {COUNTERS}",
        "setp",
        "operator",
        Result.OTHER,
    ),
    Reason(
        "what one operand has beyond the depth is multiplied with zeros of the other one",
        (f"{START} > {DENSE_TILE} > {BOTH}", f"{NEXT} > {DENSE_TILE} > {BOTH}"),
        "and",
        "source operator",
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
    Reason("a loop has a first pass", LOOP, "bra", "deleted", Result.OTHER),
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
