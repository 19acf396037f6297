"""Every instruction of every kernel of a convolution runs, and what it does is right."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from support.conv_kernels import KERNELS, ConvCall, assert_written_once
from support.texts import with_unreachable_instruction

from ptx.emulator import Report
from ptx.isa.targets import TARGETS, Target
from ptx.kernels.conv import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD
from ptx.kernels.conv.catalog import CONFIGS, LAUNCH_SIZES
from ptx.kernels.conv.config import ConvConfig
from ptx.kernels.conv.direct.common import is_direct
from ptx.tile.plan import atom_of
from ptx.tile.vectors import vector_width

pytestmark = pytest.mark.proof

DEFINITIONS = {
    "forward": FORWARD,
    "backward_input": BACKWARD_INPUT,
    "backward_weight": BACKWARD_WEIGHT,
}
# sm_75 has other tensor cores and no asynchronous copies. Tiny groups have tests of their own.
VARIANTS = [
    (kernel, name, target)
    for kernel in KERNELS
    for name, config in DEFINITIONS[kernel].configs.items()
    if not is_direct(config)
    for target in ("sm_75", "sm_80", "sm_90")
]


def plan_of(kernel: str, name: str, target: Target) -> Any:
    return DEFINITIONS[kernel].plan(CONFIGS[name], target, LAUNCH_SIZES.get(name))


def path(kernel: str, name: str, target: Target) -> tuple[object, ...]:
    """What the chooser has chosen, but for sizes."""
    config, plan = CONFIGS[name], plan_of(kernel, name, target)
    along_k = channels_along_k(kernel, config)
    strided = config.stride_h * config.stride_w > 1
    windows = {
        "forward": (config.taps <= 32, config.use_bias),
        "backward_input": (config.taps <= 32, strided),  # strided, registers count the taps
        "backward_weight": (plan.m * plan.n > 64 * 64,),  # tiles in dynamic shared memory
    }[kernel]
    whole = along_k % plan.k == 0, vector_width(config.float_type, along_k) == 1
    # Targets differ in nothing else.
    return (
        *(kernel, plan.streamed, plan.warps, has_partial_tiles(kernel, name, target)),
        *(windows, whole, is_refilled(kernel, name, target)),
        *(atom_of(config, target), target.supports("sm_80")),
    )


def channels_along_k(kernel: str, config: ConvConfig) -> int:
    if kernel == "backward_input":
        return config.out_channels_per_group
    return config.in_channels_per_group


def has_partial_tiles(kernel: str, name: str, target: Target) -> bool:
    """Whether some columns of a block's tile, or rows of the weights', never exist."""
    config, plan = CONFIGS[name], plan_of(kernel, name, target)
    rows = config.taps * config.in_channels_per_group
    if kernel == "backward_weight":
        return rows % plan.m > 0 or config.out_channels_per_group % plan.n > 0
    backward = kernel == "backward_input"
    columns = config.in_channels_per_group if backward else config.out_channels_per_group
    return columns % plan.n > 0


def cost(variant: tuple[str, str, str]) -> int:
    config = CONFIGS[variant[1]]
    return config.taps * config.in_channels_per_group * config.out_channels


def cheapest() -> list[tuple[str, str, str]]:
    """Configurations of few multiplications that together have every choice of every path."""
    found, seen = [], set()
    for variant in sorted(VARIANTS, key=cost):
        kernel, name, target = variant
        chosen = {(kernel, *one) for one in enumerate(path(kernel, name, TARGETS[target]))}
        if not chosen <= seen:
            found.append(variant)
            seen |= chosen
    return sorted(found)


def run(call: ConvCall, schedule: int | None = None) -> Report:
    """The kernel's launch, every byte of whose result is written by one store."""
    report = call.run(schedule=schedule)
    assert_written_once(call, report)
    return report


def is_refilled(kernel: str, name: str, target: Target) -> bool:
    """Whether there are more steps than a streamed tile's ring is filled with at first."""
    config, plan = CONFIGS[name], plan_of(kernel, name, target)
    steps = config.taps * channels_along_k(kernel, config) // plan.k
    return steps >= plan.stages or not plan.streamed


def refilling(text: str) -> Iterator[int]:
    """The lines that fill a ring while it is read."""
    inside = None
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.search(r"@!(%p\d+) bra +(\$if_\w+);", line):
            if re.search(rf"setp\.gt\.u32 +{found[1]}, %left,", text):
                inside = found[2]
        elif line.startswith(f"{inside}:"):
            inside = None
        elif inside:
            yield number


def is_beyond(text: str) -> bool:
    """Whether an instruction is an access to what a partial tile has too much of.

    All tiles of a kernel have one shape, whose accesses are unrolled. The last columns of a narrow
    layer's only tile are never there, and the predicates of their accesses never on.
    """
    return re.match(r"@%p\d+ (ld|st)\.global", text) is not None


def call_of(kernel: str, name: str, target: str) -> ConvCall:
    config = CONFIGS[name]
    # Large enough that each row of a tile is of a window inside, and small without tensor cores.
    high = 11 if atom_of(config, TARGETS[target]) else 5
    high = config.stride_h * high if config.kernel_w <= 7 else 3
    return ConvCall(
        kernel, config, images=2, height=high, width=32, small=name in LAUNCH_SIZES, target=target
    )


def check(kernel: str, name: str, target: str, schedule: int | None = None) -> None:
    call = call_of(kernel, name, target)
    never = run(call, schedule).never_executed
    if has_partial_tiles(kernel, name, TARGETS[target]):
        never = [(line, text) for line, text in never if not is_beyond(text)]
    if not is_refilled(kernel, name, TARGETS[target]):
        unused = set(refilling(call.text))
        never = [(line, text) for line, text in never if line not in unused]
    assert never == []


@pytest.mark.parametrize(("kernel", "name", "target"), cheapest())
def test_every_instruction_runs(kernel, name, target):
    check(kernel, name, target)


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "name", "target"), VARIANTS)
def test_every_instruction_of_every_configuration_runs(kernel, name, target):
    """In a random order of the warps, where the racecheck sees other neighbours."""
    check(kernel, name, target, schedule=len(name))


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_never_runs_is_noticed(kernel):
    call = ConvCall(kernel, CONFIGS["three/f32"], images=1, height=3, width=3)
    before, after = (
        {line for _, line in call.run(text).never_executed}
        for text in (call.text, with_unreachable_instruction(call.text))
    )
    assert after - before == {"membar.gl"}


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_is_written_twice_is_noticed(kernel):
    call = ConvCall(kernel, CONFIGS["odd/f32"], images=1, height=3, width=3)
    store = re.search(r"^.* st\.global.*$", call.text, re.M)
    assert store is not None
    text = call.text.replace(store[0], f"{store[0]}\n{store[0]}", 1)
    with pytest.raises(AssertionError):
        assert_written_once(call, call.run(text), text)


def test_paths_are_many():
    """The chooser's paths are told apart: a fault in `path` would leave most of them out."""
    paths = {path(kernel, name, TARGETS[target]) for kernel, name, target in VARIANTS}
    for kernel in KERNELS:
        assert sum(name == kernel for name, *_ in paths) >= 15
