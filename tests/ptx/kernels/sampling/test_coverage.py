"""Every instruction of every kernel of weighted sums of samples runs, and is right."""

import dataclasses

import pytest
from support.sampling_kernels import KERNELS, SamplingCall, small, wide
from support.windows_kernels import WINDOWS_KERNELS, WindowsCall

from ptx.kernels.sampling import CONFIGS
from ptx.kernels.sampling.windows import CONFIGS as WINDOWS

pytestmark = pytest.mark.proof

# sm_75 has no bf16 instructions, sm_90 adds four numbers at once.
TARGETS = ("sm_75", "sm_80", "sm_90")
SHOWN = ("bf16", "f64")  # of each configuration in the normal run


def check(kernel: str, name: str, target: str, schedule: int | None = None) -> None:
    call = SamplingCall(kernel, small(CONFIGS[name]), target=target)
    if call.tiled:
        call = dataclasses.replace(call, config=wide(call.config), far=True)
    assert call.run(schedule=schedule).never_executed == []


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", [n for n in CONFIGS if n.endswith(SHOWN)])
def test_every_instruction_runs(kernel, name, target):
    check(kernel, name, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", CONFIGS)
def test_every_instruction_runs_in_other_orders(kernel, name, target):
    for seed in (1, 2):
        check(kernel, name, target, seed)


@pytest.mark.parametrize("kernel", KERNELS)
def test_one_image_and_one_query(kernel):
    for name in ("softmax/f32", "v4/f32", "grid-reflection/f32", "nearest/f32"):
        SamplingCall(kernel, small(CONFIGS[name]), images=1, queries=1, strange=False).run()


@pytest.mark.parametrize("kernel", ["forward", "backward_value_gather", "backward_points"])
def test_any_schedule_gives_the_same_bits(kernel):
    config = dataclasses.replace(small(CONFIGS["softmax/f32"]), channels=40)
    call = SamplingCall(kernel, config)
    first, *others = (
        call.outcome(schedule=seed, step_limit=200_000).results for seed in (None, 1, 2)
    )
    for other in others:
        for name, result in first.items():
            assert result.tobytes() == other[name].tobytes(), name


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kernel", WINDOWS_KERNELS)
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(kernel, name, target):
    for call in (
        WindowsCall(kernel, WINDOWS[name], target=target),
        WindowsCall(kernel, WINDOWS[name], target=target, seed=1),
    ):
        assert call.run(schedule=call.seed or None).never_executed == []
    WindowsCall(kernel, WINDOWS[name], 1, 1, target=target, strange=False).run()
