"""conv on a GPU: its three kernels, in every precision, on small layers and on ResNet-50's.

Run with -m gpu, where each test fails if there is no GPU.
"""

import pytest
from support.conv_checks import check
from support.places import PRECISIONS

from oxijax.testing import CONV_CASES, CONV_GPU_BENCHMARK_CASES

pytestmark = pytest.mark.gpu


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CONV_CASES)
def test_case(gpu, name, precision, record_property):
    errors = check(CONV_CASES[name], precision, gpu)
    record_property("errors", {"conv": {precision: errors}})


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("precision", ["bfloat16", "tf32"])
@pytest.mark.parametrize("name", CONV_GPU_BENCHMARK_CASES)
def test_benchmark_layer(gpu, name, precision, record_property):
    """The layers that are timed, with grids of their size."""
    errors = check(CONV_GPU_BENCHMARK_CASES[name], precision, gpu)
    record_property("errors", {"conv": {precision: errors}})
