"""The fake of the CUDA driver, and a folder of tuned plans."""

import pytest
from support.fake_cuda import FakeCuda

import oxijax
from oxijax._core.calls.tuned_plans import tuned_plans


@pytest.fixture
def fake(monkeypatch):
    fake = FakeCuda(monkeypatch)
    yield fake
    if not fake.fail:
        fake.assert_balanced()


@pytest.fixture
def tuning_folder(monkeypatch, tmp_path):
    """The folder of tuned plans; nothing is kept before a test, nor after it."""
    monkeypatch.setenv("OXIJAX_TUNING_DIR", str(tmp_path))
    monkeypatch.setattr(tuned_plans, "_plans", {})
    monkeypatch.setattr(tuned_plans, "_read", {})
    yield tmp_path
    tuned_plans._plans.clear()
    oxijax.clear_caches()
