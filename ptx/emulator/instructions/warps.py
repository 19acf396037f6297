"""Exchange between the threads of a warp. Source: PTX ISA, "shfl.sync", "vote.sync", ..."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptx.emulator.errors import DivergenceError, UndefinedResultError
from ptx.emulator.form import Form, Reader
from ptx.emulator.instructions.table import instruction
from ptx.emulator.lanes import WARP, Active, Step, numpy_type
from ptx.emulator.syntax import Instruction
from ptx.isa.dtypes import b32, pred, u32

__all__ = ["membermask", "require_warps"]


@instruction("shfl")
def _shfl(form: Form) -> Step:
    form.choice("sync")
    mode = form.choice("up", "down", "bfly", "idx")
    form.dtype("b32")
    write, write_valid = form.write_pair(0, b32, pred)
    value, distance, clamp, mask = form.read(1, b32), *(form.read(i, u32) for i in (2, 3, 4))
    members = membermask(form, 4)

    def step(active: Active) -> None:
        members(active)
        lane = active.indices % WARP
        source, valid = _shuffle_source(
            mode, lane, distance(active).astype(np.int64) & 31, clamp(active).astype(np.int64)
        )
        absent = (mask(active) >> source.astype(np.uint32)) & 1 == 0
        if absent.any():
            message = "shfl reads a lane that is not in the membermask"
            active.fail(UndefinedResultError, form.instruction, absent, message)
        write(active, active.spread(value(active))[active.indices - lane + source])
        if write_valid:
            write_valid(active, valid)

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
    write, predicate, members = form.write(0, dtype), form.read(1, pred), membermask(form, 2)

    def step(active: Active) -> None:
        named = members(active)
        votes = _mask(active, predicate(active)) & named
        if mode == "ballot":
            write(active, votes)
        else:
            none, full = votes == 0, votes == named
            write(active, {"all": full, "any": ~none, "uni": none | full}[mode])

    return step


@instruction("activemask")
def _activemask(form: Form) -> Step:
    form.dtype("b32")
    write = form.write(0, b32)

    def step(active: Active) -> None:
        write(active, _mask(active, True))

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
    value, members = form.read(1, dtype), membermask(form, 2)

    def step(active: Active) -> None:
        named, values = members(active), active.spread(value(active))
        equal = values.reshape(-1, WARP)[active.warp] == values[active.selection][:, None]
        bits = (equal.astype(np.uint64) << np.arange(WARP, dtype=np.uint64)).sum(axis=1)
        same = bits.astype(np.uint32) & named
        if mode == "all":
            write(active, np.where(same == named, named, np.uint32(0)))
            if write_equal:
                write_equal(active, same == named)
        else:
            write(active, same)

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
    write, value, members = form.write(0, dtype), form.read(1, dtype), membermask(form, 2)
    kind = numpy_type(dtype)

    def step(active: Active) -> None:
        named, values, warp = members(active), active.spread(value(active)), active.warp
        result = np.empty(len(named), kind)
        for number, mask in set(zip(warp.tolist(), named.tolist(), strict=True)):
            chosen = (mask >> np.arange(WARP)) & 1 == 1
            of_warp = values[number * WARP : (number + 1) * WARP][chosen]
            result[(warp == number) & (named == mask)] = _REDUCTIONS[name](of_warp, dtype=kind)
        write(active, result)

    return step


@instruction("elect")
def _elect(form: Form) -> Step:
    form.choice("sync")
    write, write_leader = form.write_pair(0, b32, pred)
    members = membermask(form, 1)
    if write_leader is None:
        form.unknown("a predicate for the leader is expected")

    def step(active: Active) -> None:
        named = members(active)
        lowest = np.bitwise_count((named & -named.astype(np.int64)) - 1).astype(np.uint32)
        write(active, lowest)
        write_leader(active, active.indices % WARP == lowest)

    return step


def require_warps(active: Active, instruction: Instruction) -> None:
    """Checks that each warp executes a `.aligned` instruction with all of its 32 threads.

    Raises:
      DivergenceError: some of them do not.
    """
    if active.size == active.lanes.count:  # as nearly always
        return
    missing = np.bincount(active.warp)[active.warp] != WARP
    if not missing.any():
        return
    message = f"{instruction.opcode} needs all {WARP} threads of the warp"
    active.fail(DivergenceError, instruction, missing, message)


def membermask(form: Form, index: int) -> Reader:
    """Reads a membermask, without absent lanes, and checks it.

    A lenient launch takes lanes that have ended, or that the block does not have, for absent. The
    reader raises DivergenceError where a lane is named that is not active, or one is active and
    not named.
    """
    read, opcode = form.read(index, u32), form.instruction.opcode

    def members(active: Active) -> np.ndarray:
        named, lanes = np.broadcast_to(read(active), active.size), active.lanes
        missing = named & ~_mask(active, True)
        if lanes.lenient and missing.any():
            ended = _of_warps(active, lanes.position == len(lanes.program.blocks))
            named, missing = named & ~ended, missing & ~ended
        absent = missing != 0
        if absent.any():
            message = f"{opcode}: lanes {int(missing[absent][0]):#x} of the membermask are not here"
            active.fail(DivergenceError, form.instruction, absent, message)
        own = (named >> (active.indices % WARP).astype(np.uint32)) & 1 == 0
        if own.any():
            message = f"{opcode}: the thread is not in its own membermask"
            active.fail(DivergenceError, form.instruction, own, message)
        return named

    return members


def _mask(active: Active, predicate: np.ndarray | bool) -> np.ndarray:
    """For each active lane, the mask of the lanes of its warp with a true predicate."""
    return _of_warps(active, active.spread(np.asarray(predicate)))


def _of_warps(active: Active, truth: np.ndarray) -> np.ndarray:
    """For each active lane, the mask of the lanes of its warp for which `truth` is true."""
    masks = np.packbits(truth, bitorder="little").view(np.uint32)
    return masks[active.warp]
