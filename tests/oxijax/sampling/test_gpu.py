"""The sampling operators on a GPU: recorded calls in every dtype, and layers of known networks.

Run with -m gpu, where each test fails if there is no GPU.
"""

import numpy as np
import pytest
from support.sampling_checks import TOLERANCES, check
from support.sampling_data import RECORDED, Recorded, recorded, recorded_names

import oxijax
from ptx.kernels.sampling.catalog import NETWORKS

pytestmark = pytest.mark.gpu

NAMES = [name for family in RECORDED for name in recorded_names(family)[::3]]
DDETR = NETWORKS["DDETR-encoder"].config


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", NAMES)
def test_recorded(gpu, name, dtype):
    check(recorded(name), dtype, gpu)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("queries", [300, DDETR.pixels])
def test_benchmark_layer(gpu, queries, dtype):
    """The layers that are timed, with grids of their size."""
    generator = np.random.default_rng(0)
    shape = 1, queries, 8, 4, 4
    arrays = {
        "value": generator.standard_normal((1, DDETR.pixels, 8, 32)),
        "sampling_locations": generator.uniform(-0.05, 1.05, (*shape, 2)),
        "attention_weights": generator.standard_normal(shape),
    }
    grad_y = generator.standard_normal((1, queries, 8, 32))
    call = Recorded(oxijax.ms_deform_attn, arrays, {"spatial_shapes": DDETR.levels}, grad_y, {})
    check(call, dtype, gpu)
