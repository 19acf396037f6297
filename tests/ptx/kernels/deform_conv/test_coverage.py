"""Every instruction of every kernel of a deformable convolution runs, and what it does is right."""

import dataclasses
import functools
import re

import pytest
from support.deform_conv_kernels import KERNELS, DeformConvCall
from support.texts import with_unreachable_instruction

from ptx.emulator import Report
from ptx.isa.targets import TARGETS
from ptx.kernels.deform_conv import CONFIGS, DeformConvConfig
from ptx.kernels.deform_conv.plan import SamplePlan
from ptx.kernels.deform_conv.tiled.backward_data_streamed import taps_per_block
from ptx.tile.direct import DirectPlan
from ptx.tile.plan import atom_of

pytestmark = pytest.mark.proof

# sm_75 has other tensor cores and no asynchronous copies, sm_90 has vector atomics.
VARIANTS = [
    (kernel, name, target)
    for kernel in KERNELS
    for name in CONFIGS
    for target in ("sm_75", "sm_80", "sm_90")
]


def call_of(kernel: str, name: str, target: str) -> DeformConvCall:
    """A small call, whose plan is nevertheless the one that the configuration stands for."""
    small = name in KERNELS[kernel].launch_sizes
    return DeformConvCall(
        kernel, CONFIGS[name], images=3, height=7, width=9, target=target, small=small
    )


def path(call: DeformConvCall) -> tuple[object, ...]:
    """What the chooser has chosen, but for sizes."""
    kernel, config, target, plan = call.kernel, call.config, TARGETS[call.target], call.plan
    if isinstance(plan, DirectPlan):
        return kernel, "direct", config.float_type.name
    vector_atomics = kernel == "backward_input" and plan.streamed and target.supports("sm_90")
    partial = plan.streamed and has_partial_tiles(plan, kernel, config)
    many_taps = target.supports("sm_80") and config.taps > 9  # more than there is room for
    # Targets differ in nothing else.
    return (
        *(kernel, plan.streamed, plan.table, plan.warps, partial, many_taps),
        *(atom_of(config, target), config.float_type.name, target.supports("sm_80")),
        vector_atomics,
    )


def cheapest() -> list[tuple[str, str, str]]:
    """The configuration of the fewest multiplications for each path that any of them takes."""

    def cost(variant: tuple[str, str, str]) -> int:
        config = CONFIGS[variant[1]]
        return config.taps * config.in_channels_per_group * config.out_channels

    found: dict[tuple[object, ...], tuple[str, str, str]] = {}
    for variant in sorted(VARIANTS, key=cost):
        found.setdefault(path(call_of(*variant)), variant)
    return sorted(found.values())


def calls_of(call: DeformConvCall) -> list[DeformConvCall]:
    """A call, and where taps are shared out among blocks one with all that fit."""
    if ".param .u32 taps_per_block" not in call.text:
        return [call]
    plan = call.plan
    assert isinstance(plan, SamplePlan)
    most = taps_per_block(call.config, plan, blocks=10**6)
    return [call, dataclasses.replace(call, taps_per_block=most)]


def run(call: DeformConvCall) -> Report:
    """What the launches of `calls_of` have done."""
    first, *others = (each.run() for each in calls_of(call))
    return functools.reduce(lambda a, b: a.merge(b), others, first)


def is_beyond(text: str) -> bool:
    """Whether an instruction is an access to what a partial tile has too much of.

    All tiles of a kernel have one shape, whose accesses are unrolled. The last columns of a narrow
    layer's only tile are never there, and the predicates of their accesses never on.
    """
    return re.match(r"@%p\d+ (ld|st|red)\.global", text) is not None


def has_partial_tiles(plan: SamplePlan | DirectPlan, kernel: str, config: DeformConvConfig) -> bool:
    if isinstance(plan, DirectPlan):
        return False
    run = config.in_channels_per_group if plan.narrow else config.segment
    if kernel == "forward":
        return config.out_channels_per_group % plan.n > 0
    if kernel == "backward_weight":
        return run % plan.m > 0 or config.out_channels_per_group % plan.n > 0
    return run % plan.n > 0


def check(kernel: str, name: str, target: str) -> None:
    call = call_of(kernel, name, target)
    never = run(call).never_executed
    if has_partial_tiles(call.plan, kernel, call.config):
        never = [(line, text) for line, text in never if not is_beyond(text)]
    assert never == []


@pytest.mark.parametrize(("kernel", "name", "target"), cheapest())
def test_every_instruction_runs(kernel, name, target):
    check(kernel, name, target)


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "name", "target"), VARIANTS)
def test_every_instruction_of_every_configuration_runs(kernel, name, target):
    check(kernel, name, target)


@pytest.mark.parametrize("kernel", KERNELS)
def test_what_never_runs_is_noticed(kernel):
    call = DeformConvCall(kernel, CONFIGS["16-channels/f32"], images=1, height=3, width=3)
    before, after = (
        {line for _, line in call.run(text).never_executed}
        for text in (call.text, with_unreachable_instruction(call.text))
    )
    assert after - before == {"membar.gl"}


def test_paths_are_many():
    """The chooser's paths are told apart: a fault in `path` would leave most of them out."""
    chosen = cheapest()
    for kernel in KERNELS:
        assert sum(name == kernel for name, _, _ in chosen) >= 15
