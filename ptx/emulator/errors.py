"""The emulator's errors: one class for each kind of fault."""

__all__ = [
    "DivergenceError",
    "EmulatorError",
    "InFlightError",
    "MisalignedError",
    "OutOfBoundsError",
    "ParseError",
    "RaceError",
    "ReadOnlyError",
    "StepLimitError",
    "StoppedError",
    "UndefinedResultError",
    "UninitializedError",
    "UnknownInstructionError",
    "UnwrittenError",
]


class EmulatorError(RuntimeError):
    """A fault of a kernel.

    Attributes:
      kernel: name of the kernel; "" where the fault is of no kernel.
      line: line of the PTX text, from 1; None where the fault is of no line.
      text: the instruction.
      block: the first block at fault as (x, y, z), or None.
      thread: the first thread at fault as (x, y, z), or None.
    """

    def __init__(
        self,
        message: str,
        *,
        kernel: str = "",
        line: int | None = None,
        text: str = "",
        block: tuple[int, int, int] | None = None,
        thread: tuple[int, int, int] | None = None,
    ):
        self.kernel, self.line, self.text = kernel, line, text
        self.block, self.thread = block, thread
        where = [f"kernel {kernel}"] if kernel else []
        if line is not None:
            where.append(f"line {line}: {text}")
        if block is not None:
            where.append(f"block {block}")
        if thread is not None:
            where.append(f"thread {thread}")
        super().__init__(message + "".join(f"\n  {place}" for place in where))


class ParseError(EmulatorError):
    """The text is not PTX, or holds a construct that the emulator does not have."""


class UnknownInstructionError(EmulatorError):
    """An instruction, modifier, type or operand that the emulator does not have."""


class OutOfBoundsError(EmulatorError):
    """An access outside every buffer, shared variable or parameter."""


class MisalignedError(EmulatorError):
    """An address that is not a multiple of the width of the access."""


class UninitializedError(EmulatorError):
    """A read of a register or of memory that nothing has written."""


class UnwrittenError(EmulatorError):
    """A `Buffer(initialized=False)` that the kernel has not written completely."""


class InFlightError(EmulatorError):
    """An access to shared memory to which a `cp.async` is still on its way."""


class RaceError(EmulatorError):
    """Two accesses of different threads to one place, not ordered by a barrier; one writes."""


class ReadOnlyError(EmulatorError):
    """A write to a `Buffer(writable=False)`."""


class DivergenceError(EmulatorError):
    """A barrier or a warp-wide instruction that some of its threads do not reach."""


class UndefinedResultError(EmulatorError):
    """An operation whose result PTX leaves open, for example an integer division by zero."""


class StepLimitError(EmulatorError):
    """The kernel ran longer than allowed: an endless loop."""


class StoppedError(EmulatorError):
    """The launch was told to stop before its end."""
