"""Kernels launched from JAX programs: through the real handler, into the emulated GPU."""

import concurrent.futures
import dataclasses
import gc
import re
import threading
import time
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support import launch_samples
from support.launch_samples import Elementwise, accumulate, broken, scale_and_add

import oxijax
from oxijax._core import install
from oxijax._core import launch as _launch
from oxijax._core.launch import _emulation, _handler, _resolve
from oxijax.testing import emulate_gpu
from ptx import TARGETS
from ptx.definition import KernelDefinition
from ptx.launch import BufferAddress

pytestmark = pytest.mark.quick


def matrix(rows, columns=5, seed=0):
    generator = np.random.default_rng(seed)
    return jnp.asarray(generator.standard_normal((rows, columns)), jnp.float32)


def test_eager(launches):
    x, y = matrix(7), matrix(7, seed=1)
    with emulate_gpu():
        out = scale_and_add(x, y)
    np.testing.assert_array_equal(out, np.float32(2) * x + y)
    assert len(launches) == 1


@pytest.mark.parametrize("target", ["sm_75", "sm_90"])
def test_target(launches, target):
    with emulate_gpu(target):
        scale_and_add(matrix(3), matrix(3)).block_until_ready()
    assert [launch.target for launch in launches] == [target]


def test_inside_and_outside_are_compiled_apart(launches):
    function = jax.jit(scale_and_add)
    x, y = matrix(6), matrix(6, seed=1)
    outside = function(x, y)
    assert not launches
    with emulate_gpu():
        inside = function(x, y).block_until_ready()
    assert len(launches) == 1
    function(x, y).block_until_ready()
    assert len(launches) == 1
    with emulate_gpu():
        function(x, y).block_until_ready()
    assert len(launches) == 2
    np.testing.assert_array_equal(inside, outside)


def test_compiled_inside_runs_in_the_emulator_outside(launches):
    x, y = matrix(6), matrix(6, seed=1)
    with emulate_gpu():
        compiled = jax.jit(scale_and_add).lower(x, y).compile()
    np.testing.assert_array_equal(compiled(x, y), 2 * x + y)
    assert len(launches) == 1


def test_random_schedule(launches):
    for seed in (None, 3):
        with emulate_gpu(schedule=seed):
            jax.jit(scale_and_add)(matrix(3), matrix(3)).block_until_ready()
    assert [launch.schedule for launch in launches] == [None, 3]


def test_one_load_for_each_kind_of_call(loads):
    config = Elementwise(alpha=1.25)  # which no other test has
    with emulate_gpu():
        for rows in (2, 3, 2, 3, 2):
            scale_and_add(matrix(rows), matrix(rows), config).block_until_ready()
    assert len(loads) == 2
    assert len({id(text) for text in loads}) == 1  # generated once


def test_vmap_is_one_launch(launches):
    x, y = jnp.stack([matrix(4), matrix(4, seed=2)]), matrix(4, seed=1)
    with emulate_gpu():
        out = jax.jit(jax.vmap(scale_and_add, (0, None)))(x, y)
    np.testing.assert_array_equal(out, 2 * x + y[None])
    assert len(launches) == 1


def test_scan(launches):
    def step(carry, y):
        return scale_and_add(carry, y), carry.sum()

    ys = jnp.stack([matrix(4, seed=s) for s in range(5)])
    with emulate_gpu():
        out, _ = jax.jit(lambda x: jax.lax.scan(step, x, ys))(matrix(4))
    expected = matrix(4)
    for y in ys:
        expected = 2 * expected + y
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    assert len(launches) == 5


@pytest.mark.parametrize("taken", [True, False])
def test_cond(launches, taken):
    x, y = matrix(4), matrix(4, seed=1)
    with emulate_gpu():
        out = jax.jit(lambda p: jax.lax.cond(p, scale_and_add, lambda x, y: x, x, y))(taken)
    np.testing.assert_array_equal(out, 2 * x + y if taken else x)
    assert len(launches) == taken


def test_gradient():
    x, y = matrix(4), matrix(4, seed=1)
    with emulate_gpu():
        grad = jax.jit(jax.grad(lambda x: (scale_and_add(x, y) ** 2).sum()))(x)
    np.testing.assert_allclose(grad, 4 * (2 * x + y), rtol=1e-6)


def test_several_kernels_aliases_and_workspaces(launches):
    x, total = matrix(5), matrix(5, seed=1)
    before = np.array(total)
    with emulate_gpu():
        out, seen = jax.jit(accumulate)(x, total)
    np.testing.assert_allclose(out, 2 * x + before, rtol=1e-6)
    np.testing.assert_array_equal(seen, before)
    np.testing.assert_array_equal(total, before)  # used again: XLA has copied it
    assert len(launches) == 3


