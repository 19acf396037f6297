"""Texts of kernels: how long they are kept, and the budget in which they are written."""

import dataclasses
import gc
import types
import weakref

import pytest

from ptx.builder import emitter
from ptx.definition import KernelDefinition, Out, clear_texts
from ptx.isa.dtypes import DType, f32


@dataclasses.dataclass(frozen=True)
class Config:
    additions: int
    float_type: DType = f32


def body(k, config, plan, p):
    """Y[0] = the number of additions."""
    total = k.var(f32, 0.0)
    for _ in range(config.additions):
        total += 1.0
    p.y.store(0, total)


KERNEL = KernelDefinition(
    name="sum_of_ones",
    configs={"ten": Config(10)},
    parameters=(Out("y", "n"),),
    body=body,
    grid=lambda instance: (1, 1, 1),
)


def test_texts_are_kept_until_they_are_cleared():
    def keep():
        return weakref.ref(KERNEL.write_named("ten", "sm_80"))

    text, written = KERNEL.write_named("ten", "sm_80").text, keep()
    assert keep()() is written() is not None
    clear_texts()
    gc.collect()
    assert written() is None
    clear_texts()  # nothing is left to clear
    assert KERNEL.write_named("ten", "sm_80").text == text


def test_budget_of_lines(monkeypatch):
    monkeypatch.setattr(emitter, "MOST_LINES", 1000)
    KERNEL.write(Config(900), "sm_80")
    with pytest.raises(ValueError, match="would have more than 1000 lines") as caught:
        KERNEL.write(Config(1001), "sm_80")
    assert "kernel sum_of_ones would" in str(caught.value)
    assert "its configuration Config(additions=1001, float_type=f32)" in str(caught.value)


@pytest.fixture
def clock(monkeypatch):
    """The time that the builder sees, in seconds: it passes where a test says so."""
    now = [1000.0]
    monkeypatch.setattr(emitter, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_budget_of_seconds(clock):
    """A body that takes ever longer for a line ends when the time is over, not with its lines."""

    def slow(k, config, plan, p):
        for number in range(config.additions):
            clock[0] += number
            p.y.store(0, float(number))

    kernel = dataclasses.replace(KERNEL, body=slow)
    kernel.write(Config(11), "sm_80")  # in 55 seconds
    with pytest.raises(ValueError, match="would take more than 60 seconds to write") as caught:
        kernel.write(Config(1000), "sm_80")
    assert "kernel sum_of_ones would" in str(caught.value)
    assert "its configuration Config(additions=1000, float_type=f32)" in str(caught.value)


def test_time_does_not_count_for_a_kernel_of_ones_own(clock):
    k = emitter.Emitter("own", "sm_80")
    clock[0] += 3600
    k.emit("bar.sync", 0)
    k.limit_time("of a definition")
    clock[0] += 61
    with pytest.raises(ValueError, match="its configuration of a definition asks for too much"):
        k.emit("bar.sync", 0)
