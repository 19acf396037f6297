"""An instruction's access to memory, as the memories and the checks look at it."""

import dataclasses
import enum

from ptx.emulator.syntax import Instruction

__all__ = ["Access", "Kind"]


class Kind(enum.Enum):
    """What an access does."""

    READ = "read"
    WRITE = "write"
    ATOMIC = "atomic operation"
    COPY = "asynchronous copy"


@dataclasses.dataclass(frozen=True)
class Access:
    """An access as the instruction makes it, the same for all lanes.

    Attributes:
      instruction: for messages.
      kind: its kind.
      width: bytes of each lane.
      alignment: the required alignment of the address, in bytes.
      strong: volatile, relaxed, acquire or release: no race with another such access.
      constant: `.nc`: memory that the kernel must not write.
    """

    instruction: Instruction
    kind: Kind
    width: int
    alignment: int
    strong: bool = False
    constant: bool = False
