import ctypes
import gc
import os
import resource
import sys

import jax
import pytest
from support.places import Place, emulated
from support.verdicts import Verdicts, add_options

from ptx.emulator.program import load

SHARDING_FLAGS = ["--xla_force_host_platform_device_count=4"]  # for the tests that shard
# A program here runs once or twice: compiling it is what takes time, most of it LLVM's. On a GPU,
# and with later versions of JAX, which have other flags, XLA compiles as it does for users.
CPU_FLAGS = [
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
]

# Resident bytes of a test process: with one for each core a laptop has to hold them all.
MEMORY_LIMIT = 1.5 * 2**30
FORGET_ABOVE = 0.9 * 2**30  # what is compiled is forgotten then, in the middle of a file too
FORGET_AFTER_FILE = 0.7 * 2**30  # below it another file's programs do not hurt


def wants_gpu(config: pytest.Config) -> bool:
    """Whether the run is for a GPU: then its tests run, and fail where there is none."""
    return os.environ.get("OXIJAX_REQUIRE_GPU") == "1" or "gpu" in config.option.markexpr


def pytest_addoption(parser):
    parser.addoption(
        "--sample", metavar="I/N", help="of the tests that are chosen, every Nth from the Ith on"
    )
    add_options(parser)


def pytest_configure(config):
    gc.disable()  # until all tests are there
    # XLA reads its flags when a first device is asked for; what is set already goes first.
    on_cpu = not wants_gpu(config) or "OXIJAX_EMULATE_GPU" in os.environ
    flags = SHARDING_FLAGS + CPU_FLAGS * (on_cpu and jax.__version_info__ < (0, 11))
    os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")])
    # Test processes are as many as cores; numpy's threads would only wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if not wants_gpu(config):
        jax.config.update("jax_platforms", "cpu")
    config.pluginmanager.register(Verdicts(config), "verdicts")


@pytest.hookimpl(trylast=True)  # a sample is one of what other options leave
def pytest_collection_modifyitems(config, items):
    left_out = set() if wants_gpu(config) else {"gpu"}
    if "full" not in config.option.markexpr:
        left_out.add("full")
    kept = [i for i in items if not left_out.intersection(m.name for m in i.iter_markers())]
    if config.option.sample:
        first, step = map(int, config.option.sample.split("/"))
        kept = kept[first::step]
    config.hook.pytest_deselected(items=list(set(items).difference(kept)))
    items[:] = kept


def pytest_collection_finish():
    # What there is now stays to the end, and a parsed kernel is a million objects more: Python
    # would search them for garbage again and again. Tests that leave much behind have it collected.
    gc.freeze()
    gc.set_threshold(100_000, 20, 1000)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Forgets what is compiled where it is much; watches memory."""
    result = yield
    file_ends = nextitem is None or nextitem.path != item.path
    if resident_memory() > (FORGET_AFTER_FILE if file_ends else FORGET_ABOVE):
        jax.clear_caches()
        load.cache_clear()
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)  # else the C library keeps what is free
    if not wants_gpu(item.config) and (peak := peak_memory()) > MEMORY_LIMIT > _reported[0]:
        _reported[0] = peak
        pytest.fail(f"this process has taken {peak / 2**30:.2f} GiB, over {MEMORY_LIMIT / 2**30}")
    return result


_reported = [0]  # the peak of which a test has failed: later ones are not to blame


def resident_memory() -> int:
    """The bytes that this process has resident; 0 where there is no telling."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def peak_memory() -> int:
    """The most bytes that this process has had resident."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["peak_memory"] = peak_memory()


def pytest_testnodedown(node):
    _peaks.append(getattr(node, "workeroutput", {}).get("peak_memory", 0))


_peaks: list[int] = []  # of workers


def pytest_terminal_summary(terminalreporter):
    peaks = ", ".join(f"{peak / 2**30:.2f}" for peak in _peaks or [peak_memory()])
    terminalreporter.line(f"peak memory of each test process: {peaks} GiB")


@pytest.fixture
def x64():
    """64-bit JAX, for one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def gpu() -> Place:
    """The first GPU; the test fails where there is none.

    With OXIJAX_EMULATE_GPU set to a target it is emulated, which is how the suite's own script is
    tested: tests that need no driver run there too.
    """
    target = os.environ.get("OXIJAX_EMULATE_GPU")
    if target:
        return emulated(target)
    device = jax.devices("cuda")[0]
    return Place(device, lambda: jax.default_device(device))
