"""Section times-oxijax: deform_conv's forward pass, its backward kernels, and all together."""

import contextlib
import functools
from collections.abc import Callable

import oxijax
from gpu_suite.deform_conv_layers import layers, operands, trains, work
from gpu_suite.jax_jobs import (
    Job,
    Operands,
    check_device,
    forward,
    forward_backward,
    gradients_of,
    measure,
)
from gpu_suite.layers import DTYPES, LAUNCH_FLOOR, set_count
from gpu_suite.recorder import Recorder
from oxijax.testing import DeformConvCase, emulate_gpu

__all__ = ["run"]

_FEW_PIXELS = DeformConvCase(LAUNCH_FLOOR, (1, 4, 4, 32), 32)


def run(recorder: Recorder) -> None:
    check_device(recorder)
    recorder.put("layers", value=list(layers(recorder.mode.tiny)))
    with emulate_gpu("sm_90") if recorder.mode.emulated else contextlib.nullcontext():
        cases = layers(recorder.mode.tiny)
        if recorder.mode.tiny:
            names = list(cases)
            measure(recorder, [_job(cases[name], "float16", "forward", True) for name in names[2:]])
            last = cases[names[-1]]
            measure(recorder, [_job(last, "float16", name, True) for name in _FUNCTIONS][1:])
            return
        # What is compared with torchvision's float16 comes first.
        for dtype in DTYPES:
            for operations in (list(_FUNCTIONS)[:2], list(_FUNCTIONS)[2:]):
                jobs = [
                    _job(case, dtype, name)
                    for case in cases.values()
                    for name in operations
                    if name == "forward" or trains(case)
                ]
                if dtype == "float16":
                    jobs += [_job(_FEW_PIXELS, dtype, name) for name in operations]
                measure(recorder, jobs)


# Each operation, and how many launches it has.
_FUNCTIONS: dict[str, tuple[Callable[[Callable], Callable], int]] = {
    "forward": (forward, 1),
    "forward_backward": (forward_backward, 4),
    "backward_input": (lambda function: gradients_of(function, [0]), 1),
    "backward_offset": (lambda function: gradients_of(function, [1, 3]), 1),
    "backward_weight": (lambda function: gradients_of(function, [2]), 1),
}


def _job(case: DeformConvCase, dtype: str, operation: str, tiny: bool = False) -> Job:
    make, kernels = _FUNCTIONS[operation]
    function = make(functools.partial(oxijax.deform_conv, **case.options))
    given = Operands(operands, case, dtype, set_count(work(case, "forward", dtype), tiny))
    needed = work(case, operation, dtype)
    return Job(case.name, operation, given, function, work=needed, kernels=kernels)
