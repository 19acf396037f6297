import os

# Before JAX starts: several CPU devices, for the tests that shard.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
)

import jax
import pytest
from support.places import Place, emulated


def wants_gpu(config: pytest.Config) -> bool:
    """Whether the run is for a GPU: then its tests run, and fail where there is none."""
    return os.environ.get("OXIJAX_REQUIRE_GPU") == "1" or "gpu" in config.option.markexpr


def pytest_configure(config):
    if not wants_gpu(config):
        jax.config.update("jax_platforms", "cpu")


def pytest_collection_modifyitems(config, items):
    left_out = set() if wants_gpu(config) else {"gpu"}
    if "full" not in config.option.markexpr:
        left_out.add("full")
    marked = [item for item in items if left_out.intersection(m.name for m in item.iter_markers())]
    if marked:
        config.hook.pytest_deselected(items=marked)
        kept = set(items).difference(marked)
        items[:] = [item for item in items if item in kept]


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
