import gc
import os
import shutil
import tempfile

import jax
import pytest
from support.places import Place, emulated, wants_gpu
from support.xla_flags import cpu_flags

SHARDING_FLAGS = ["--xla_force_host_platform_device_count=4"]  # for the tests that shard

# Names, not imports: what a proof depends on is found by imports, and they are no part of any.
pytest_plugins = ["support.memory", "support.tiers"]


def pytest_configure(config):
    gc.disable()  # until all tests are there
    # XLA reads its flags when a first device is asked for; what is set already goes first. On a GPU
    # it compiles as it does for users, and with later versions of JAX too.
    on_cpu = not wants_gpu(config) or "OXIJAX_EMULATE_GPU" in os.environ
    flags = SHARDING_FLAGS + cpu_flags(0) * (on_cpu and jax.__version_info__ < (0, 11))
    os.environ["XLA_FLAGS"] = " ".join([*flags, os.environ.get("XLA_FLAGS", "")])
    # Test processes are as many as cores; numpy's threads would only wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("KERAS_BACKEND", "jax")
    # Kernels have the plans of their own choice, whatever the user has tuned.
    no_plans = tempfile.TemporaryDirectory()
    os.environ["OXIJAX_TUNING_DIR"] = no_plans.name
    config.add_cleanup(no_plans.cleanup)
    if not wants_gpu(config):
        jax.config.update("jax_platforms", "cpu")
        keep_compiled(config)


def keep_compiled(config):
    """Has JAX, here and in processes that tests start, keep what XLA compiles for further runs."""
    if (cache := getattr(config, "cache", None)) is None:  # with -p no:cacheprovider
        return
    kept = cache.mkdir("compiled")
    if not hasattr(config, "workerinput") and len(os.listdir(kept)) > 50_000:  # half a gigabyte
        shutil.rmtree(kept)
        kept.mkdir()
    for name, value in (
        ("jax_compilation_cache_dir", str(kept)),
        ("jax_persistent_cache_min_compile_time_secs", 0),
        ("jax_persistent_cache_min_entry_size_bytes", -1),
    ):
        if name.upper() not in os.environ:
            os.environ[name.upper()] = str(value)
            jax.config.update(name, value)


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
