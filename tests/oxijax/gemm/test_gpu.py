"""gemm on a GPU: its kernels, in every precision, on small products and on those that are timed.

Run with -m gpu, where each test fails if there is no GPU.
"""

import jax
import jax.numpy as jnp
import pytest
from gpu_suite.gemm_layers import gemm, operands, products
from support.gemm_checks import check
from support.places import PRECISIONS, assert_has_kernels

from oxijax.testing import GEMM_CASES
from ptx.devices import data_sheet

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _by_kernels_on_any_gpu(monkeypatch):
    """What memory bounds on an H200 is multiplied by kernels, on GPUs with slow float64 too."""
    monkeypatch.setattr("oxijax._gemm.cuda.default_data_sheet", lambda: data_sheet("H200"))


BENCHMARK_PRODUCTS = {case.name: case for case in products(tiny=False)}


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", GEMM_CASES)
def test_case(gpu, name, precision, record_property):
    errors = check(GEMM_CASES[name], precision, gpu)
    record_property("errors", {"gemm": {precision: errors}})


@pytest.mark.parametrize("name", BENCHMARK_PRODUCTS)
def test_benchmark_product(gpu, name):
    """The products that are timed, with grids of their size, and no element far off.

    What is not under test is done by a CPU, so that an emulator need not run it.
    """
    case = BENCHMARK_PRODUCTS[name]

    def errors(y, a, b):
        wanted = jnp.matmul(a.astype(jnp.float32), b.astype(jnp.float32), precision="highest")
        error = jnp.max(jnp.abs(y.astype(jnp.float32) - wanted))
        return error / jnp.max(jnp.abs(wanted))

    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):
        a, b = jax.jit(lambda seed: operands(case, "bfloat16", seed))(0)
    with gpu.context():
        there = jax.device_put((a, b), gpu.device)
        compiled = jax.jit(gemm(case)).lower(*there).compile()
        assert assert_has_kernels(compiled.as_text(), ["gemm"]) == 1
        y = jax.device_put(compiled(*there), cpu)
    assert float(jax.jit(errors)(y, a, b)) <= 2**-8  # what rounding may do
