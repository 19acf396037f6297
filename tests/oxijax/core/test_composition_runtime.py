"""Every function in a process that does much at once: its calls end, are right, and leave little.

A thousand calls wait in JAX's queue, eight threads compile at once, two hundred configurations pass
through one process, a call is interrupted, and a second process takes programs from JAX's
persistent compilation cache: through XLA's operations, and through the kernels in the emulated GPU.
"""

import functools
import threading
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.deadlines import ends_within
from support.helpers import assert_close
from support.layers import PATHS, TOLERANCE, expected
from support.paths import ROOT
from support.processes import python

import oxijax

DEADLINE = 120  # seconds; a test takes ten on an idle core
FAMILIES: dict[str, Callable[..., jax.Array]] = {
    "conv": functools.partial(oxijax.conv, precision="highest"),
    "deform_conv": functools.partial(oxijax.deform_conv, precision="highest"),
    "gemm": functools.partial(oxijax.gemm, precision="highest", strategy="shallow_k"),
}


@pytest.fixture(autouse=True)
def _deadline():
    with ends_within(DEADLINE):
        yield


# A queue.

CALLS = 1000


def add(family, x, term):
    """The sum of both, as the smallest call of a family that adds a term to its products."""
    if family == "gemm":
        return FAMILIES[family](x, jnp.eye(8), term, beta=1.0)
    weight = jnp.ones((1, 1, 1, 1))
    if family == "conv":
        return FAMILIES[family](x, weight, term)
    return FAMILIES[family](x, jnp.zeros((1, 1, 1, 2)), weight, None, term)


SHAPES = {  # of x and the term
    "conv": ((1, 1, 1, 1), (1,)),
    "deform_conv": ((1, 1, 1, 1), (1,)),
    "gemm": ((8, 8), (8, 8)),
}


@jax.jit
def late(x):
    """x, after a while; what needs it has to wait."""
    ones = jax.lax.fori_loop(0, 300, lambda _, m: m @ m / 300, jnp.ones((300, 300)))
    return x + 0 * ones[0, 0]


@pytest.mark.spread(1)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chained", [True, False])
def test_thousand_queued_calls(family, path, chained):
    """Each takes the result of the last one, or all that of one that is late: all are right."""
    shape, of_term = SHAPES[family]
    start = np.full(shape, 0.5, np.float32)

    def work():
        with PATHS[path]():
            call = (
                jax.jit(functools.partial(add, family))
                .lower(start, np.ones(of_term, np.float32))
                .compile()
            )
            terms = [np.full(of_term, float(i), np.float32) for i in range(CALLS)]
            y, results = late(start), []
            for i in range(CALLS):
                results.append(
                    call(results[-1] if chained and results else y, terms[1 if chained else i])
                )
                if i == 10:
                    assert not any(result.is_ready() for result in results)
            return jax.block_until_ready(results)

    late(start).block_until_ready()
    for i, result in enumerate(work()):
        np.testing.assert_array_equal(result, np.full(shape, 0.5 + i + chained, np.float32))


# Threads.


def configuration(family, number):
    """Arguments, and options, of one of eight calls of which no two compile to the same."""
    one, two, four = 1 + (number & 1), 1 + (number >> 1 & 1), number >> 2
    generator = np.random.default_rng(number)

    def normal(*shape):
        return generator.standard_normal(shape).astype(np.float32)

    if family == "gemm":
        a, b = normal(40 + 8 * four, 16), normal(16, 8)
        options = {"transpose_a": one == 2, "transpose_b": two == 2}
        return (a.T if one == 2 else a, b.T if two == 2 else b), options
    x, weight = normal(1, 4 + four, 5, 2), normal(2, 2, 2, 3)
    options = {"strides": one, "dilation": two, "padding": 2}
    if family == "conv":
        return (x, weight), options
    _, height, width, _ = oxijax.reference.conv(x, weight, **options).shape
    return (x, normal(1, height, width, 8), weight), options


