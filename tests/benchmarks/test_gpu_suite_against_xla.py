"""The GPU suite's comparisons with XLA: the same work on both sides, and what the figures say."""

import jax.numpy as jnp
import numpy as np
import pytest
from gpu_suite import gemm_layers
from gpu_suite.conv_layers import has_few_channels, operands, work, xla_conv
from gpu_suite.jax_jobs import Job, Operands, calls_in, forward, gradients_of, measure
from gpu_suite.layers import Work, set_count
from gpu_suite.recorder import Mode, Recorder
from gpu_suite.report_against_xla import against_xla, pages

import oxijax
from oxijax.testing import CONV_GPU_BENCHMARK_CASES, ConvCase, emulate_gpu

# ResNet-50's layers that have 64 channels or fewer on one side.
SMALL = ("conv1", "conv2-in", "conv2-3x3", "conv2-out", "conv2-back")
CASE = ConvCase("asked", (1, 5, 6, 8), 8, bias=False)


class TestWhatIsAskedOfXla:
    """A gradient alone is one convolution: neither the output nor the other gradient is made."""

    @pytest.fixture
    def conv(self):
        return xla_conv(CASE, CASE.pads)

    def job(self, function, **expected):
        return Job("asked", "name", Operands(operands, CASE, "float32", 2), function, **expected)

    def test_products(self, conv):
        """In a program that makes a call for each of two sets of operands."""
        for function, products in (
            (forward(conv), 2),
            (gradients_of(conv, [0]), 2),
            (gradients_of(conv, [1]), 2),
            (gradients_of(conv, [0, 1]), 4),
            (lambda x, weight, grad_y: (conv(x, weight), x)[1], 0),
        ):
            assert self.job(function).compile().products == products

    def test_another_program_than_is_meant(self, tmp_path, conv):
        recorder = Recorder(tmp_path / "findings.json", 60, Mode.DRY_RUN)
        measure(recorder, [self.job(gradients_of(conv, [0, 1]), kernels=1, products=1)])
        assert [failure["why"] for failure in recorder.content["failures"]] == [
            "its program should have 2 launches, and has 0",
            "its program should have 2 products, and has 4",
        ]


def test_work_of_conv():
    cases = CONV_GPU_BENCHMARK_CASES
    product = 2 * 32 * 28 * 28 * 9 * 128 * 128
    for operation in ("forward", "backward_input", "backward_weight"):
        needed = work(cases["ResNet50-conv3-3x3"], operation, "bfloat16")
        assert needed.flops == product
        assert needed.bytes == 2 * (2 * 32 * 28 * 28 * 128 + 9 * 128 * 128)
    # One pixel in four is read, but all of them have a gradient.
    shortcut = cases["ResNet50-conv3-shortcut"]
    weight, y = 256 * 512, 32 * 28 * 28 * 512
    for operation, x in (("forward", 28 * 28), ("backward_input", 56 * 56)):
        needed = work(shortcut, operation, "float32")
        assert needed.bytes == 4 * (32 * x * 256 + weight + y)
    small = [name for name, case in cases.items() if has_few_channels(case)]
    assert len(cases) == 23
    assert small == [f"ResNet50-{name}" for name in SMALL]


PRODUCTS = {case.name: case for case in gemm_layers.products(tiny=False)}
TINY = {case.name: case for case in gemm_layers.products(tiny=True)}


@pytest.mark.spread(2)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", gemm_layers.DTYPES)
@pytest.mark.parametrize("name", TINY)
def test_products_by_a_kernel_and_by_xla(name, dtype):
    """A kernel and no product of XLA's, and a product and no kernel: with the same results."""
    case = TINY[name]
    given = Operands(gemm_layers.operands, case, dtype, 2)
    a, b = given.compile()(0)
    found = []
    with emulate_gpu("sm_90"):
        for function, launches, products in ((gemm_layers.gemm(case), 2, 0), (jnp.matmul, 0, 2)):
            program = Job(name, "product", given, function).compile()
            assert (program.calls["oxijax_launch"], program.products) == (launches, products)
            y, _ = program.run((a, b), (a, b))
            assert y.dtype == dtype
            found.append(np.asarray(y, np.float64))
    ours, theirs = found
    assert 0.5 < np.sqrt(np.mean(theirs**2)) < 2  # normal values
    tolerance = {"float64": 1e-14, "float32": 1e-3, "bfloat16": 8e-3}[dtype]
    assert np.linalg.norm(ours - theirs) <= tolerance * np.linalg.norm(theirs)


