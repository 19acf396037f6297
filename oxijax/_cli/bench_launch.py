"""The cost of one launch on the way from XLA to the driver.

The same chain of calls runs through three handlers, all of which launch nothing: oxijax's, one
written in Python with ctypes, and one that returns at once. The last is what XLA charges for any
call, and is taken off.
"""

import contextlib
import ctypes
import dataclasses
import functools
import statistics
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from oxijax._cli.bench_rounds import spread, time_rounds
from oxijax._core.launch import Emulation, call, emulation
from oxijax._core.launch._handler import LAUNCH_FUNCTION, library
from oxijax._core.primitive.kernel_primitive import KernelPrimitive, Result
from ptx import Kernel, f32
from ptx.definition import In, KernelDefinition, Out, Plan
from ptx.registry import register

__all__ = ["measure_launch"]

CALLS = 100  # in one chain


def measure_launch(runs: int = 5) -> dict[str, Any]:
    """Microseconds of a call, idle and beside a thread that runs Python.

    Args:
      runs: how often each chain runs. The fastest run counts, and the mean where a call may wait
        for the interpreter.

    Returns:
      "native_us", "native_busy_us", "ctypes_us", "ctypes_busy_us" and, for each handler, the
      ratio of busy to idle; "rounds", how many runs there were of each, and "spread", the quartiles
      of the times over these runs.
    """
    _register_rivals()
    x = jnp.zeros(8)
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    with emulation(Emulation("sm_90", dry_run=True)):
        chains = {
            "native": _chain(_native).lower(x, 1).compile(),
            "ctypes": _chain(jax.ffi.ffi_call(_CTYPES, like)).lower(x, 1).compile(),
            "empty": _chain(jax.ffi.ffi_call(_EMPTY, like)).lower(x, 1).compile(),
        }
    figures, rounds, spreads = {}, {}, {}
    for suffix, busy in (("", False), ("_busy", True)):
        with _busy_interpreter() if busy else contextlib.nullcontext():
            if busy:
                # Beside a busy thread a call of the ctypes handler may wait 5 ms for the
                # interpreter, or may not: only the mean of many short runs says something.
                # The others wait once a run, so that runs are long.
                times = _times(chains, x, {"native": 10_000, "empty": 10_000}, runs)
                times |= _times(chains, x, {"ctypes": 1}, 8 * runs)
            else:
                times = _times(chains, x, {"native": 10_000, "ctypes": 500, "empty": 10_000}, runs)
        for name in ("native", "ctypes"):
            key = f"{name}{suffix}_us"
            best = statistics.mean if busy and name == "ctypes" else min
            figures[key] = best(times[name]) - min(times["empty"])
            empty = times["empty"]
            if len(empty) != len(times[name]):  # they have not run in turn
                empty = [statistics.median(empty)] * len(times[name])
            rounds[key] = len(times[name])
            spreads[key] = spread([us - e for us, e in zip(times[name], empty, strict=True)])
    for name in ("native", "ctypes"):
        figures[f"{name}_busy_ratio"] = figures[f"{name}_busy_us"] / figures[f"{name}_us"]
    return {**figures, "rounds": rounds, "spread": spreads}


def _times(
    chains: dict[str, Callable], x: jax.Array, iterations: dict[str, int], runs: int
) -> dict[str, list[float]]:
    """Microseconds of a call in each run, of those chains that `iterations` names, in turn."""
    programs = {name: (chains[name], (x, count)) for name, count in iterations.items()}
    rounds = time_rounds(programs, runs)
    return {
        name: [1e3 * ms / (count * CALLS) for ms in rounds[name]]
        for name, count in iterations.items()
    }


def _chain(call: Callable):
    def calls(_, x):
        for _ in range(CALLS):
            x = call(x)
        return x

    return jax.jit(lambda x, iterations: jax.lax.fori_loop(0, iterations, calls, x))


@contextlib.contextmanager
def _busy_interpreter() -> Iterator[None]:
    """Another thread keeps the interpreter occupied within the context."""
    stop = threading.Event()

    def work() -> None:
        total = 0
        while not stop.is_set():
            for i in range(1000):
                total += i

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@dataclasses.dataclass(frozen=True)
class _Config:
    block: int = 32


def _write_copy(k: Kernel, config: _Config, plan: Plan, p: Any) -> None:
    """The kernel that would be launched: out = x."""
    i = k.ctaid() * config.block + k.tid()
    p.out.store(i, p.x.load(i))


_COPY = register(
    KernelDefinition(
        name="benchmark_copy",
        configs={"default": _Config()},
        parameters=(In("x", "n", dtype=f32), Out("out", "n", dtype=f32)),
        plan=lambda config, target, sizes: Plan(config.block),
        grid=lambda instance: (1, 1, 1),
        body=_write_copy,
    )
)

_copy_p = KernelPrimitive(
    "benchmark_copy",
    operands={"x": "n"},
    results={"out": Result("n", like="x")},
    sizes=lambda config, sizes: sizes,
    folds=[],
    reference=lambda config, x: (x,),
    cuda=lambda config, x: call(_COPY, config, x=x),
)


def _native(x: jax.Array) -> jax.Array:
    (out,) = _copy_p(_Config(), x)
    assert out is not None
    return out


_EMPTY, _CTYPES = "oxijax_benchmark_empty", "oxijax_benchmark_ctypes"

# Offsets in the structs of XLA's c_api.h, in bytes.
_FRAME_EXTENSION, _FRAME_API, _FRAME_OPERANDS, _FRAME_RESULTS = 8, 16, 72, 112
_EXTENSION_METADATA, _METADATA_MINOR, _API_MINOR, _BUFFER_DATA = 24, 28, 36, 24


@functools.cache  # which keeps what is returned alive
def _register_rivals() -> Callable:
    """Registers the two other handlers; returns the one that is written in Python."""
    handler = library()
    empty = {"execute": jax.ffi.pycapsule(handler.oxijax_empty_execute)}
    jax.ffi.register_ffi_target(_EMPTY, empty, platform="cpu")
    nothing = ctypes.cast(handler.oxijax_launch_nothing, LAUNCH_FUNCTION)
    pointer, number = ctypes.c_void_p.from_address, ctypes.c_int.from_address
    parameters_of_two = ctypes.c_void_p * 2

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)
    def execute(frame: int) -> None:
        extension = pointer(frame + _FRAME_EXTENSION).value
        if extension:  # XLA asks for the version when the handler is registered
            metadata = pointer(extension + _EXTENSION_METADATA).value
            api = pointer(frame + _FRAME_API).value
            assert metadata is not None
            minor = number(api + _API_MINOR).value if api else handler.oxijax_api_minor()
            number(metadata + _METADATA_MINOR).value = minor
            return
        operand = pointer(pointer(frame + _FRAME_OPERANDS).value).value  # pyright: ignore
        result = pointer(pointer(frame + _FRAME_RESULTS).value).value  # pyright: ignore
        parameters = parameters_of_two(operand + _BUFFER_DATA, result + _BUFFER_DATA)  # pyright: ignore
        nothing(None, 1, 1, 1, 32, 1, 1, 0, None, parameters, None)

    capsule = jax.ffi.pycapsule(ctypes.cast(execute, ctypes.c_void_p).value)
    jax.ffi.register_ffi_target(_CTYPES, {"execute": capsule}, platform="cpu")
    return execute
