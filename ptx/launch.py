"""The launch of a kernel: its grid, block and arguments."""

import dataclasses
import re

import numpy as np

__all__ = ["BufferAddress", "Launch", "entry_name"]


@dataclasses.dataclass(frozen=True)
class BufferAddress:
    """The address of a buffer, as the argument of a kernel.

    Attributes:
      buffer: position of the buffer among the operands and then the results of the call.
    """

    buffer: int


@dataclasses.dataclass(frozen=True)
class Launch:
    """One launch of a kernel, but for the addresses of its buffers.

    Attributes:
      grid: blocks in x, y and z. Where one of them is 0 there is nothing to compute, and
        nothing is launched.
      block: threads of a block in x, y and z.
      arguments: one for each parameter of the kernel: `BufferAddress`, or a numpy scalar of the
        parameter's type.
      text: the PTX module, whose only kernel is launched.
      dynamic_shared: bytes of dynamic shared memory of a block.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: tuple[BufferAddress | np.generic, ...]
    text: str = ""
    dynamic_shared: int = 0


def entry_name(text: str) -> str:
    """The name of the kernel of a PTX text.

    Raises:
      ValueError: the text has no kernel, or several.

    Source: PTX ISA, `.entry`; "Comments" and "Identifiers".
    """
    code = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.S)
    names = re.findall(r"\.entry\s+([\w$%]+)", code)
    if len(names) != 1:
        found = ", ".join(names) or "none"
        raise ValueError(f"PTX with one kernel (.entry) is expected, this has {found}")
    return names[0]
