"""Operations of JAX on layers: compiled, measured and recorded."""

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from gpu_suite.layers import Work
from gpu_suite.recorder import Mode, Recorder
from gpu_suite.timing import chain, time_chain
from oxijax._core.launch import TARGET_NAME

__all__ = [
    "COMPILE_VARIABLE",
    "Job",
    "Operands",
    "calls_in",
    "check_device",
    "forward",
    "forward_backward",
    "gradients_of",
    "measure",
]

_LEAST_SECONDS = 3.0  # with less left nothing more is started
_TOGETHER = 6  # programs that are compiled at once, then measured
COMPILE_VARIABLE = "OXIJAX_SUITE_COMPILE_SECONDS"  # that a rehearsal adds to each program
_NOT_THERE = "the virtual GPU does not implement it"  # it has no cuDNN


@dataclasses.dataclass(frozen=True)
class Operands:
    """Sets of operands on the device that calls take turns with.

    Attributes:
      make: makes the operands of (case, dtype, seed); it is traced.
      case: the layer, which can be hashed.
      dtype: the operands' dtype.
      sets: how many.
    """

    make: Callable[[Any, str, jax.Array], tuple]
    case: Any
    dtype: str
    sets: int

    @property
    def shapes(self) -> list[tuple]:
        """Of each set."""
        return [jax.eval_shape(self._make, 0)] * self.sets

    def compile(self) -> Callable[[int], tuple]:
        """The program seed -> set."""
        return jax.jit(self._make).lower(0).compile()

    def _make(self, seed) -> tuple:
        return self.make(self.case, self.dtype, seed)


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """An operation on a layer.

    Attributes:
      layer, operation: what it is called in the results, beside the operands' dtype.
      operands: what it is given.
      function: the function of a set of operands.
      work: what it has to do, if that is to be known.
      kernels: launches of oxijax in one call; a program with more or fewer is not what is meant.
      products: convolutions and matrix products that a call asks XLA for, nothing dropped and
        nothing beside; None if they do not count.
      may_lack_memory: whether running out of memory is a finding, and no failure.
    """

    layer: str
    operation: str
    operands: Operands
    function: Callable
    work: Work | None = None
    kernels: int = 0
    products: int | None = None
    may_lack_memory: bool = False

    @property
    def place(self) -> tuple[str, str, str]:
        """Where its time is in the results."""
        return self.layer, self.operands.dtype, self.operation

    def __str__(self) -> str:
        return " ".join(self.place)

    def compile(self) -> "_Program":
        """The compiled program, which calls the function once for each set."""
        began = time.perf_counter()
        lowered = jax.jit(chain(self.function)).lower(*self.operands.shapes)
        asked = len(re.findall(r"stablehlo\.(?:convolution|dot_general)\b", lowered.as_text()))
        compiled = lowered.compile()
        text = compiled.as_text()
        assert text is not None
        return _Program(compiled, asked, calls_in(text), time.perf_counter() - began)


@dataclasses.dataclass(frozen=True)
class _Program:
    """A compiled chain of calls.

    Attributes:
      run: runs it.
      products: convolutions and matrix products that XLA was asked for.
      calls: `calls_in` what XLA has made of it.
      seconds: how long it took to trace and compile.
    """

    run: Callable
    products: int
    calls: collections.Counter[str]
    seconds: float


def calls_in(text: str) -> collections.Counter[str]:
    """Custom calls in a compiled program, by target, and fusions of a kind such as Triton's."""
    return collections.Counter(re.findall(r'(?:custom_call_target="|"kind":"(?=__))([^"]+)"', text))


def check_device(recorder: Recorder) -> None:
    """Notes the device; raises RuntimeError where it is no GPU and should be."""
    recorder.put("device", value=jax.devices()[0].device_kind)
    if not recorder.mode.emulated and jax.default_backend() != "gpu":
        raise RuntimeError(f"JAX has no GPU here, its backend is {jax.default_backend()}")


