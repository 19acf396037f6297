"""The sections of the GPU suite, in order, each with the time that it takes."""

import dataclasses
from collections.abc import Iterable, Sequence

__all__ = ["COMMANDS", "SECTIONS", "Section", "plan_page", "seconds_for"]


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the suite.

    Attributes:
      module: the module of this package whose `run` gets the recorder.
      seconds: how long it takes on an H100.
      what: what it does.
    """

    module: str
    seconds: float
    what: str


# The rate of a copy is what other figures are judged by. Then a test of each kernel's path, what
# others are compared with, and the rest.
SECTIONS = {
    "info": Section("environment", 20, "copies, versions, large matrix products"),
    "smoke": Section("smoke", 50, "a test of each path of each family's kernels"),
    "times-torch": Section("times_torch", 35, "torchvision's deform_conv2d"),
    "times-oxijax": Section("times_oxijax", 95, "deform_conv, and each gradient"),
    "times-peers": Section("times_peers", 110, "sampling beside kernels of others"),
    "times-sampling": Section("times_sampling", 180, "sampling beside plain JAX"),
    "times-launch": Section(
        "times_launch", 25, "a call of a few pixels, with and without CUDA graphs"
    ),
    "tests": Section("device_tests", 200, "pytest -m gpu, all families"),
    "sanitizer": Section("sanitizer", 30, "compute-sanitizer on small layers of all families"),
    "times-gemm": Section("times_gemm", 50, "gemm beside XLA's product"),
    "times-conv": Section("times_conv", 270, "conv beside XLA's convolution"),
    "times-xla": Section("times_xla", 80, "deform_conv as an XLA program, and plain convolution"),
    "tuning": Section("tuning", 240, "oxijax.tune on deform_conv's layers"),
}
# All sections in commands of at most nine minutes, any of which can be the last.
COMMANDS = (
    ("info", "smoke", "times-torch", "times-oxijax", "times-peers", "times-sampling"),
    ("times-launch", "tests", "sanitizer", "times-gemm"),
    ("times-conv", "times-xla"),
    ("tuning",),
)


def seconds_for(section: str, left: float, to_come: Sequence[str]) -> float:
    """The time of a section, of `left` seconds for it and the sections to come.

    It gets what it takes, whatever is left for the others, and its share of what is left over.
    """
    wanted = [SECTIONS[name].seconds for name in (section, *to_come) if name in SECTIONS]
    own = SECTIONS[section].seconds if section in SECTIONS else 5
    return min(left, max(own, left * own / max(sum(wanted), own)))


def plan_page(tests: Iterable[str]) -> str:
    """The commands, what they run and how long that should take.

    Args:
      tests: the files of the tests.
    """
    lines = []
    for sections in COMMANDS:
        total = sum(SECTIONS[name].seconds for name in sections)
        command = f"python benchmarks/gpu.py --out DIR --sections {' '.join(sections)}"
        lines += [f"{command} --budget {total * 1.1:.0f}"]
        for name in sections:
            section = SECTIONS[name]
            lines.append(f"  {name:<15} {section.seconds:>4.0f} s  {section.what}")
            if name == "tests":
                lines += [f"{'':<26}{file}" for file in tests]
    return "\n".join(lines) + "\n"
