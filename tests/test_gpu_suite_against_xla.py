"""The GPU suite's comparisons with XLA: the same work on both sides, and what the figures say."""

import pytest
from gpu_suite.conv_layers import has_few_channels, operands, work, xla_conv
from gpu_suite.jax_jobs import Job, Operands, forward, gradients_of, measure
from gpu_suite.recorder import Recorder
from gpu_suite.report_against_xla import against_xla, pages

from oxijax.testing import CONV_GPU_BENCHMARK_CASES, ConvCase

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
        recorder = Recorder(tmp_path / "findings.json", 60, dry_run=True)
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

    def test_page(self):
        page = "\n".join(pages(self.measured()))
        assert "| bfloat16 | memory-bound or small | 2.00 (0.50) | 2.00 (0.50) | 0.9 |" in page
        assert "| bfloat16 | large | 1.00 (0.25) | 1.00 (0.25) | 0.5 |" in page
        assert "- bfloat16, forward: without cut" in page
        assert "- bfloat16, forward: near the launch floor: large-a" in page
        assert "| thin | 100.0 | 50.0 | 0.50 | 80 | 50% | memory |  |" in page
        assert "| cut | 1.0 |  |  | 80 |  |  |  |" in page
