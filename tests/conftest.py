import os

# Before JAX starts: several CPU devices, for the tests that shard.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import pytest


@pytest.fixture
def x64():
    """64-bit JAX, for one test."""
    with jax.enable_x64(True):
        yield