def test_donated_buffer_is_reused():
    x, total = matrix(5), matrix(5, seed=1)
    expected = 2 * x + total
    with emulate_gpu():
        compiled = jax.jit(accumulate, donate_argnums=1).lower(x, total).compile()
    address = total.unsafe_buffer_pointer()
    out, _ = compiled(x, total)
    np.testing.assert_allclose(out, expected, rtol=1e-6)
    assert out.unsafe_buffer_pointer() == address
    assert total.is_deleted()


def test_wrong_alias():
    def alias(x):
        return _launch.call(launch_samples.ACCUMULATE, Elementwise(), x=x, total=x.T)

    with pytest.raises(ValueError, match=r"total must have n = 3, got \(2, 3\)"):
        jax.eval_shape(alias, jnp.zeros((3, 2)))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("x",), "scale_and_add takes x, y, and was given x"),
        (("x", "y", "z"), "scale_and_add takes x, y, and was given x, y, z"),
    ],
)
def test_wrong_operands(names, message):
    def call(x):
        operands: dict[str, Any] = dict.fromkeys(names, x)
        return _launch.call(launch_samples.SCALE_AND_ADD, Elementwise(), **operands)

    with pytest.raises(TypeError, match=message):
        jax.eval_shape(call, jnp.zeros((3, 2)))


def test_operand_of_another_dtype():
    def call(x):
        operands = {"x": x, "y": x.astype(jnp.bfloat16)}
        return _launch.call(launch_samples.SCALE_AND_ADD, Elementwise(), **operands)

    with pytest.raises(TypeError, match="scale_and_add: y must be float32, got bfloat16"):
        jax.eval_shape(call, jnp.zeros((3, 2)))


def test_empty_operands_launch_nothing(launches):
    with emulate_gpu():
        out = jax.jit(scale_and_add)(jnp.zeros((0, 4)), jnp.zeros((0, 4)))
    assert out.shape == (0, 4)
    assert not launches


def test_eight_threads(launches):
    config = Elementwise(alpha=-1.5)  # loaded by whichever thread comes first
    start = threading.Barrier(8)

    def work(number):
        x, y = matrix(6, seed=number), matrix(6, seed=number + 100)
        start.wait()
        with emulate_gpu():
            for _ in range(5):
                x = jax.jit(scale_and_add, static_argnums=2)(x, y, config)
        return number, np.asarray(x)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for number, out in pool.map(work, range(8)):
            expected, y = matrix(6, seed=number), matrix(6, seed=number + 100)
            for _ in range(5):
                expected = -1.5 * expected + y
            np.testing.assert_allclose(out, expected, rtol=1e-5)
    assert len(launches) == 40


class TestFourDevices:
    @pytest.fixture
    def mesh(self):
        return jax.make_mesh((4,), ("batch",), axis_types=(AxisType.Auto,))

    def test_split_batch_needs_no_communication(self, launches, mesh):
        sharding = NamedSharding(mesh, P("batch"))
        x, y = (jax.device_put(matrix(8, seed=s), sharding) for s in (0, 1))
        with emulate_gpu():
            compiled = jax.jit(lambda x, y: scale_and_add(x + 1, y)).lower(x, y).compile()
        out = compiled(x, y)
        np.testing.assert_allclose(out, 2 * (x + 1) + y, rtol=1e-6)
        assert out.sharding.is_equivalent_to(sharding, 2)
        assert len(launches) == 4
        assert not re.search(r"all-gather|all-reduce|collective", str(compiled.as_text()))

    def test_split_along_another_dimension(self, mesh):
        sharding = NamedSharding(mesh, P(None, "batch"))
        x, y = (jax.device_put(matrix(3, 8, seed=s), sharding) for s in (0, 1))
        with emulate_gpu():
            out = jax.jit(scale_and_add)(x, y)
        np.testing.assert_array_equal(out, 2 * x + y)

    @pytest.mark.parametrize("check_vma", [True, False])
    def test_shard_map(self, launches, mesh, check_vma):
        def local(x, y):
            return jax.lax.psum(scale_and_add(x, y).sum(), "batch")

        x, y = matrix(8), matrix(2, seed=1)
        mapped = jax.shard_map(
            local, mesh=mesh, in_specs=(P("batch"), P()), out_specs=P(), check_vma=check_vma
        )
        with emulate_gpu():
            out = jax.jit(mapped)(x, y)
        np.testing.assert_allclose(out, (2 * x + jnp.tile(y, (4, 1))).sum(), rtol=1e-5)
        assert len(launches) == 4

    def test_each_device_by_itself(self, launches):
        with emulate_gpu():
            outs = []
            for number, device in enumerate(jax.devices()):
                x = jax.device_put(matrix(6, seed=number), device)
                outs.append(scale_and_add(x, x))
        for number, (out, device) in enumerate(zip(outs, jax.devices(), strict=True)):
            assert out.devices() == {device}
            np.testing.assert_allclose(out, 3 * matrix(6, seed=number), rtol=1e-6)
        assert len(launches) == 4