class TestProducts:
    def test_strategies(self):
        """All of them are timed, and are the same with the sizes of a dry run."""
        for dtype in gemm_layers.DTYPES:
            full, tiny = (
                {name: gemm_layers.strategy(case, dtype) for name, case in cases.items()}
                for cases in (PRODUCTS, TINY)
            )
            assert [*full.values()] == 2 * [
                *("cache_persistent", "shallow_k", "cache_persistent"),
                *("warp_parallel", "warp_parallel"),
            ]
            assert len(set(tiny.values())) == 3
            assert tiny.items() <= full.items()

    def test_strategy_of_auto(self):
        """On a GPU whose memory bounds the product, which is so of all of them."""
        for name, case in PRODUCTS.items():
            for dtype in gemm_layers.DTYPES:
                found = oxijax.roofline(case.m, case.n, case.k, dtype=dtype, device="H200")
                assert found.strategy == gemm_layers.strategy(case, dtype), name
            assert gemm_layers.is_narrow(case)

    def test_work(self):
        needed = gemm_layers.work(PRODUCTS["1M-32-256"], "product", "float64")
        assert needed.flops == 2 * 2**20 * 32 * 256
        assert needed.bytes == 8 * (2**20 * 256 + 256 * 32 + 2**20 * 32)

    def test_memory(self):
        """Sets are more than an L2, and with the results of two programs less than 16 GiB."""
        for name, case in PRODUCTS.items():
            for dtype in gemm_layers.DTYPES:
                needed = gemm_layers.work(case, "product", dtype)
                sets = set_count(needed, tiny=False)
                assert sets * needed.bytes >= 160 * 2**20, name
                result = case.m * case.n * jnp.dtype(dtype).itemsize
                assert sets * (needed.bytes + result) <= 16 * 2**30, name

    def test_wanted(self):
        beside_xla, beside_a_copy = (
            {
                (name, dtype)
                for name, case in PRODUCTS.items()
                for dtype in gemm_layers.DTYPES
                if figure in gemm_layers.wanted(case, dtype)
            }
            for figure in ("ratio", "of_floor")
        )
        aligned, odd = [*PRODUCTS][:5], [*PRODUCTS][5:]
        assert beside_a_copy == {(name, "bfloat16") for name in aligned[:3]}
        assert beside_xla == {
            *((name, dtype) for name in ("16K-16K-8", *odd) for dtype in gemm_layers.DTYPES),
            *((name, "float64") for name in aligned),
        }
        assert gemm_layers.wanted(PRODUCTS["16K-16K-8"], "bfloat16") == {
            "ratio": 1.0,
            "of_floor": 0.8,
        }


def test_set_count():
    for size, sets in ((1, 16), (20 * 2**20, 8), (100 * 2**20, 4), (2**30, 4), (2**30 + 1, 2)):
        assert set_count(Work(1, size), tiny=False) == sets
    assert set_count(Work(1, 1), tiny=True) == 2


def test_what_xla_has_made_of_a_product():
    """Libraries' calls and Triton's kernels are named, XLA's plain loops are not."""
    text = """
      %a = custom-call(%x), custom_call_target="__cublas$gemm", backend_config={"kind":"x"}
      %b = fusion(%x), kind=kCustom, backend_config={"f":{"kind":"__triton_gemm","g":{}}}
      %c = fusion(%x), kind=kCustom, backend_config={"f":{"kind":"__triton_gemm","g":{}}}
      %d = fusion(%x), kind=kLoop, metadata={op_name="__d"}, backend_config={"kind":"loop"}
    """
    assert calls_in(text) == {"__cublas$gemm": 1, "__triton_gemm": 2}


