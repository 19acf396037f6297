"""Section tuning: `oxijax.tune` on deform_conv's layers, and how far the model's choice is off."""

import functools
from collections.abc import Callable
from typing import Any

import oxijax
from gpu_suite.deform_conv_layers import layers, operands
from gpu_suite.jax_jobs import Operands, check_device, forward, gradients_of
from gpu_suite.recorder import Recorder
from oxijax._core.tuning.report import TunedCall

__all__ = ["run"]

_LEAST_SECONDS = 60.0  # a kernel takes so long at most: its model, then its times
_DTYPE = "bfloat16"
_OPERATIONS: dict[str, Callable[[Callable], Callable]] = {
    "forward": forward,
    "backward_input": lambda function: gradients_of(function, [0]),
    "backward_offset": lambda function: gradients_of(function, [1, 3]),
    "backward_weight": lambda function: gradients_of(function, [2]),
}


def run(recorder: Recorder) -> None:
    check_device(recorder)
    if recorder.mode.emulated:
        recorder.put("tuned", value={"not_measured": "an emulated GPU has no time"})
        return
    cases = layers(recorder.mode.tiny)
    if recorder.mode.tiny:
        name, case = next(iter(cases.items()))
        _tune(recorder, name, case, "forward")
        return
    for name, case in cases.items():
        for operation in _OPERATIONS:
            if recorder.left() < _LEAST_SECONDS:
                recorder.cut(f"{name} {operation}")
                continue
            _tune(recorder, name, case, operation)


def _tune(recorder: Recorder, name: str, case: Any, operation: str) -> None:
    function = _OPERATIONS[operation](functools.partial(oxijax.deform_conv, **case.options))
    (shapes,) = Operands(operands, case, _DTYPE, 1).shapes
    try:
        (call,) = oxijax.tune(function, *shapes)
    except Exception as error:
        recorder.fail(f"{name} {operation}", f"{type(error).__name__}: {error}")
        return
    recorder.put("tuned", name, operation, value=_figures(call))


def _figures(call: TunedCall) -> dict[str, Any]:
    first = call.model_first
    return {
        "own_us": call.candidates[0].microseconds,
        "kept_us": call.kept.microseconds,
        "model_first_us": None if first is None else first.microseconds,
        "candidates": len(call.candidates),
        "kept": str(call.kept.plan),
        "all": [[str(c.plan), c.microseconds, c.modelled_us] for c in call.candidates],
    }
