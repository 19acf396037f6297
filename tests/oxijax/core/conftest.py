"""The fake of the CUDA driver, for the tests of the driver file."""

import pytest
from support.fake_cuda import FakeCuda


@pytest.fixture
def fake(monkeypatch):
    fake = FakeCuda(monkeypatch)
    yield fake
    if not fake.fail:
        fake.assert_balanced()
