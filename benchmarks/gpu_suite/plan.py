"""The sections of the GPU suite, in order, each with its share of the time."""

import dataclasses
from collections.abc import Sequence

__all__ = ["SECTIONS", "Section", "seconds_for"]


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the suite.

    Attributes:
      module: the module of this package whose `run` gets the recorder.
      share: its share of the time that is left, beside the shares of the sections still to come.
        What a section does not use goes to those after it.
    """

    module: str
    share: float


# What others are judged by comes first, and of the times torchvision's, which are few.
SECTIONS = {
    "info": Section("environment", 20),
    "tests": Section("device_tests", 130),
    "sanitizer": Section("sanitizer", 25),
    "times-torch": Section("times_torch", 45),
    "times-oxijax": Section("times_oxijax", 90),
    "times-conv": Section("times_conv", 60),
    "times-sampling": Section("times_sampling", 45),
    "times-gemm": Section("times_gemm", 35),
    "times-xla": Section("times_xla", 15),
    "tuning": Section("tuning", 15),
}


def seconds_for(section: str, left: float, to_come: Sequence[str]) -> float:
    """The time of a section, of `left` seconds that it and the sections to come share."""
    shares = [SECTIONS[name].share for name in (section, *to_come) if name in SECTIONS]
    own = SECTIONS[section].share if section in SECTIONS else 5
    return left * own / max(sum(shares), own)