def measure(recorder: Recorder, jobs: Sequence[Job]) -> None:
    """Compiles a few jobs and measures them, one after the other; then the next few.

    Nothing is compiled while a job is measured. Jobs with the same operands should follow each
    other: those of one are kept.
    """
    makers: dict[Operands, Any] = {}
    sets = functools.lru_cache(maxsize=1)(lambda operands: _sets(operands, makers[operands]))
    for first in range(0, len(jobs), _TOGETHER):
        _measure_together(recorder, jobs[first : first + _TOGETHER], makers, sets)


def _measure_together(
    recorder: Recorder, jobs: Sequence[Job], makers: dict[Operands, Any], sets: Any
) -> None:
    compile_ = functools.partial(_compile, recorder)
    operands = [o for o in dict.fromkeys(job.operands for job in jobs) if o not in makers]
    if recorder.mode.emulated:  # in this thread, which knows that it emulates
        programs = [compile_(what) for what in (*jobs, *operands)]
    else:
        with concurrent.futures.ThreadPoolExecutor(_TOGETHER) as pool:
            programs = list(pool.map(compile_, (*jobs, *operands)))
    makers |= zip(operands, programs[len(jobs) :], strict=True)
    for job, program in zip(jobs, programs, strict=False):
        failures = [found for found in (program, makers[job.operands]) if isinstance(found, str)]
        if failures:
            _fail(recorder, job, failures[0])
        elif None in (program, makers[job.operands]) or recorder.left() < _LEAST_SECONDS:
            recorder.cut(str(job))
        else:
            _measure(recorder, job, program, sets)


def forward(function: Callable) -> Callable:
    """The output alone."""
    return lambda *operands_and_grad_y: function(*operands_and_grad_y[:-1])


def forward_backward(function: Callable) -> Callable:
    """The output, and the gradients to all operands."""

    def run(*operands_and_grad_y):
        *operands, grad_y = operands_and_grad_y
        y, vjp = jax.vjp(function, *operands)
        return y, vjp(grad_y)

    return run


def gradients_of(function: Callable, wanted: Sequence[int]) -> Callable:
    """The gradients alone to the operands with these numbers.

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


def _compile(recorder: Recorder, what: Job | Operands) -> Any:
    """The program, what went wrong as a text, or None if there was no time."""
    if recorder.left() < _LEAST_SECONDS:
        return None
    time.sleep(float(os.environ.get(COMPILE_VARIABLE, 0)))
    try:
        return what.compile()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _sets(operands: Operands, make: Callable[[int], tuple]) -> list[tuple]:
    return [make(seed) for seed in range(operands.sets)]


def _measure(recorder: Recorder, job: Job, program: _Program, sets: Any) -> None:
    counted = [("launches", program.calls[TARGET_NAME], job.kernels)]
    if job.products is not None:
        counted.append(("products", program.products, job.products))
    for what, found, in_a_call in counted:
        wanted = job.operands.sets * in_a_call
        if found != wanted:
            recorder.fail(str(job), f"its program should have {wanted} {what}, and has {found}")
    try:
        times: dict[str, Any] = time_chain(program.run, sets(job.operands), recorder.mode.tiny)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        sets.cache_clear()
        _fail(recorder, job, text)
        return
    if job.work:
        times["flops"], times["bytes"] = job.work.flops, job.work.bytes
    times["calls"], times["compile_s"] = dict(program.calls), program.seconds
    with contextlib.suppress(NotImplementedError):
        memory = program.run.memory_analysis()  # pyright: ignore[reportFunctionMemberAccess]
        if memory is not None:
            times["temporary_bytes"] = memory.temp_size_in_bytes
    recorder.put("times", *job.place, value=times)


def _fail(recorder: Recorder, job: Job, text: str) -> None:
    """Notes that a job has failed, or that it could not be measured, where that may happen."""
    if job.may_lack_memory and "RESOURCE_EXHAUSTED" in text:
        recorder.put("times", *job.place, value={"not_measured": f"out of memory: {text[:300]}"})
    elif recorder.mode is Mode.REHEARSE and not job.kernels and _NOT_THERE in text:
        recorder.put("times", *job.place, value={"not_measured": _NOT_THERE})
    else:
        recorder.fail(str(job), text)
