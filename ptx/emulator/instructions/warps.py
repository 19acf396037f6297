"""Exchange between the threads of a warp. Source: PTX ISA, "shfl.sync", "vote.sync", ..."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptx.emulator.errors import DivergenceError, UndefinedResultError
from ptx.emulator.form import Form
from ptx.emulator.instructions.table import instruction
from ptx.emulator.lanes import WARP, Lanes, Selection, Step, numpy_type
from ptx.emulator.syntax import Instruction
from ptx.isa.dtypes import b32, pred, u32

__all__ = ["require_members", "require_warps"]


@instruction("shfl")
def _shfl(form: Form) -> Step:
    form.choice("sync")
    mode = form.choice("up", "down", "bfly", "idx")
    form.dtype("b32")
    write, write_valid = form.write_pair(0, b32, pred)
    value, distance, clamp, members = form.read(1, b32), *(form.read(i, u32) for i in (2, 3, 4))
    instruction = form.instruction

    def step(lanes: Lanes, active: Selection) -> None:
        count, indices = lanes.size(active), lanes.indices[active]
        named = np.broadcast_to(members(lanes, active), count)
        require_members(lanes, instruction, active, named)
        lane = indices % WARP
        source, valid = _shuffle_source(
            mode,
            lane,
            distance(lanes, active).astype(np.int64) & 31,
            clamp(lanes, active).astype(np.int64),
        )
        absent = (named >> source.astype(np.uint32)) & 1 == 0
        if absent.any():
            message = "shfl reads a lane that is not in the membermask"
            lanes.fail(UndefinedResultError, instruction, active, absent, message)
        everyone = np.zeros(lanes.count, np.uint32)
        everyone[active] = value(lanes, active)
        write(lanes, active, everyone[indices - lane + source])
        if write_valid:
            write_valid(lanes, active, valid)

    return step


def _shuffle_source(
    mode: str, lane: np.ndarray, distance: np.ndarray, clamp: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The lane that each reads from, and whether it lies in the segment."""
    segment, bound = (clamp >> 8) & 31, clamp & 31
    lowest = lane & segment
    last = lowest | (bound & ~segment)
    source = {
        "up": lane - distance,
        "down": lane + distance,
        "bfly": lane ^ distance,
        "idx": lowest | (distance & ~segment),
    }[mode]
    valid = source >= last if mode == "up" else source <= last
    return np.where(valid, source, lane), np.broadcast_to(valid, lane.shape)


@instruction("vote")
def _vote(form: Form) -> Step:
    form.choice("sync")
    mode = form.choice("all", "any", "uni", "ballot")
    dtype = form.dtype("b32" if mode == "ballot" else "pred")
    write, predicate, members = form.write(0, dtype), form.read(1, pred), form.read(2, u32)
    instruction = form.instruction

    def step(lanes: Lanes, active: Selection) -> None:
        named = require_members(lanes, instruction, active, members(lanes, active))
        votes = _mask(lanes, active, predicate(lanes, active)) & named
        if mode == "ballot":
            write(lanes, active, votes)
        else:
            none, full = votes == 0, votes == named
            write(lanes, active, {"all": full, "any": ~none, "uni": none | full}[mode])

    return step


@instruction("activemask")
def _activemask(form: Form) -> Step:
    form.dtype("b32")
    write = form.write(0, b32)

    def step(lanes: Lanes, active: Selection) -> None:
        write(lanes, active, _mask(lanes, active, True))

    return step


@instruction("match")
def _match(form: Form) -> Step:
    mode = form.choice("any", "all")
    form.choice("sync")
    dtype = form.dtype("b32", "b64")
    if mode == "all":
        write, write_equal = form.write_pair(0, b32, pred)
    else:
        write, write_equal = form.write(0, b32), None
    value, members, instruction = form.read(1, dtype), form.read(2, u32), form.instruction

    def step(lanes: Lanes, active: Selection) -> None:
        named = require_members(lanes, instruction, active, members(lanes, active))
        values = np.zeros(lanes.count, numpy_type(dtype))
        values[active] = value(lanes, active)
        indices = lanes.indices[active]
        of_warp = values.reshape(-1, WARP)[indices // WARP]
        equal = of_warp == values[indices][:, None]
        bits = (equal.astype(np.uint64) << np.arange(WARP, dtype=np.uint64)).sum(axis=1)
        same = bits.astype(np.uint32) & named
        if mode == "all":
            write(lanes, active, np.where(same == named, named, np.uint32(0)))
            if write_equal:
                write_equal(lanes, active, same == named)
        else:
            write(lanes, active, same)

    return step


_REDUCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add.reduce,
    "min": np.minimum.reduce,
    "max": np.maximum.reduce,
    "and": np.bitwise_and.reduce,
    "or": np.bitwise_or.reduce,
    "xor": np.bitwise_xor.reduce,
}


