"""The model's arithmetic: each bound by itself."""

import dataclasses

import pytest

from ptx.model import DEVICES, Work, modelled

H200 = DEVICES["sm_90"]
# Two blocks for each SM, 17,550 cycles each in every way: 20 us, and 75 % of it reached.
EVEN = Work(
    blocks=264,
    instructions=4 * 17_550,
    l1_bytes=128 * 17_550,
    flops=0.63 * 4096 * 17_550,
    tensor_rate=1.0,
    memory_bytes=0,
)


def test_bounds():
    time = modelled(EVEN, H200)
    assert [time.bounds[name] for name in ("issue", "L1", "tensor")] == pytest.approx([20] * 3)
    assert time.tail == 1
    assert time.low == time.high == pytest.approx(20 / 0.75 + 6)


@pytest.mark.parametrize(
    ("change", "limit", "low", "high"),
    [
        ({"instructions": 8 * 17_550}, "issue", 40 / 0.75 + 6, None),
        ({"l1_bytes": 256 * 17_550}, "L1", 40 / 0.75 + 6, None),
        ({"tensor_rate": 0.5}, "tensor", 40 / 0.75 + 6, None),
        ({"memory_bytes": 4.3e12 * 50e-6}, "memory", 56, None),
        ({"memory_bytes": 4.3e12 * 25e-6}, "issue", 20 / 0.75 + 6, None),  # hidden
        ({"additions": 1.7e12 / 16 * 90e-6}, "atomics", 90 * 1.7 / 3 + 6, 96),
        ({"additions": 1.7e12 / 16 * 40e-6}, "atomics", 20 / 0.75 + 6, 46),
        ({"later_bytes": 4.3e12 * 10e-6}, "issue", 20 / 0.75 + 22, None),
        ({"blocks": 265}, "issue", 30 / 0.75 + 6, None),  # one SM has three
    ],
)
def test_limits(change, limit, low, high):
    time = modelled(dataclasses.replace(EVEN, **change), H200)
    assert time.limit == limit
    assert time.low == pytest.approx(low)
    assert time.high == pytest.approx(low if high is None else high)


def test_an_empty_grid():
    assert modelled(dataclasses.replace(EVEN, blocks=0), H200).low == 6