@pytest.mark.spread(1)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("family", FAMILIES)
def test_eight_threads_compile_eight_configurations(family, path):
    def program(function, options):
        def values(*operands):
            y, vjp = jax.vjp(functools.partial(function, **options), *operands)
            return y, *vjp(jnp.cos(y))

        return jax.jit(values)

    calls = [configuration(family, number) for number in range(8)]
    reference = functools.partial(getattr(oxijax.reference, family), precision="highest")
    wanted = [program(reference, options)(*operands) for operands, options in calls]
    start, actual = threading.Barrier(8), {}

    def work(number):
        operands, options = calls[number]
        start.wait()
        with PATHS[path]():
            actual[number] = jax.block_until_ready(program(FAMILIES[family], options)(*operands))

    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(actual) == list(range(8))
    for number, values in enumerate(wanted):
        for result, value in zip(actual[number], values, strict=True):
            assert_close(result, value, TOLERANCE, f"configuration {number}")


# Processes.


def run(program, *arguments):
    """What a program says that is started with the path of what tests share, and with arguments."""
    status, said = python("-c", program, str(ROOT / "tests"), *arguments)
    assert status == 0, said
    return said


MEMORY = """
import gc, sys
sys.path.insert(0, sys.argv[1])
import jax, numpy as np
import oxijax
from oxijax._core.launch import _emulation
from oxijax.testing import emulate_gpu
from support.memory import forget, resident_memory

def call(number):
    kind, n = 2 if number % 8 == 0 else number % 2, number // 2
    ones = lambda *shape: np.ones(shape, np.float32)
    if kind == 2:
        k = 1 + n // 4
        y = jax.jit(lambda a, b: oxijax.gemm(a, b, strategy="shallow_k", precision="highest"))(
            ones(8, k), ones(k, 8))
        wanted = k
    else:
        options = {"strides": (1 + n // 10, 1 + n % 10), "padding": 0, "precision": "highest"}
        x, weight, wanted = ones(1, 2, 2, 1), ones(1, 1, 1, 1), 1
        if kind == 0:
            y = jax.jit(lambda x, weight: oxijax.conv(x, weight, **options))(x, weight)
        else:
            offset = np.zeros((1, 1 + (n < 10), 1 + (n % 10 == 0), 2), np.float32)
            y = jax.jit(lambda *operands: oxijax.deform_conv(*operands, **options))(
                x, offset, weight)
    np.testing.assert_array_equal(y, np.full(y.shape, wanted, np.float32))

def blocks():
    forget()
    return sys.getallocatedblocks()

with emulate_gpu():
    for number in range(200):
        call(number)
        if number == 24:
            early = blocks()
        if number % 25 == 24:
            jax.clear_caches()
            if sys.argv[2] == "oxijax":
                oxijax.clear_caches()
            gc.collect()
        if number % 50 == 49:
            print(resident_memory())
    loaded, late = len(_emulation._loaded), blocks()
    for number in range(175, 200):
        call(number)
    print(late - early, blocks() - late, loaded, len(_emulation._loaded))
"""


@pytest.mark.slow
@pytest.mark.parametrize("cleared", ["jax", "oxijax"])
def test_two_hundred_configurations(cleared):
    """What each leaves for good is its text, of some 10 to 50 KB, and fifty objects.

    What JAX has compiled goes with `jax.clear_caches`; of the texts that the emulator has parsed,
    megabytes each, it keeps 32. What is compiled again finds what it left the first time. With
    `oxijax.clear_caches` too the texts go, and hardly anything stays.
    """
    *resident, last = run(MEMORY, cleared).splitlines()
    resident = [int(value) for value in resident]
    of_175, of_repeated, loaded, loaded_again = map(int, last.split())
    if cleared == "jax":
        assert resident[3] - resident[1] < 60 * 2**20, resident
        assert of_175 < 100 * 175
        assert of_repeated < 1000
        assert loaded == loaded_again == 200
    else:
        assert resident[3] < 1.2 * resident[1], resident
        assert of_175 < 20 * 175
        assert of_repeated < 100 * 25  # which are known again
        assert (loaded, loaded_again) == (0, 25)