FAULTS = {
    "out of bounds": "OutOfBoundsError",
    "unwritten": "UnwrittenError",
    "bad PTX": "UnknownInstructionError",
    "no PTX": "there is no PTX for this configuration",
    "block of 1025": "threads must be 1 to 1024, got Plan",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_errors_are_exceptions_and_the_process_goes_on(fault):
    x = matrix(4)
    for _ in range(2):  # a failure is not remembered
        with (
            emulate_gpu("sm_80"),
            pytest.raises(jax.errors.JaxRuntimeError, match=FAULTS[fault]) as caught,
        ):
            jax.jit(broken, static_argnums=1)(x, fault).block_until_ready()
        message = str(caught.value)
        assert "kernel broken" in message
        assert f"Broken(fault={fault!r})" in message
        assert "sm_80" in message
        assert "float32[4, 5] -> float32[4, 5]" in message
    with emulate_gpu():
        np.testing.assert_array_equal(scale_and_add(x, x), 3 * x)


def test_errors_of_two_threads_are_kept_apart():
    def work(fault):
        with emulate_gpu(), pytest.raises(jax.errors.JaxRuntimeError) as caught:
            jax.jit(broken, static_argnums=1)(matrix(4), fault).block_until_ready()
        return fault, str(caught.value)

    faults = ["out of bounds", "unwritten"] * 6
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for fault, message in pool.map(work, faults):
            assert FAULTS[fault] in message


def test_long_message_keeps_both_ends():
    capacity = 300
    room = bytearray(b"\xff" * (capacity + 8))
    address = (_handler.ctypes.c_char * len(room)).from_buffer(room)
    _handler._write(_handler.ctypes.addressof(address), capacity, "HEAD" + "ü" * 1000 + "TAIL")
    text = bytes(room[: room.index(0)]).decode()
    assert text.startswith("HEADü")
    assert text.endswith("üTAIL")
    assert "left out" in text
    assert room.index(0) < capacity
    assert room[capacity:] == b"\xff" * 8


def test_message_of_any_text(monkeypatch):
    """Half a surrogate pair, as in the name of a file that is no UTF-8, cannot be encoded."""

    def fail(*args, **kwargs):
        raise ValueError("no file \udcff.ptx")

    monkeypatch.setattr(_emulation, "load", fail)
    with (
        emulate_gpu(),
        pytest.raises(jax.errors.JaxRuntimeError, match=r"ValueError: no file \\udcff\.ptx"),
    ):
        jax.block_until_ready(jax.jit(scale_and_add)(matrix(2, 11), matrix(2, 11)))


class TestClearCaches:
    """What is compiled goes on; its kernels are looked for again, once."""

    def test_next_call_looks_again(self, loads):
        x = matrix(3, 13)
        with emulate_gpu():
            compiled = jax.jit(scale_and_add).lower(x, x).compile()
        for times in (1, 2, 3):
            for _ in range(2):
                np.testing.assert_array_equal(compiled(x, x), 3 * x)
            assert len(loads) == times
            oxijax.clear_caches()
            assert not _emulation._loaded
            assert not _resolve._resolved
        oxijax.clear_caches()  # nothing is left to clear
        np.testing.assert_array_equal(compiled(x, x), 3 * x)

    def test_texts_are_freed(self):
        def keep():
            return weakref.ref(launch_samples.SCALE_AND_ADD.write(Elementwise(), "sm_90"))

        written = keep()
        assert keep()() is written() is not None
        oxijax.clear_caches()
        gc.collect()
        assert written() is None

    def test_calls_of_other_threads_go_on(self, loads):
        arrays = [matrix(n, 17) for n in range(1, 5)]
        over = threading.Event()

        def work(x):
            with emulate_gpu():
                compiled = jax.jit(scale_and_add).lower(x, x).compile()
            calls = 0
            while not over.is_set() or calls < 20:
                np.testing.assert_array_equal(compiled(x, x), 3 * x)
                calls += 1

        with concurrent.futures.ThreadPoolExecutor(len(arrays)) as pool:
            working = [pool.submit(work, x) for x in arrays]
            for _ in range(100):
                oxijax.clear_caches()
                time.sleep(0.01)
            over.set()
            for future in working:
                future.result()
        assert len(loads) > 2 * len(arrays)

    def test_a_call_that_was_found_before_looks_again(self, monkeypatch, loads):
        """Another thread clears between the handler's look into its table and the launch."""
        x = matrix(3, 19)
        with emulate_gpu():
            compiled = jax.jit(scale_and_add).lower(x, x).compile()
        compiled(x, x).block_until_ready()
        found = []

        class Loaded(dict):
            def get(self, key, default=None):
                if not found:
                    oxijax.clear_caches()
                found.append(super().get(key, default))
                return found[-1]

        monkeypatch.setattr(_emulation, "_loaded", Loaded(_emulation._loaded))
        np.testing.assert_array_equal(compiled(x, x), 3 * x)
        assert [value is None for value in found] == [True, False]
        assert len(loads) == 2

    def test_an_error_of_a_forgotten_call(self, monkeypatch):
        run = _emulation.emulator_launch

        def clear(*args, **kwargs):
            oxijax.clear_caches()
            return run(*args, **kwargs)

        monkeypatch.setattr(_emulation, "emulator_launch", clear)
        with emulate_gpu(), pytest.raises(jax.errors.JaxRuntimeError) as caught:
            broken(matrix(4, 23), "out of bounds").block_until_ready()
        assert "a kernel failed whose call was forgotten meanwhile" in str(caught.value)
        assert FAULTS["out of bounds"] in str(caught.value)


def test_emulate_gpu_checks_its_arguments():
    with (
        pytest.raises(ValueError, match=r"target must be one of sm_75, .*, got 'sm_70'"),
        emulate_gpu("sm_70"),
    ):
        pass
    for target in ([], None, 80, TARGETS["sm_80"]):
        with (
            pytest.raises(TypeError, match=r"target must be a str, got (\[\]|None|80|Target\()"),
            emulate_gpu(target),  # pyright: ignore[reportArgumentType]
        ):
            pass
    with pytest.raises(TypeError, match="schedule must be"), emulate_gpu(schedule="x"):  # pyright: ignore[reportArgumentType]
        pass


@pytest.fixture
def without_handler(monkeypatch, tmp_path):
    """As if oxijax had been installed without a C compiler."""
    monkeypatch.setattr(install, "_PACKAGE", tmp_path / "oxijax")
    monkeypatch.setattr(_handler, "_OWN", tmp_path / "libhandler.so")
    for cached in (_handler.library, install._project):
        cached.cache_clear()
    yield
    for cached in (_handler.library, install._project):
        cached.cache_clear()


@pytest.mark.usefixtures("without_handler")
class TestWithoutHandler:
    def test_cpu_works(self):
        x = matrix(3)
        np.testing.assert_array_equal(scale_and_add(x, x), 3 * x)

    def test_emulated_gpu_says_what_is_missing(self):
        with pytest.raises(_launch.HandlerMissingError, match="apt install gcc"), emulate_gpu():
            pass

    def test_gpu_says_what_is_missing(self):
        x = matrix(3)
        with pytest.raises(_launch.HandlerMissingError, match="install oxijax again"):
            jax.jit(scale_and_add).trace(x, x).lower(lowering_platforms=("cuda",))


def test_handler_of_another_version(monkeypatch):
    class Longer(_handler.CallRecord):
        _fields_ = (("more", _handler.ctypes.c_int64),)

    monkeypatch.setattr(_handler, "CallRecord", Longer)
    _handler.library.cache_clear()
    with pytest.raises(RuntimeError, match="built from another version of oxijax"):
        _handler.library()
    _handler.library.cache_clear()


LAST = np.uint32(10)
MISFITS = {
    "empty grid": (
        {"grid": (0, 1, 1)},
        "grid=(0, 1, 1) leaves result 0 of shape (2, 5) unwritten",
    ),
    "result that is no argument": (
        {"arguments": (BufferAddress(0), BufferAddress(1), BufferAddress(1), LAST)},
        "result 0 is not an argument",
    ),
    "no such buffer": (
        {"arguments": (BufferAddress(0), BufferAddress(3), BufferAddress(2), LAST)},
        "[0, 2, 3] of a call that has 3 buffers",
    ),
    "too many arguments": (
        {"arguments": (BufferAddress(2),) * 97},
        "at most 96 arguments, got 97",
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_launch_that_does_not_fit(monkeypatch, misfit):
    """A kernel's own description of its launch is checked before anything is loaded."""
    changes, message = MISFITS[misfit]
    right = KernelDefinition.launch

    def launch(self, config, target, shapes, *, plan):
        return dataclasses.replace(right(self, config, target, shapes, plan=plan), **changes)

    monkeypatch.setattr(KernelDefinition, "launch", launch)
    config = Elementwise(alpha=9.0)  # which no test has loaded
    with (
        emulate_gpu(),
        pytest.raises(jax.errors.JaxRuntimeError, match=re.escape(message)),
    ):
        scale_and_add(matrix(2), matrix(2), config).block_until_ready()
