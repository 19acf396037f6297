"""Places where kernels under test run, in the emulator or on a GPU, with their tolerances."""

import contextlib
import dataclasses
import functools
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import pytest

from oxijax._core.launch import TARGET_NAME
from oxijax.testing import emulate_gpu
from support.helpers import program_of

# Relative Frobenius norms against float64: (dtype, precision) -> tolerance.
PRECISIONS = {
    "float64": ("float64", None, 1e-13),
    "exact": ("float32", "highest", 2e-6),
    "tf32": ("float32", None, 1e-3),
    "bfloat16": ("bfloat16", None, 8e-3),
    "float16": ("float16", None, 1e-3),
}


def wants_gpu(config: pytest.Config) -> bool:
    """Whether the run is for a GPU: then its tests run, and fail where there is none."""
    return os.environ.get("OXIJAX_REQUIRE_GPU") == "1" or "gpu" in config.option.markexpr


@dataclasses.dataclass(frozen=True)
class Place:
    """Where the kernels under test run.

    Attributes:
      device: the device that has their operands.
      context: the function that makes the context that they are compiled and called in.
      compiler_options: XLA's options for the program around the kernels.
    """

    device: Any
    context: Callable[[], contextlib.AbstractContextManager]
    compiler_options: dict[str, int] | None = None

    def values_and_gradients(self, function: Callable, operands, grad_y, kernels: Sequence[str]):
        """The function's output, and its gradients to the operands: by these kernels, once each."""
        with self.context():
            operands, grad_y = jax.device_put((tuple(operands), grad_y), self.device)
            compiled = program_of(function).lower(operands, grad_y).compile(self.compiler_options)
            if grad_y.size:
                calls = assert_has_kernels(compiled.as_text(), kernels)
                assert calls == len(kernels)
            return compiled(operands, grad_y)


def emulated(target: str = "sm_90", schedule: int | None = None) -> Place:
    # What XLA itself computes around the kernels is not worth the time to optimise it.
    options = {"xla_backend_optimization_level": 0}
    context = functools.partial(emulate_gpu, target, schedule=schedule)
    return Place(jax.devices("cpu")[0], context, options)


def assert_has_kernels(text: str | None, kernels: Sequence[str]) -> int:
    """A compiled program holds these kernels' calls, so that XLA's own code is not what runs.

    Returns:
      How many calls of kernels it has.
    """
    assert text is not None
    calls = [line for line in text.splitlines() if f'custom_call_target="{TARGET_NAME}"' in line]
    for kernel in kernels:
        name = re.compile(rf"{kernel}\b(?!_)")  # a quote follows, escaped somehow
        assert any(name.search(line) for line in calls), f"no {kernel}"
    return len(calls)
