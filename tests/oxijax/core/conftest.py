"""The fake of the CUDA driver, a folder of tuned plans, and records of the emulator's work."""

import re
import threading
from typing import NamedTuple

import pytest
from support.fake_cuda import FakeCuda

import oxijax
from oxijax._core.calls.tuned_plans import tuned_plans
from oxijax._core.launch import _emulation


class EmulatorLaunch(NamedTuple):
    """A launch in the emulator: the target of its PTX, the native thread, and the schedule."""

    target: str
    thread: int
    schedule: int | None


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


@pytest.fixture
def launches(monkeypatch) -> list[EmulatorLaunch]:
    """The emulator's launches, in order."""
    seen = []
    launch = _emulation.emulator_launch

    def recorded(text, *args, schedule, **kwargs):
        (target,) = re.findall(r"\.target (\w+)", text)
        seen.append(EmulatorLaunch(target, threading.get_native_id(), schedule))
        return launch(text, *args, schedule=schedule, **kwargs)

    monkeypatch.setattr(_emulation, "emulator_launch", recorded)
    return seen


@pytest.fixture
def loads(monkeypatch) -> list[str]:
    """The PTX of all that is loaded into the emulator, in order."""
    seen = []
    load = _emulation.load

    def recorded(text, *args):
        seen.append(text)
        return load(text, *args)

    monkeypatch.setattr(_emulation, "load", recorded)
    return seen
