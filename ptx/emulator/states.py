"""What is known of each byte of a memory, and the checks that all memories share."""

from __future__ import annotations

import numpy as np

from ptx.emulator.access import Access
from ptx.emulator.errors import MisalignedError
from ptx.emulator.lanes import UNSIGNED, Lanes, Selection

__all__ = [
    "IN_FLIGHT",
    "NOWHERE",
    "UNWRITTEN",
    "WRITTEN",
    "all_bytes",
    "any_byte",
    "check_alignment",
    "set_bytes",
]

UNWRITTEN, WRITTEN, IN_FLIGHT, NOWHERE = range(4)  # states of a byte


def check_alignment(
    lanes: Lanes, active: Selection, address: np.ndarray, access: Access, space: str
) -> None:
    if access.alignment == 1:
        return
    crooked = address & (access.alignment - 1)
    if crooked.any():
        message = (
            f"{space} {access.kind.value} at an address that is no multiple of {access.alignment}"
        )
        lanes.fail(MisalignedError, access.instruction, active, crooked != 0, message)


def _words(width: int) -> tuple[int, int]:
    """Width and number of the words in which the states of `width` bytes are looked at."""
    if width in (1, 2, 4, 8):
        return width, 1
    return (8, width // 8) if width % 8 == 0 else (1, width)


def all_bytes(state: np.ndarray, position: np.ndarray, width: int, value: int) -> np.ndarray:
    """Whether all bytes of each access are in the state `value`."""
    word, count = _words(width)
    words, expected = state.view(UNSIGNED[word * 8]), int.from_bytes(bytes([value]) * word)
    index = position // word
    good = words[index] == expected
    for i in range(1, count):
        good &= words[index + i] == expected
    return good


def any_byte(state: np.ndarray, position: np.ndarray, width: int, value: int) -> np.ndarray:
    """Whether some byte of each access is in the state `value` or a higher one.

    `value` is a power of two, and all states above it have its bit.
    """
    word, count = _words(width)
    words, bits = state.view(UNSIGNED[word * 8]), int.from_bytes(bytes([value]) * word)
    index = position // word
    found = (words[index] & UNSIGNED[word * 8](bits)) != 0
    for i in range(1, count):
        found |= (words[index + i] & UNSIGNED[word * 8](bits)) != 0
    return found


def set_bytes(state: np.ndarray, position: np.ndarray, width: int, value: int) -> None:
    word, count = _words(width)
    words, pattern = state.view(UNSIGNED[word * 8]), int.from_bytes(bytes([value]) * word)
    for i in range(count):
        words[position // word + i] = pattern