INTERRUPT = """
import os, signal, sys, threading, time
import jax, numpy as np
import oxijax
from oxijax._core.launch import _emulation
from oxijax.testing import emulate_gpu

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell puts aside
began, run = threading.Event(), _emulation.emulator_launch

def recorded(*arguments, **options):
    global thread
    thread = threading.current_thread()
    began.set()
    return run(*arguments, **options)

def interrupt():
    began.wait()
    time.sleep(0.1)  # into the kernel
    os.kill(os.getpid(), signal.SIGINT)

_emulation.emulator_launch = recorded
generator = np.random.default_rng(0)
shapes = (8, 32, 32, 16), (3, 3, 16, 16)
arrays = [generator.standard_normal(shape).astype(np.float32) for shape in shapes]
# The product of the last keeps JAX from running all of it in this thread.
x, weight, big = jax.block_until_ready(jax.device_put([*arrays, np.ones((300, 300))]))

def function(x, weight, big):
    if sys.argv[2] == "pool":
        x = x + 0 * (big @ big)[0, 0]
    return oxijax.conv(x, weight, precision="highest")

wanted = np.asarray(jax.jit(oxijax.reference.conv)(x, weight))
with emulate_gpu():
    compiled = jax.jit(function).lower(x, weight, big).compile()
sender = threading.Thread(target=interrupt)
sender.start()
y = None
try:
    y = compiled(x, weight, big)
    y.block_until_ready()
except KeyboardInterrupt:
    print("KeyboardInterrupt", end=" ")
except jax.errors.JaxRuntimeError as error:
    print("JaxRuntimeError", "KeyboardInterrupt" in str(error), end=" ")
sender.join()
print(thread is threading.main_thread(), y is not None, end=" ")
for result in (y, compiled(x, weight, big)):
    if result is not None:
        error = np.linalg.norm(np.asarray(result) - wanted) / np.linalg.norm(wanted)
        print(error < 2e-6, end=" ")
"""


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("thread", "said"),
    [
        # Python raises it where it runs, in the emulator. That ends the call at once, with an error
        # of JAX's, and is raised again for the caller.
        ("main", "KeyboardInterrupt True False True"),
        # The main thread waits for the call, whose result is there afterwards.
        ("pool", "KeyboardInterrupt False True True True"),
    ],
)
def test_interrupt(thread, said):
    """Of a long call, in the thread that makes it or in JAX's; the next call is right."""
    assert run(INTERRUPT, thread).strip() == said


CACHE = """
import sys
sys.path.insert(0, sys.argv[1])
folder, version = sys.argv[2:]
import jax, numpy as np
from support.layers import LAYERS, PATHS, program_of
from oxijax._core.launch import _call, _resolve, _spec

for module in (_call, _resolve, _spec):
    module.VERSION += int(version)
jax.config.update("jax_compilation_cache_dir", folder)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
for path, context in PATHS.items():
    for name in ("conv", "deform_conv", "gemm-batch"):
        layer = LAYERS[name]
        grad_y = np.load(f"{folder}/{name}.grad_y.npy")
        with context():
            program = program_of(layer).lower(layer.operands(), grad_y)
            events.clear()
            compiled = program.compile()
            hits, misses = (
                events.count(f"/jax/compilation_cache/cache_{kind}") for kind in ("hits", "misses"))
            results = compiled(layer.operands(), grad_y)
        np.savez(f"{folder}/{path}.{name}.npz", *results)
        print(path, name, hits, misses)
"""


@pytest.mark.slow
def test_persistent_compilation_cache(tmp_path):
    """A second process compiles nothing; of another version of the specs it compiles the calls."""
    names = "conv", "deform_conv", "gemm-batch"
    for name in names:
        np.save(tmp_path / f"{name}.grad_y.npy", expected(name)[1])
    for version, hits in (("0", ()), ("0", ("xla", "kernels")), ("1", ("xla",))):
        said = [line.split() for line in run(CACHE, str(tmp_path), version).splitlines()]
        assert said == [
            [path, name, *(("1", "0") if path in hits else ("0", "1"))]
            for path in PATHS
            for name in names
        ]
        for path in PATHS:
            for name in names:
                results = np.load(tmp_path / f"{path}.{name}.npz")
                for value, result in zip(expected(name)[0], results.values(), strict=True):
                    assert_close(result, value, TOLERANCE, f"{path} {name}")
