"""The states of the bytes of a memory, and the checks that all memories share."""

from __future__ import annotations

import functools

import numpy as np

from ptx.emulator.access import Access
from ptx.emulator.errors import MisalignedError
from ptx.emulator.lanes import UNSIGNED, Active

__all__ = [
    "IN_FLIGHT",
    "NOWHERE",
    "UNWRITTEN",
    "WRITTEN",
    "all_bytes",
    "any_byte",
    "check_alignment",
    "chunks",
    "set_bytes",
]

UNWRITTEN, WRITTEN, IN_FLIGHT, NOWHERE = range(4)  # states of a byte
_PATTERNS = {  # words of bytes that are all in one state
    (state, word): UNSIGNED[word * 8](int.from_bytes(bytes([state]) * word))
    for state in (UNWRITTEN, WRITTEN, IN_FLIGHT, NOWHERE)
    for word in (1, 2, 4, 8)
}


def check_alignment(active: Active, address: np.ndarray, access: Access, space: str) -> None:
    if int(np.bitwise_or.reduce(address)) & (access.alignment - 1):
        crooked = address & (access.alignment - 1)
        kind, alignment = access.kind.value, access.alignment
        message = f"{space} {kind} at an address that is not a multiple of {alignment}"
        active.fail(MisalignedError, access.instruction, crooked != 0, message)


def all_bytes(state: np.ndarray, position: np.ndarray, width: int, value: int) -> np.ndarray:
    """Whether all bytes of each access are in the state `value`."""
    words, places, pattern = _words(state, position, width, value)
    return functools.reduce(np.logical_and, [words[place] == pattern for place in places])


def any_byte(state: np.ndarray, position: np.ndarray, width: int, value: int) -> np.ndarray:
    """Whether some byte of each access is in the state `value` or a higher one.

    `value` is a power of two, and all states above it have its bit.
    """
    words, places, pattern = _words(state, position, width, value)
    return functools.reduce(np.logical_or, [words[place] & pattern != 0 for place in places])


def set_bytes(state: np.ndarray, position: np.ndarray, width: int, value: int) -> None:
    words, places, pattern = _words(state, position, width, value)
    for place in places:
        words[place] = pattern


def chunks(memory: np.ndarray, width: int) -> np.ndarray:
    """Bytes as chunks of `width`, which numpy copies faster than so many bytes."""
    return memory.reshape(-1).view(f"V{width}")


def _words(
    state: np.ndarray, position: np.ndarray, width: int, value: int
) -> tuple[np.ndarray, list[np.ndarray], np.unsignedinteger]:
    """The states of `width` bytes as words: all of them, the indices of the accesses', `value`."""
    word = width if width in (1, 2, 4, 8) else 8 if width % 8 == 0 else 1
    kind, first = UNSIGNED[word * 8], position >> (word.bit_length() - 1)
    places = [first, *(first + i for i in range(1, width // word))]
    return state.view(kind), places, _PATTERNS[value, word]
