"""The GPUs that PTX is written for, with their limits."""

import dataclasses
import functools

__all__ = ["TARGETS", "Target", "UnsupportedError", "as_target", "target_for"]


class UnsupportedError(ValueError):
    """A target lacks an instruction; the message names both."""


@functools.total_ordering
@dataclasses.dataclass(frozen=True)
class Target:
    """A GPU architecture.

    Targets are ordered by SM version; sm_90a comes after sm_90.

    Attributes:
      name: the name in PTX's `.target`, for example "sm_90a".
      sm: the SM version, for example 90.
      lowest_ptx: lowest PTX version that knows the target, as (major, minor).
      shared_per_block: bytes of shared memory that one block can have (dynamic, opted in).
      shared_per_sm: bytes of shared memory of one SM. Each block takes 1 KiB more than it
        asks for, from sm_80 on.
      threads_per_sm: resident threads of one SM at most.
      blocks_per_sm: resident blocks of one SM at most.

    Source: CUDA C++ programming guide, tables of compute capabilities; PTX ISA, `.target`.
    """

    name: str
    sm: int
    lowest_ptx: tuple[int, int]
    shared_per_block: int
    shared_per_sm: int
    threads_per_sm: int
    blocks_per_sm: int

    registers_per_sm = 65536
    static_shared_per_block = 48 * 1024
    threads_per_block = 1024

    @property
    def architecture_specific(self) -> bool:
        """Whether code for it runs on no later GPU, as for sm_90a."""
        return self.name.endswith("a")

    def __lt__(self, other: "Target") -> bool:
        return (self.sm, self.name) < (other.sm, other.name)

    def supports(self, lowest: str) -> bool:
        """Whether the target has what came with `lowest`, for example "sm_80" or "sm_90a"."""
        if lowest.endswith("a"):
            return self.name == lowest
        return self.sm >= int(lowest.removeprefix("sm_"))

    def __str__(self) -> str:
        return self.name


_KIB = 1024

TARGETS = {
    target.name: target
    for target in (
        Target("sm_75", 75, (6, 3), 64 * _KIB, 64 * _KIB, 1024, 16),
        Target("sm_80", 80, (7, 0), 163 * _KIB, 164 * _KIB, 2048, 32),
        Target("sm_86", 86, (7, 1), 99 * _KIB, 100 * _KIB, 1536, 16),
        Target("sm_89", 89, (7, 8), 99 * _KIB, 100 * _KIB, 1536, 24),
        Target("sm_90", 90, (7, 8), 227 * _KIB, 228 * _KIB, 2048, 32),
        Target("sm_90a", 90, (8, 0), 227 * _KIB, 228 * _KIB, 2048, 32),
        Target("sm_100", 100, (8, 6), 227 * _KIB, 228 * _KIB, 2048, 32),
        Target("sm_120", 120, (8, 7), 99 * _KIB, 100 * _KIB, 1536, 24),
    )
}


def as_target(target: Target | str) -> Target:
    """A target, which may be given by its name.

    Raises:
      ValueError: there is none of this name.
    """
    if isinstance(target, Target):
        return target
    if target not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {target!r}")
    return TARGETS[target]


def target_for(sm: int) -> Target:
    """The target whose PTX a GPU runs best.

    PTX for a target runs on every later GPU, unless it is architecture specific.

    Args:
      sm: the GPU's SM version, for example 87 for compute capability 8.7.

    Raises:
      UnsupportedError: the GPU is older than the lowest target.

    Source: PTX ISA, `.target`.
    """
    portable = [target for target in TARGETS.values() if not target.architecture_specific]
    runs = [target for target in portable if target.sm <= sm]
    if not runs:
        raise UnsupportedError(f"sm_{sm} is below {min(portable)}, the lowest supported target")
    return max(runs)
