"""DeformConv nodes: the cases of ONNX and of ONNX Runtime, on the CPU and on emulated kernels."""

import jax
import numpy as np
import onnx
import pytest
from support.helpers import TOLERANCES, assert_close
from support.onnx_cases import CASES, NodeCase
from support.places import assert_has_kernels

import oxijax
from oxijax.testing import emulate_gpu

RIGHT = {name: case for name, case in CASES.items() if case.expected is not None}
WRONG = {name: case for name, case in CASES.items() if case.expected is None}
TARGETS = ("sm_75", "sm_80", "sm_90")
TF32 = 1e-3
# Each is exact, and where it is in float32 also by tensor cores.
EMULATED = [
    (number, name, precision)
    for number, (name, case) in enumerate(RIGHT.items())
    for precision in ("highest", "tensorfloat32")[: 1 + (case.dtype == "float32")]
]

# A node whose inputs all fit.
INPUTS = {
    "X": np.ones((2, 4, 5, 6), np.float32),
    "W": np.ones((6, 2, 3, 2), np.float32),
    "offset": np.zeros((2, 24, 3, 5), np.float32),
    "B": np.zeros(6, np.float32),
    "mask": np.ones((2, 12, 3, 5), np.float32),
}
ATTRIBUTES = {"group": 2, "offset_group": 2, "kernel_shape": [3, 2]}


def node_of(case: NodeCase) -> onnx.NodeProto:
    names = [name if name in case.inputs else "" for name in ("X", "W", "offset", "B", "mask")]
    while not names[-1]:
        names.pop()
    return onnx.helper.make_node("DeformConv", names, ["Y"], **case.attributes)


def test_suites_are_whole():
    suites = [case.suite for case in CASES.values()]
    assert (suites.count("onnx"), suites.count("onnxruntime")) == (4, 24)
    assert {case.wrong for case in WRONG.values()} == {"offset", "mask"}
    assert {case.dtype for case in RIGHT.values()} == {"float16", "bfloat16", "float32", "float64"}


@pytest.mark.spread(6, rest="proof")
@pytest.mark.quick
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", RIGHT)
def test_case(name):
    case = RIGHT[name]
    y = oxijax.onnx.run_node(node_of(case), case.inputs)
    assert y.dtype == case.dtype
    assert_close(y, case.expected, TOLERANCES[case.dtype])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("number", "name", "precision"), EMULATED)
def test_emulated(number, name, precision):
    case = RIGHT[name]
    tolerance = TF32 if precision == "tensorfloat32" else TOLERANCES[case.dtype]
    with emulate_gpu(TARGETS[number % 3], schedule=number), jax.default_matmul_precision(precision):
        run = jax.jit(lambda inputs: oxijax.onnx.deform_conv(**inputs, **case.attributes))
        compiled = run.lower(case.inputs).compile()
        if case.inputs["X"].size:
            assert_has_kernels(compiled.as_text(), ["deform_conv_forward"])
        y = compiled(case.inputs)
    assert y.dtype == case.dtype
    assert_close(y, case.expected, tolerance)


@pytest.mark.parametrize("name", WRONG)
def test_wrong_case(name):
    case = WRONG[name]
    with pytest.raises(ValueError, match=f"^{case.wrong} must have shape"):
        oxijax.onnx.run_node(node_of(case), case.inputs)


def test_attributes_and_their_defaults():
    """Each attribute is the argument that it should be, and those left out are ONNX's defaults."""
    rng = np.random.default_rng(0)
    inputs = {name: rng.standard_normal(v.shape).astype(v.dtype) for name, v in INPUTS.items()}
    inputs["offset"] = rng.standard_normal((2, 24, 2, 9)).astype(np.float32)
    inputs["mask"] = rng.standard_normal((2, 12, 2, 9)).astype(np.float32)
    y = oxijax.onnx.deform_conv(
        **inputs, **ATTRIBUTES, dilations=[2, 1], pads=[1, 3, 2, 1], strides=[2, 1]
    )
    names = ("X", "offset", "W", "mask", "B")
    expected = oxijax.deform_conv(
        *(inputs[name] for name in names),
        strides=(2, 1),
        padding=((1, 2), (3, 1)),
        dilation=(2, 1),
        data_format="NCHW",
    )
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"X": np.ones((4, 5, 6))}, ValueError, "X must have 4 dimensions"),
        ({"X": [1.0]}, TypeError, "X must be an array"),
        ({"W": np.ones((6, 2, 3, 2), np.float16)}, TypeError, "W must have the dtype of X"),
        ({"mask": INPUTS["mask"].astype(np.float16)}, TypeError, "mask must have the dtype of X"),
        ({"W": np.ones((6, 4, 3, 2), np.float32)}, ValueError, "W must have shape"),
        ({"W": np.ones((5, 2, 3, 2), np.float32)}, ValueError, "W must have shape"),
        ({"B": np.zeros(5, np.float32)}, ValueError, "B must have shape"),
        ({"offset": INPUTS["offset"][:, :12]}, ValueError, "offset must have shape"),
        ({"offset": INPUTS["offset"][:, :, :2]}, ValueError, "offset must have shape"),
        ({"mask": INPUTS["mask"][:1]}, ValueError, "mask must have shape"),
        ({"mask": INPUTS["mask"][..., 1:]}, ValueError, "mask must have shape"),
        ({"group": 1}, ValueError, "W must have shape"),
        ({"group": 2.0}, TypeError, "group must be an int"),
        ({"offset_group": 3}, ValueError, "offset_group must divide"),
        ({"offset_group": 0}, ValueError, "offset_group must be positive"),
        ({"kernel_shape": [2, 3]}, ValueError, "kernel_shape must be kH and kW"),
        ({"kernel_shape": 3}, ValueError, "kernel_shape must be"),
        ({"strides": [0, 1]}, ValueError, "strides must be positive"),
        ({"strides": [1]}, TypeError, "strides must be"),
        ({"dilations": [1, 1, 1]}, TypeError, "dilations must be"),
        ({"pads": [1, 1]}, TypeError, "pads must be four ints"),
        ({"pads": [0, -1, 0, 0]}, ValueError, "pads must not be negative"),
        ({"X": INPUTS["X"][:, :, :0]}, ValueError, "X must have no dimension of size 0"),
        ({"pads": "SAME"}, TypeError, "pads must be"),
    ],
)
def test_wrong_arguments(changes, error, message):
    with pytest.raises(error, match=message):
        oxijax.onnx.deform_conv(**{**INPUTS, **ATTRIBUTES, **changes})


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "error", "message"),
    [
        (
            "Conv",
            ["X", "W"],
            {},
            ValueError,
            "node must be one of DeformConv, ",
        ),
        ("DeformConv", ["X", "W", "offset"], {"auto_pad": "SAME_UPPER"}, ValueError, "auto_pad"),
        ("DeformConv", ["X", "W", "elsewhere"], {}, KeyError, "elsewhere"),
        ("DeformConv", ["X", "W"], {}, ValueError, "lacks offset"),
        ("DeformConv", [*INPUTS, "more"], {}, ValueError, "node must have inputs"),
    ],
)
def test_wrong_node(operator, inputs, attributes, error, message):
    node = onnx.helper.make_node(operator, inputs, ["Y"], **attributes)
    with pytest.raises(error, match=message):
        oxijax.onnx.run_node(node, INPUTS)
