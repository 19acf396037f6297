"""Why mutants of the tile engine are not noticed, in whichever kernel; and where constructs are."""

from __future__ import annotations

from support.mutants import Reason, Result

__all__ = [
    "ACCUMULATE", "ANYWHERE", "BRANCH", "END", "LOAD_WORDS", "NEGLIGIBLE", "PIPELINE",
    "TILE_ENGINE",
]  # fmt: skip

# Functions by which reasons name a construct: where a function moves, its name changes here.
ANYWHERE = "ptx"
LOOP = "ptx.builder.control.Control.loop"
BRANCH = "ptx.builder.control.Control.if_"
COUNTERS = "ptx.tile.loop.Cursor.advance"
RESET = "ptx.tile.loop.Cursor.reset"
START = "ptx.tile.loop.Loop.start"
NEXT = "ptx.tile.loop.Loop.next"
RELEASE = "ptx.tile.loop.Loop.release"
PRECEDING = "ptx.tile.loop.Loop._preceding"
FOLLOWING = "ptx.tile.loop.Loop._following"
END = "ptx.tile.loop.Loop.end"
PIPELINE = "ptx.tile.loop.multiply_all"
COPY_GROUPS = "ptx.tile.arrival._CopyGroups"
STREAMED_TILE = "ptx.tile.stream.StreamedTile.begin"
DENSE_TILE = "ptx.tile.dense.DenseTile.begin"
LOAD_WORDS = "ptx.tile.vectors.load_words"
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
        "the sum over chunks in another order, each of them once, is the same",
        RESET,
        "mov",
        "constant",
        Result.OTHER,
    ),
    *(
        Reason(
            "a chunk beyond the last may be copied, as nobody reads it",
            function,
            "setp sub mov",
            "source destination constant operator operands",
            Result.OTHER,
        )
        for function in (START, NEXT)
    ),
    Reason(
        "a chunk beyond the last may be copied, as nobody reads it",
        f"{STREAMED_TILE} > {BRANCH}",
        "bra",
        "guard deleted",
        Result.OTHER,
    ),
    *(
        Reason(
            "stages are few, and registers hold the number of the same one",
            function,
            "setp selp mov add sub",
            "source constant operator operands",
        )
        for function in (RELEASE, PRECEDING, FOLLOWING)
    ),
    Reason(
        "a pass beyond the last multiplies zeros",
        f"{PIPELINE} > {LOOP}",
        "setp add",
        "source constant operator operands",
        Result.OTHER,
    ),
    *(
        Reason(
            "the last pass has begun to copy a chunk of zeros that nobody reads",
            f"{END} > {COPY_GROUPS}.{function}",
            "cp",
            "deleted one",
            Result.OTHER,
        )
        for function in ("commit", "wait")
    ),
    Reason(
        "a chunk beyond the last may be copied, as nobody reads it",
        f"{NEXT} > {DENSE_TILE}",
        "and",
        "source",
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
