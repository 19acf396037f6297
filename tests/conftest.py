import gc
import os
import tempfile
import zlib

import jax
import pytest
from support.places import Place, emulated, wants_gpu
from support.verdicts import Verdicts, add_options
from support.xla_flags import cpu_flags

SHARDING_FLAGS = ["--xla_force_host_platform_device_count=4"]  # for the tests that shard

# A name, not an import: what a proof depends on is found by imports, and it is no part of any.
pytest_plugins = ["support.memory"]


def pytest_addoption(parser):
    parser.addoption(
        "--sample",
        metavar="I/N",
        help="of the tests that are chosen, the Ith part of N, by their names",
    )
    add_options(parser)


def pytest_configure(config):
    gc.disable()  # until all tests are there
    # XLA reads its flags when a first device is asked for; what is set already goes first. On a GPU
    # it compiles as it does for users, and with later versions of JAX too.
    on_cpu = not wants_gpu(config) or "OXIJAX_EMULATE_GPU" in os.environ
    flags = SHARDING_FLAGS + cpu_flags(0) * (on_cpu and jax.__version_info__ < (0, 11))
    os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")])
    # Test processes are as many as cores; numpy's threads would only wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Kernels have the plans of their own choice, whatever the user has tuned.
    no_plans = tempfile.TemporaryDirectory()
    os.environ["OXIJAX_TUNING_DIR"] = no_plans.name
    config.add_cleanup(no_plans.cleanup)
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
        part, parts = sample(config.option.sample)
        kept = [i for i in kept if zlib.crc32(i.nodeid.encode()) % parts == part]
    config.hook.pytest_deselected(items=list(set(items).difference(kept)))
    items[:] = kept


def sample(text: str) -> tuple[int, int]:
    """Which part of the tests "I/N" means, and of how many; a test is in the same one anywhere."""
    first, _, parts = text.partition("/")
    if not (first.isdecimal() and parts.isdecimal() and int(first) < int(parts)):
        raise pytest.UsageError(f"--sample: expected I/N with 0 <= I < N, got {text!r}")
    return int(first), int(parts)


def pytest_collection_finish():
    # What there is now stays to the end, and a parsed kernel is a million objects more: Python
    # would search them for garbage again and again. Tests that leave much behind have it collected.
    gc.freeze()
    gc.set_threshold(100_000, 20, 1000)
    gc.enable()


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
