"""Launches and the life of processes: what two of them agree on, how one ends, and forks."""

import os
import pathlib
import re
import subprocess
import sys
import time

import pytest
from support.paths import SUPPORT

import oxijax

pytestmark = pytest.mark.quick

PREAMBLE = """
import sys
import jax, jax.numpy as jnp, numpy as np
import oxijax
from oxijax.testing import emulate_gpu
from support.launch_samples import Elementwise, accumulate, broken, scale_and_add

x = jnp.arange(12, dtype=jnp.float32).reshape(3, 4)
y = jnp.ones((3, 4), jnp.float32)
"""


def start(program, *arguments, **environment):
    paths = [str(SUPPORT.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + program, *map(str, arguments)],
        cwd=pathlib.Path(oxijax.__file__).parents[1],  # where the tested packages are
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(program, *arguments, **environment):
    with start(program, *arguments, **environment) as process:
        out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return out


class TestLoweringForCuda:
    """On a machine without a GPU, a driver or cuda-python."""

    PROGRAM = """
if sys.argv[1] == "busy":  # other kernels, shapes and configurations first
    with emulate_gpu("sm_80"):
        scale_and_add(y, x, Elementwise(5.0)), accumulate(x[:2], y[:2])
    jax.jit(scale_and_add)(x, y)
def loss(x, y):
    return (scale_and_add(x, y, Elementwise(0.3, 96)) ** 2).sum() + accumulate(x, y)[0].sum()
print(jax.jit(jax.value_and_grad(loss)).trace(x, y).lower(lowering_platforms=("cuda",)).as_text())
"""

    def test_text_depends_on_the_program_alone(self):
        one = run(self.PROGRAM, "idle", PYTHONHASHSEED="1")
        other = run(self.PROGRAM, "busy", PYTHONHASHSEED="2")
        assert one == other
        assert one.count("@oxijax_launch") == 4
        assert len(set(re.findall(r"key = (\d+)", one))) == 2  # two kernels, one of them thrice
        assert "0x" not in one  # no address


class TestExport:
    EXPORT = """
check = jax.export.DisabledSafetyCheck.custom_call("oxijax_launch")
with emulate_gpu("sm_80") if sys.argv[2] == "emulated" else jax.enable_x64(False):
    exported = jax.export.export(
        jax.jit(scale_and_add),
        platforms=("cpu",) if sys.argv[2] == "emulated" else ("cuda", "cpu"),
        disabled_checks=[check],
    )(x, y)
open(sys.argv[1], "wb").write(exported.serialize())
"""
    CALL = """
exported = jax.export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
launches = []
from oxijax._core.launch import _emulation
original = _emulation.emulator_launch
_emulation.emulator_launch = lambda text, *args, **kw: (
    launches.append(text), original(text, *args, **kw))
out = jax.jit(exported.call)(x, y)
np.testing.assert_array_equal(out, 2 * x + y)
print(exported.platforms, exported.mlir_module().count("@oxijax_launch"), len(launches))
"""

    def test_for_cuda_and_cpu(self, tmp_path):
        run(self.EXPORT, tmp_path / "program", "real")
        printed = run(self.CALL, tmp_path / "program")
        assert printed.strip() == "('cuda', 'cpu') 1 0"

    def test_emulated(self, tmp_path):
        run(self.EXPORT, tmp_path / "program", "emulated")
        assert run(self.CALL, tmp_path / "program").strip() == "('cpu',) 1 1"

    def test_of_another_version(self, tmp_path):
        older = "from oxijax._core.launch import _call\n_call.VERSION = 0\n" + self.EXPORT
        run(older, tmp_path / "program", "emulated")
        with start(self.CALL, tmp_path / "program") as process:
            _, errors = process.communicate(timeout=120)
        assert process.returncode == 1
        assert "exported with version 0" in errors
        assert "export it again" in errors


PENDING = {
    "a kernel that never ends": """
with emulate_gpu():
    big = jnp.ones((300, 300))  # whose product keeps JAX from running all of it in this thread
    out = jax.jit(lambda big: broken(big[:10] + (big @ big)[:10], "loop"))(big)
""",
    "calls that wait for such a kernel": """
with emulate_gpu():
    big = jnp.ones((300, 300))
    out = jax.jit(lambda big: broken(big[:10] + (big @ big)[:10], "loop"))(big)
    for _ in range(20):
        out = scale_and_add(out, out)
""",
    "a collective after a kernel that never ends": """
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = jax.make_mesh((4,), ("b",))
big = jax.device_put(jnp.ones((400, 300)), NamedSharding(mesh, P("b")))
def local(x):  # an error on the last device would leave the others waiting for it
    first = jax.lax.axis_index("b") < 3
    x = x + (x.T @ x)[0, 0]
    out = jax.lax.cond(first, lambda x: x, lambda x: broken(x, "loop"), x)
    return jax.lax.psum(out.sum(), "b")
with emulate_gpu():
    out = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("b"), out_specs=P()))(big)
time.sleep(1)  # so that three devices are in the collective
""",
}


class TestExit:
    """How long a program takes from its last line to its end."""

    START = """
import time
with emulate_gpu():
    jax.jit(scale_and_add)(x, y).block_until_ready()
"""
    END = """
print("ends", flush=True)
"""
    IS_PENDING = """
assert not out.is_ready()
"""

    def seconds_to_end(self, program):
        with start(self.START + program + self.END) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if line == "ends\n":
                    break
            begin = time.monotonic()
            _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors[-3000:]
        return time.monotonic() - begin

    @pytest.mark.spread(1)
    @pytest.mark.parametrize("pending", PENDING)
    def test_calls_that_are_pending(self, pending):
        usual = self.seconds_to_end("")
        assert self.seconds_to_end(PENDING[pending] + self.IS_PENDING) < usual + 1


class TestFork:
    """A child of a process that has launched kernels is told so, at once."""

    PROGRAM = """
import os, signal, warnings
warnings.simplefilter("ignore")  # JAX's own warning about forks
rows = int(sys.argv[1])
x = jnp.ones((rows, 64))
function, plain = jax.jit(scale_and_add), jax.jit(lambda x: x + 1)
with emulate_gpu():
    function(x, x).block_until_ready()
    plain(x).block_until_ready()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that hangs
        try:
            if sys.argv[2] == "compiled":
                function(x, x).block_until_ready()
            elif sys.argv[2] == "eager":
                scale_and_add(x, x).block_until_ready()
            elif sys.argv[2] == "operator":  # which calls jax.numpy first
                oxijax.gemm(*(np.ones((2, 2), np.float32),) * 2)
            else:
                jax.jit(lambda x: scale_and_add(x, x)).lower(x)
        except Exception as error:
            print(type(error).__name__, error, flush=True)
            os._exit(7)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print("status", os.waitstatus_to_exitcode(status))
    np.testing.assert_array_equal(function(x, x), 3 * x)  # the parent goes on
"""

    @pytest.mark.spread(1)
    @pytest.mark.parametrize("rows", [1, 10_000])  # run in the calling thread, and in JAX's pool
    @pytest.mark.parametrize("how", ["compiled", "eager", "operator", "lowered"])
    def test_child_raises(self, rows, how):
        printed = run(self.PROGRAM, rows, how)
        assert "this process was forked after its parent had launched kernels" in printed
        assert "'spawn' or 'forkserver'" in printed
        assert "status 7" in printed

    def test_child_of_a_parent_that_only_lowered(self):
        program = """
import os, warnings
warnings.simplefilter("ignore")
jax.jit(scale_and_add).trace(x, y).lower(lowering_platforms=("cuda",))
child = os.fork()
if child == 0:
    jax.jit(scale_and_add).trace(x, y).lower(lowering_platforms=("cuda",))
    os._exit(7)
_, status = os.waitpid(child, 0)
print("status", os.waitstatus_to_exitcode(status))
"""
        assert run(program).strip() == "status 7"


class TestInterrupt:
    """Ctrl-C, in the thread that makes the call: JAX's error gives way to a KeyboardInterrupt."""

    PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell puts aside
from oxijax._core.launch import _emulation, _handler, _resolve

def interrupt(*args, **kwargs):
    signal.raise_signal(signal.SIGINT)

escaped = []
sys.unraisablehook = lambda unraisable: escaped.append(unraisable.exc_type)
x, y = jax.block_until_ready(jax.device_put((x, y)))
with emulate_gpu():
    compiled = jax.jit(scale_and_add).lower(x, y).compile()
where = sys.argv[1]
if where == "load":
    module, name = _emulation, "load"
elif where == "launch":
    module, name = _emulation, "emulator_launch"
elif where == "before":  # the first line of the function that C calls
    module, name = _emulation, "_launch_callback"
    callback = _handler.LAUNCH_FUNCTION(interrupt)
original = getattr(module, name)
setattr(module, name, interrupt if where != "before" else lambda: callback)
made = []
try:
    try:
        made.append(compiled(x, y).block_until_ready())
    except Exception as error:
        print(type(error).__name__, end=" ")
        for _ in range(10):
            pass
except KeyboardInterrupt:
    print("KeyboardInterrupt", len(made), len(escaped))
setattr(module, name, original)
oxijax.clear_caches()
np.testing.assert_array_equal(compiled(x, y), 2 * x + y)
"""

    @pytest.mark.spread(1)
    @pytest.mark.parametrize(("where", "escaped"), [("load", 0), ("launch", 0), ("before", 1)])
    def test_is_raised_after_the_call(self, where, escaped):
        said = run(self.PROGRAM, where).split()
        assert said[-3:] == ["KeyboardInterrupt", "0", str(escaped)]
