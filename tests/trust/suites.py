"""Other projects' tests, and what their code has computed, as tests of this project."""

from __future__ import annotations

import functools
import re

import pytest

__all__ = ["SUITES", "case_of", "suite_of"]

_SAMPLING = r"sampling/test_(values|emulated)\.py::test_(recorded|what_pytorch_recorded)\[{}-"
# What the page calls a suite -> which tests are of it.
SUITES = {
    "torchvision: `TestDeformConv`": r"deform_conv/test_torchvision_suite\.py",
    "torchvision: calls of `deform_conv2d`, recorded": (
        r"deform_conv/test_(values|emulated)\.py::test_golden\["
    ),
    "ONNX: node cases of `DeformConv`": r"onnx/test_deform_conv\.py.*<onnx>",
    "ONNX Runtime: cases of `DeformConv`": r"onnx/test_deform_conv\.py.*<onnxruntime>",
    "Deformable DETR: calls of its attention, recorded": _SAMPLING.format("msda"),
    "InternImage: calls of its DCNv3, recorded": _SAMPLING.format("dcnv3"),
    "InternImage: the layers of its test of gradients": (
        r"sampling/test_(values|emulated)\.py::test_channels_of_a_group\["
    ),
    "PyTorch: calls of `grid_sample`, recorded": _SAMPLING.format("grid_sample"),
    "mmcv's, DCNv2's and BiRefNet's layers, recorded with torchvision": (
        r"oxijax/test_deform_conv_modules\.py::test_result"
    ),
    "mmcv: the constants of its own tests": r"test_mmcv",
}


def suite_of(item: pytest.Item) -> str | None:
    """The suite that a test is of, if it is of one."""
    where = item.nodeid
    if "onnx/test_deform_conv.py" in where and "name" in _parameters(item):
        where += f"<{_onnx_suite(_parameters(item)['name'])}>"
    found = [name for name, pattern in SUITES.items() if re.search(pattern, where)]
    assert len(found) <= 1, (item.nodeid, found)
    return found[0] if found else None


def case_of(item: pytest.Item) -> str:
    """What tells a suite's cases apart: several tests may be of one case."""
    parameters = _parameters(item)
    names = [n for n in ("name", "case", "file", "index", "batch", "mask") if n in parameters]
    return " ".join(str(parameters[name]) for name in names) or item.nodeid


def _parameters(item: pytest.Item) -> dict[str, object]:
    return item.callspec.params if hasattr(item, "callspec") else {}  # pyright: ignore


@functools.cache
def _onnx_suite(name: str) -> str:
    from support.onnx_cases import CASES  # when the tests that have it do

    return CASES[name].suite
