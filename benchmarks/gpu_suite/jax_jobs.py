"""Operations of JAX on layers: compiled, measured and recorded."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gpu_suite.layers import work
from gpu_suite.recorder import Recorder
from gpu_suite.timing import chain, time_chain
from oxijax._launch import TARGET_NAME
from oxijax.testing import DeformConvCase

__all__ = ["Job", "check_device", "forward_backward", "gradients_of", "measure", "operand_sets"]

_LEAST_SECONDS = 3.0  # with less left nothing more is started


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """An operation on a layer.

    Attributes:
      layer, dtype, operation: what it is called in the results.
      case: the layer.
      function: of x, offset, weight, mask, bias and grad_y.
      sets: sets of operands that calls take turns with.
      kernels: launches of oxijax in one call; a program with more or fewer is not what is meant.
      may_lack_memory: whether running out of memory is a finding, and no failure.
    """

    layer: str
    dtype: str
    operation: str
    case: DeformConvCase
    function: Callable
    sets: int
    kernels: int = 0
    may_lack_memory: bool = False

    def __str__(self) -> str:
        return f"{self.layer} {self.dtype} {self.operation}"

    def compile(self) -> tuple[Callable, int]:
        """The compiled program, which calls the function once for each set; and its launches."""
        shapes = [jax.eval_shape(functools.partial(_make, self.case, self.dtype), 0)] * self.sets
        compiled = jax.jit(chain(self.function)).lower(*shapes).compile()
        text = compiled.as_text()
        assert text is not None
        return compiled, text.count(f'custom_call_target="{TARGET_NAME}"')


def check_device(recorder: Recorder) -> None:
    """Notes the device; raises RuntimeError where it is no GPU and should be."""
    recorder.put("device", value=jax.devices()[0].device_kind)
    if not recorder.dry_run and jax.default_backend() != "gpu":
        raise RuntimeError(f"JAX has no GPU here, its backend is {jax.default_backend()}")


def measure(recorder: Recorder, jobs: Sequence[Job]) -> None:
    """Compiles all jobs, then measures one after the other, so that nothing disturbs that."""
    compile_ = functools.partial(_compile, recorder)
    if recorder.dry_run:  # in this thread, which knows that it emulates
        compiled = [compile_(job) for job in jobs]
    else:
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            compiled = list(pool.map(compile_, jobs))
    for job, program in zip(jobs, compiled, strict=True):
        if isinstance(program, str):
            recorder.fail(str(job), program)
        elif program is None or recorder.left() < _LEAST_SECONDS:
            recorder.cut(str(job))
        else:
            _measure(recorder, job, *program)


def forward_backward(function: Callable) -> Callable:
    """The output, and the gradients to all operands."""

    def run(*operands_and_grad_y):
        *operands, grad_y = operands_and_grad_y
        y, vjp = jax.vjp(function, *operands)
        return y, vjp(grad_y)

    return run


def gradients_of(function: Callable, wanted: Sequence[int]) -> Callable:
    """The gradients alone to some of x, offset, weight, mask and bias.

    The forward pass is part of the program only if they need its results.
    """

    def run(*operands_and_grad_y):
        *operands, grad_y = operands_and_grad_y

        def of_wanted(*chosen):
            arguments = list(operands)
            for i, value in zip(wanted, chosen, strict=True):
                arguments[i] = value
            return function(*arguments)

        return jax.vjp(of_wanted, *(operands[i] for i in wanted))[1](grad_y)

    return run


@functools.lru_cache(maxsize=1)
def operand_sets(case: DeformConvCase, dtype: str, count: int) -> list[tuple]:
    """Sets of (x, offset, weight, mask, bias, grad_y) on the device, of normal values.

    Offsets have a standard deviation of two pixels.
    """
    make = jax.jit(functools.partial(_make, case, dtype))
    return [make(seed) for seed in range(count)]


def _make(case: DeformConvCase, dtype: str, seed) -> tuple:
    samples = math.prod(case.kernel_size) * case.offset_groups
    in_group = case.x[3] // case.groups
    fan_in = math.prod(case.kernel_size) * in_group
    keys = iter(jax.random.split(jax.random.key(seed), 6))

    def normal(shape, scale=1.0):
        return (scale * jax.random.normal(next(keys), shape)).astype(dtype)

    return (
        normal(case.x),
        normal((*case.y[:3], 2 * samples), 2.0),
        normal((*case.kernel_size, in_group, case.out_channels), fan_in**-0.5),
        jnp.abs(normal((*case.y[:3], samples))) if case.mask else None,
        normal((case.out_channels,)) if case.bias else None,
        normal(case.y),
    )


def _compile(recorder: Recorder, job: Job) -> tuple[Callable, int] | str | None:
    """The program, what went wrong, or None if there was no time."""
    if recorder.left() < _LEAST_SECONDS:
        return None
    try:
        return job.compile()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _measure(recorder: Recorder, job: Job, program: Callable, launches: int) -> None:
    place = (job.layer, job.dtype, job.operation)
    if launches != job.sets * job.kernels:
        wanted = job.sets * job.kernels
        recorder.fail(str(job), f"its program should have {wanted} launches, and has {launches}")
    try:
        sets = operand_sets(job.case, job.dtype, job.sets)
        found: dict[str, Any] = time_chain(program, sets, recorder.dry_run)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        operand_sets.cache_clear()
        if job.may_lack_memory and "RESOURCE_EXHAUSTED" in text:
            recorder.put("times", *place, value={"not_measured": f"out of memory: {text[:300]}"})
        else:
            recorder.fail(str(job), text)
        return
    if job.kernels:
        needed = work(job.case, job.operation, job.dtype)
        found["flops"], found["bytes"] = needed.flops, needed.bytes
    with contextlib.suppress(NotImplementedError):
        memory = program.memory_analysis()  # pyright: ignore[reportFunctionMemberAccess]
        if memory is not None:
            found["temporary_bytes"] = memory.temp_size_in_bytes
    recorder.put("times", *place, value=found)
