"""The benchmark beside other libraries on a CPU: what it compares, and what it refuses."""

import cpu_peers
import numpy as np
import pytest
from cpu_suite.program import Program, channels_first, channels_last

from oxijax import reference


def peer(images, grid, factor=1.0, gradients=True) -> Program:
    """Our reference, as if another library had it, with images as that has them."""

    def run(x, grid):
        return factor * channels_first(np.asarray(reference.grid_sample(channels_last(x), grid)))

    def backward(grad_y, x, grid):
        return run(x, grid)

    operands = channels_first(images), grid
    return Program(run, operands, channels_last, backward if gradients else None, 0.0)


def case_of(**peers) -> cpu_peers.Case:
    case = cpu_peers.warp(2, (5, 7), 3, (4, 6))
    images, grid = case.arrays
    made = {name: peer(images, grid, **options) for name, options in peers.items()}
    return cpu_peers.Case(case.ours, case.arrays, lambda: made)


def test_figures():
    found = cpu_peers.measure(case_of(A={}, B={"gradients": False}), 2)
    assert found.keys() == {"oxijax", "A", "B"}
    assert found["A"].keys() == {"error", "forward", "forward and backward"}
    assert found["B"].keys() == {"error", "forward"}
    assert 0 < found["oxijax"]["error"] < 1e-5
    ratios = found["B"]["forward"]["time_ratio"]
    assert ratios["min"] <= ratios["median"] <= ratios["max"]
    assert found["A"]["forward"]["ms"] == found["A"]["forward"]["spread"]["min"]


def test_other_results_are_refused():
    with pytest.raises(SystemExit, match=r"B differs from float64 by 0\.1"):
        cpu_peers.measure(case_of(A={}, B={"factor": 1.1}), 1)


@pytest.mark.parametrize("levels", [((4, 5), (2, 3))])
@pytest.mark.parametrize("queries", [None, 7])
def test_attention(levels, queries):
    case = cpu_peers.attention(levels, queries)
    assert case.ours(*case.arrays).shape == (1, queries or 26, 8, 32)


def test_compile_times():
    case = next(iter(cpu_peers.BENCHMARK_CASES.values()))
    for each in (case_of(), cpu_peers.convolution(case)):
        found = cpu_peers.compile_times(each)
        assert found.keys() == {"forward", "forward and backward"}
        assert min(found.values()) > 0


def test_layers():
    operators = {name.partition(",")[0] for name in cpu_peers.CASES}
    assert operators == {"deform_conv", "grid_sample", "ms_deform_attn"}