@instruction("redux")
def _redux(form: Form) -> Step:
    form.choice("sync")
    name = form.choice(*_REDUCTIONS)
    dtype = form.dtype("b32") if name in ("and", "or", "xor") else form.dtype("u32", "s32")
    write, value, members = form.write(0, dtype), form.read(1, dtype), form.read(2, u32)
    kind, instruction = numpy_type(dtype), form.instruction

    def step(lanes: Lanes, active: Selection) -> None:
        named = require_members(lanes, instruction, active, members(lanes, active))
        values = np.zeros(lanes.count, kind)
        values[active] = value(lanes, active)
        warp = lanes.indices[active] // WARP
        result = np.empty(len(named), kind)
        for number, mask in set(zip(warp.tolist(), named.tolist(), strict=True)):
            chosen = (mask >> np.arange(WARP)) & 1 == 1
            of_warp = values[number * WARP : (number + 1) * WARP][chosen]
            result[(warp == number) & (named == mask)] = _REDUCTIONS[name](of_warp, dtype=kind)
        write(lanes, active, result)

    return step


@instruction("elect")
def _elect(form: Form) -> Step:
    form.choice("sync")
    write, write_leader = form.write_pair(0, b32, pred)
    members, instruction = form.read(1, u32), form.instruction
    if write_leader is None:
        form.unknown("a predicate for the leader is expected")

    def step(lanes: Lanes, active: Selection) -> None:
        named = require_members(lanes, instruction, active, members(lanes, active))
        lowest = np.bitwise_count((named & -named.astype(np.int64)) - 1).astype(np.uint32)
        write(lanes, active, lowest)
        write_leader(lanes, active, lanes.indices[active] % WARP == lowest)

    return step


def require_warps(lanes: Lanes, instruction: Instruction, active: Selection) -> None:
    """Checks that each warp executes a `.aligned` instruction with all of its 32 threads.

    Raises:
      DivergenceError: some of them do not.
    """
    indices = lanes.indices[active]
    if len(indices) % WARP == 0:
        first = indices[::WARP]
        if (first % WARP == 0).all() and (indices[WARP - 1 :: WARP] == first + WARP - 1).all():
            return
    present = np.bincount(indices // WARP, minlength=lanes.count // WARP)
    missing = present[indices // WARP] != WARP
    message = f"{instruction.opcode} needs all {WARP} threads of the warp"
    lanes.fail(DivergenceError, instruction, active, missing, message)


def require_members(
    lanes: Lanes, instruction: Instruction, active: Selection, members: np.ndarray
) -> np.ndarray:
    """Checks that the lanes in the membermask are all there, the executing ones in it.

    A lenient launch takes lanes that have ended, or that the block does not have, for absent.

    Returns:
      The membermask, uint32, of each active lane, without absent lanes.

    Raises:
      DivergenceError: a lane is named that is not active, or one is active and not named.
    """
    named = np.broadcast_to(members, lanes.size(active))
    present = _mask(lanes, active, True)
    missing = named & ~present
    if lanes.lenient and missing.any():
        ended = _of_warps(lanes, active, lanes.position == len(lanes.program.blocks))
        named, missing = named & ~ended, missing & ~ended
    if (missing != 0).any():
        absent = missing != 0
        first = int(missing[absent][0])
        message = f"{instruction.opcode}: lanes {first:#x} of the membermask are not here"
        lanes.fail(DivergenceError, instruction, active, absent, message)
    own = (named >> (lanes.indices[active] % WARP).astype(np.uint32)) & 1 == 0
    if own.any():
        message = f"{instruction.opcode}: the thread is not in its own membermask"
        lanes.fail(DivergenceError, instruction, active, own, message)
    return named


def _mask(lanes: Lanes, active: Selection, predicate: np.ndarray | bool) -> np.ndarray:
    """For each active lane, the mask of the lanes of its warp with a true predicate."""
    truth = np.zeros(lanes.count, np.bool_)
    truth[active] = predicate
    return _of_warps(lanes, active, truth)


def _of_warps(lanes: Lanes, active: Selection, truth: np.ndarray) -> np.ndarray:
    """For each active lane, the mask of the lanes of its warp for which `truth` is true."""
    masks = np.packbits(truth, bitorder="little").view(np.uint32)
    return masks[lanes.indices[active] // WARP]