class TestAgainstXla:
    """On a device that does 1e14 operations and moves 1e12 bytes in a second: 100 to a byte."""

    def report(self, **info):
        work = {"bytes": 5e7, "flops": 4e9}  # 80 to a byte; 50 us
        large = {"bytes": 1e7, "flops": 2e9}  # 200 to a byte; 10 us

        def layer(work, ours, theirs):
            times = {"forward": {"median_us": ours, **work}, "xla_forward": {"median_us": theirs}}
            return {"bfloat16": times}

        times = {
            "thin": layer(work, 100.0, 50.0),
            "small": layer(large, 20.0, 160.0),
            "large-a": layer(large, 40.0, 10.0),
            "large-b": layer(large, 10.0, 40.0),
            "cut": {"bfloat16": {"forward": {"median_us": 1.0, **work}}},
            "launch floor": layer(work, 5.0, 8.0),
        }
        names = ["thin", "small", "large-a", "large-b", "cut"]
        results = {"compared_layers": names, "small_layers": ["small"], "times": times}
        return {"sections": {"info": {"results": info}, "times-conv": {"results": results}}}

    def measured(self):
        rates = {"bfloat16": {"flops_per_second": 1e14}}
        return self.report(copy={"bytes_per_second": 1e12}, products=rates)

    def test_layers(self):
        found = against_xla(self.measured())["times-conv"]["bfloat16"]["forward"]
        assert found["lacks"] == ["cut"]
        names = ("ratio", "bound", "of_floor", "near_launch_floor")
        assert {name: tuple(one[k] for k in names) for name, one in found["layers"].items()} == {
            "thin": (0.5, "memory", pytest.approx(0.5), False),
            "small": (8.0, "memory", pytest.approx(0.5), False),
            "large-a": (0.25, "products", pytest.approx(0.25), True),
            "large-b": (4.0, "products", pytest.approx(1), False),
        }

    def test_means(self):
        found = against_xla(self.measured())["times-conv"]["bfloat16"]
        for part in (found["forward"], found["all"]):
            assert part["geometric_means"] == pytest.approx({"memory": 2, "products": 1})
            assert part["lowest"] == {"memory": 0.5, "products": 0.25}

    def test_without_the_devices_rates(self):
        """Only what is small for any device has a bound."""
        found = against_xla(self.report())["times-conv"]["bfloat16"]["forward"]
        assert found["geometric_means"] == {"memory": pytest.approx(8)}
        thin = found["layers"]["thin"]
        assert (thin["ratio"], thin["bound"], thin["of_floor"]) == (0.5, None, None)

    def test_wanted_figures(self):
        report = self.measured()
        report["sections"]["times-conv"]["results"]["wanted"] = {
            "thin": {"bfloat16": {"ratio": 1.0, "of_floor": 0.5}},
            "small": {"bfloat16": {"ratio": 8.0}, "float32": {"ratio": 9.0}},
            "large-a": {"bfloat16": {"ratio": 0.3, "of_floor": 0.3}},
        }
        found = against_xla(report)["times-conv"]["bfloat16"]["forward"]
        assert found["missed"] == {"thin": ["ratio"], "large-a": ["ratio", "of_floor"]}
        page = "\n".join(pages(report))
        assert "| bfloat16 | memory-bound or small | 2.00 (0.50) | 2.00 (0.50) |\n" in page
        assert "| thin | 100.0 | 50.0 | 0.50 | 80 | 50% | memory |  | x 1.00, of mem" in page
        thin, large = (line for line in page.splitlines() if "; wanted: " in line)
        assert thin == "- bfloat16, forward: thin has x 0.50; wanted: x 1.00"
        assert large == (
            "- bfloat16, forward: large-a has x 0.25, of memory floor 25%; "
            "wanted: x 0.30, of memory floor 30%"
        )
        # What nobody has measured is not missed.
        del report["sections"]["info"]["results"]["copy"]
        found = against_xla(report)["times-conv"]["bfloat16"]["forward"]
        assert found["missed"] == {"thin": ["ratio"], "large-a": ["ratio"]}

    def test_page(self):
        page = "\n".join(pages(self.measured()))
        assert "| bfloat16 | memory-bound or small | 2.00 (0.50) | 2.00 (0.50) | 0.9 |" in page
        assert "| bfloat16 | large | 1.00 (0.25) | 1.00 (0.25) | 0.5 |" in page
        assert "- bfloat16, forward: without cut" in page
        assert "- bfloat16, forward: near the launch floor: large-a" in page
        assert "| thin | 100.0 | 50.0 | 0.50 | 80 | 50% | memory |  |" in page
        assert "| cut | 1.0 |  |  | 80 |  |  |  |" in page
