"""Operators that are exported by jax2onnx, run by ONNX Runtime and by ONNX's own evaluator."""

import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax2onnx.plugins.plugin_system import PLUGIN_REGISTRY
from onnx.reference import ReferenceEvaluator
from support.helpers import TOLERANCES, assert_close
from support.onnx_models import exported, operators, run

import oxijax
from oxijax import _conv, _deform_conv, _gemm, _sampling
from oxijax._core.primitive.kernel_primitive import KernelPrimitive
from oxijax._sampling.packed import packed_width

OPSETS = (19, 22)
OPSETS_OF_GRID_SAMPLE = (16, 20)
TOLERANCE = 1e-5
SIZES = ({"B": 1, "H": 6, "W": 7}, {"B": 3, "H": 9, "W": 5})  # of symbolic dimensions
LEVELS = ((5, 7), (3, 4))  # 47 pixels


@dataclasses.dataclass(frozen=True)
class Operator:
    """A call of an operator.

    Attributes:
      function: of arrays.
      shapes: of the arrays; strings are symbolic.
      nodes: operators that the model has, and how many of each. Those with 0 it does not have.
      unit: arrays that are from 0 to 1, and a bit beyond, by number; the others are normal.
    """

    function: Callable
    shapes: tuple[tuple[int | str, ...], ...]
    nodes: Mapping[str, int]
    unit: tuple[int, ...] = ()

    def arrays(self, sizes: Mapping[str, int]) -> list[np.ndarray]:
        """Drawn arrays for these sizes of symbolic dimensions."""
        rng = np.random.default_rng(0)
        shapes = [[s if isinstance(s, int) else sizes[s] for s in shape] for shape in self.shapes]
        return [
            rng.uniform(-0.2, 1.2, shape).astype(np.float32)
            if number in self.unit
            else rng.standard_normal(shape, np.float32)
            for number, shape in enumerate(shapes)
        ]


def deform_conv(*shapes, nodes=None, **options) -> Operator:
    function = functools.partial(oxijax.deform_conv, **options)
    return Operator(function, shapes, {"DeformConv": 1, **(nodes or {})})


def attention(**options) -> Operator:
    function = functools.partial(oxijax.ms_deform_attn, spatial_shapes=LEVELS, **options)
    each = (3, 2) if "points" in options else (2, 3)
    shape = ("B", 6, 2, 5) if "points" in options else ("B", 6, 2, *each)
    nodes = {"GridSample": 2, "Softmax": int(options.get("normalize", False))}
    return Operator(function, (("B", 47, 2, 4), (*shape, 2), shape), nodes, unit=(1,))


def grid_sample(**options) -> Operator:
    function = functools.partial(oxijax.grid_sample, **options)
    nodes = {"GridSample": 1, "ReduceSum": 0}
    if "coordinates" not in options:
        nodes["Mul"] = 0
    return Operator(function, (("B", 5, 6, 3), ("B", 4, 3, 2)), nodes)


def gemm(*shapes, nodes, **options) -> Operator:
    return Operator(functools.partial(oxijax.gemm, **options), shapes, nodes)


WINDOW = {"kernel_size": (3, 2), "groups": 2, "strides": (2, 1), "dilation": 2, "padding": 1}
ROW = packed_width(2, 6)
CASES = {
    "deform_conv": deform_conv(("B", 6, 7, 4), ("B", 6, 7, 18), (3, 3, 4, 6)),
    "deform_conv-all": deform_conv(
        *(("B", 9, 8, 4), ("B", 5, 6, 24), (3, 2, 2, 6), ("B", 5, 6, 12), (6,)),
        strides=(2, 1),
        padding=((3, 1), (0, 0)),
        dilation=(2, 2),
    ),
    "deform_conv-one-output": deform_conv(
        *(("B", 6, 7, 2), ("B", 6, 7, 2), (1, 1, 2, 1), ("B", 6, 7, 1), (1,))
    ),
    "deform_conv-nchw": deform_conv(
        *(("B", 4, 6, 7), ("B", 18, 4, 5), (6, 4, 3, 3)),
        data_format="NCHW",
        padding="VALID",
        nodes={"Transpose": 0},
    ),
    "deform_conv-any-size": deform_conv(
        *(("B", "H", "W", 4), ("B", "H", "W", 18), (3, 3, 4, 6), ("B", "H", "W", 9)), padding=1
    ),
    "deform_conv-vmap": Operator(
        jax.vmap(oxijax.deform_conv, (0, 0, None)),
        ((2, "B", 5, 6, 4), (2, "B", 5, 6, 18), (3, 3, 4, 6)),
        {"DeformConv": 1},
    ),
    "ms_deform_attn": attention(),
    "ms_deform_attn-normalize": attention(normalize=True),
    "ms_deform_attn-points": attention(points=(3, 2)),
    "ms_deform_attn-nearest": attention(method="nearest"),
    **{
        f"grid_sample-{method}-{padding_mode}-{align_corners}": grid_sample(
            method=method, padding_mode=padding_mode, align_corners=align_corners
        )
        for method, padding_mode, align_corners in itertools.product(
            ("bilinear", "nearest"), ("zeros", "border", "reflection"), (False, True)
        )
    },
    "grid_sample-bicubic": Operator(
        functools.partial(oxijax.grid_sample, method="bicubic"),
        (("B", 5, 6, 3), ("B", 4, 3, 2)),
        {"GridSample": 1},
    ),
    "grid_sample-pixel": grid_sample(coordinates="pixel"),
    "grid_sample-unit": grid_sample(coordinates="unit", padding_mode="reflection"),
    "grid_sample-wrap": Operator(
        functools.partial(oxijax.grid_sample, padding_mode="wrap"),
        (("B", 5, 6, 3), ("B", 4, 3, 2)),
        {"GridSample": 1},
    ),
    "grid_sample-line": Operator(
        functools.partial(oxijax.grid_sample, padding_mode="border"),
        (("B", 6, 3), ("B", 4, 3, 1)),
        {"GridSample": 1},
    ),
    "sample_windows": Operator(
        functools.partial(oxijax.sample_windows, radius=(1, 2), padding_mode="border"),
        (("B", 5, 7, 1), ("B", 4, 2)),
        {"GridSample": 1},
    ),
    "roi_align": Operator(
        functools.partial(oxijax.roi_align, output_size=2, sampling_ratio=2, spatial_scale=2.0),
        (("B", 6, 7, 3), ("B", 4, 4)),
        {"GridSample": 1},
        unit=(1,),
    ),
    "map_coordinates": Operator(
        functools.partial(oxijax.map_coordinates, order=1, mode="mirror"),
        ((5, 6), (2, 4, 3)),
        {"GridSample": 1},
    ),
    "dcnv3": Operator(
        functools.partial(oxijax.dcnv3, offset_scale=1.5, **WINDOW),
        (("B", 7, 6, 4), ("B", 3, 6, 24), ("B", 3, 6, 12)),
        {"GridSample": 1, "Softmax": 0},
    ),
    "dcnv3-remove-center": Operator(
        functools.partial(oxijax.dcnv3, kernel_size=3, groups=2, remove_center=True, softmax=True),
        (("B", 5, 6, 4), ("B", 5, 6, 32), ("B", 5, 6, 16)),
        {"GridSample": 1, "Softmax": 1},
    ),
    "dcnv4": Operator(
        functools.partial(oxijax.dcnv4, **WINDOW),
        (("B", 7, 6, 4), ("B", 3, 6, ROW)),
        {"GridSample": 1, "Softmax": 0},
    ),
    "conv": Operator(
        functools.partial(oxijax.conv, strides=(2, 1), padding=((1, 0), (2, 1)), dilation=(1, 2)),
        (("B", 6, 7, 4), (3, 2, 2, 6), (6,)),
        {"Conv": 1},
    ),
    "conv-nchw": Operator(
        functools.partial(oxijax.conv, data_format="NCHW", padding="SAME_LOWER", strides=2),
        (("B", 4, 6, 7), (6, 4, 3, 3)),
        {"Conv": 1, "Transpose": 0},
    ),
    "conv-one-dimension": Operator(
        functools.partial(oxijax.conv, data_format="NWC"), (("B", 7, 4), (3, 1, 8)), {"Conv": 1}
    ),
    "gemm": gemm(("B", 5), (5, 6), nodes={"Gemm": 1, "MatMul": 0}),
    "gemm-all": gemm(
        *((5, "B"), (6, 5), ("B", 6)),
        alpha=0.5,
        beta=-2,
        transpose_a=True,
        transpose_b=True,
        nodes={"Gemm": 1, "MatMul": 0},
    ),
    "gemm-more-rows": gemm(("B", 3, 5), (5, 6), nodes={"Gemm": 1, "MatMul": 0}),
    "gemm-batch": gemm(
        *(("B", 3, 5), ("B", 6, 5), ("B", 3, 6)),
        transpose_b=True,
        alpha=0.5,
        beta=2,
        nodes={"MatMul": 1, "Gemm": 0},
    ),
    "gemm-computed-factors": Operator(
        lambda a, b, c, alpha, beta: oxijax.gemm(a, b, c, alpha=alpha, beta=beta),
        (("B", 5), (5, 6), ("B", 6), (), ()),
        {"MatMul": 1, "Gemm": 0},
    ),
}


def specs(shapes: Sequence[tuple], dtypes: Sequence[str]) -> list[jax.ShapeDtypeStruct]:
    pairs = zip(shapes, dtypes, strict=True)
    return [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape, dtype in pairs]


def check(name: str, opset: int) -> None:
    case = CASES[name]
    model = exported(case.function, case.shapes, opset=opset)
    found = operators(model)
    assert {operator: found[operator] for operator in case.nodes} == case.nodes
    for sizes in SIZES:
        arrays = case.arrays(sizes)
        expected = np.asarray(case.function(*arrays))
        y = run(model, *arrays)
        assert y.dtype == np.float32
        assert_close(y, expected, TOLERANCE)


VOLUMES = {
    "grid_sample": Operator(
        functools.partial(oxijax.grid_sample, coordinates="pixel"),
        (("B", 4, 5, 6, 2), ("B", 7, 3)),
        {"GridSample": 1},
    ),
    "deform_conv": Operator(
        functools.partial(oxijax.deform_conv, data_format="NDHWC"),
        (("B", 3, 4, 5, 2), ("B", 3, 4, 5, 81), (3, 3, 3, 2, 4)),
        {"Loop": 1},
    ),
}


@pytest.mark.parametrize("name", VOLUMES)
def test_volumes(name):
    """From opset 20 on, which is said where a model has an earlier one."""
    case = VOLUMES[name]
    model = exported(case.function, case.shapes, opset=20)
    found = operators(model)
    assert {operator: found[operator] for operator in case.nodes} == case.nodes
    arrays = case.arrays({"B": 2})
    assert_close(run(model, *arrays), case.function(*arrays), TOLERANCE)
    with pytest.raises(ValueError, match="opset must be at least 20 for volumes, got 19"):
        exported(case.function, case.shapes, opset=19)


@pytest.mark.spread(4)
@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("name", CASES)
def test_operator(name, opset):
    check(name, opset)


@pytest.mark.parametrize("opset", OPSETS_OF_GRID_SAMPLE)
@pytest.mark.parametrize("name", ["grid_sample-bilinear-zeros-False", "dcnv3-remove-center"])
def test_opsets_of_grid_sample(name, opset):
    """Its modes were renamed in opset 20."""
    check(name, opset)


@pytest.mark.spread(2)
@pytest.mark.quick
@pytest.mark.parametrize(
    "name", ["deform_conv-all", "ms_deform_attn-nearest", "dcnv3", "conv", "gemm-all"]
)
def test_operator_everywhere(name):
    """On every Python and JAX, in the opset that jax2onnx takes if it is told none."""
    check(name, 23)


def test_attributes():
    model = exported(CASES["deform_conv-all"].function, CASES["deform_conv-all"].shapes)
    (node,) = (node for node in model.graph.node if node.op_type == "DeformConv")
    attributes = {a.name: list(a.ints) or a.i for a in node.attribute}
    assert attributes == {
        "dilations": [2, 2],
        "group": 2,
        "kernel_shape": [3, 2],
        "offset_group": 2,
        "pads": [3, 0, 1, 0],
        "strides": [2, 1],
    }


def test_a_node_comes_back():
    """What was exported is what `run_node` runs."""
    case = CASES["deform_conv-nchw"]
    model = exported(case.function, case.shapes)
    (node,) = model.graph.node
    arrays = case.arrays({"B": 2})
    named = dict(zip([value.name for value in model.graph.input], arrays, strict=True))
    np.testing.assert_array_equal(oxijax.onnx.run_node(node, named), case.function(*arrays))


@pytest.mark.parametrize(("dtype", "opset"), [("float16", 19), ("float16", 22), ("bfloat16", 22)])
def test_half_precision(dtype, opset):
    """Operands whose every product and sum is exact, whatever the evaluator rounds."""
    case = deform_conv(
        *(("B", 4, 5, 2), ("B", 3, 4, 8), (2, 2, 2, 1), ("B", 3, 4, 4), (1,)), padding="VALID"
    )
    model = exported(case.function, specs(case.shapes, [dtype] * 5), opset=opset)
    x, offset, *rest = [np.sign(np.round(array)) for array in case.arrays({"B": 2})]
    arrays = [array.astype(dtype) for array in (x, offset / 2, *rest)]
    names = [value.name for value in model.graph.input]
    feed = dict(zip(names, arrays, strict=True))
    (y,) = map(np.asarray, ReferenceEvaluator(model).run(None, feed))
    expected = case.function(*arrays)
    assert y.dtype == expected.dtype == dtype
    assert np.any(np.asarray(expected, np.float32) % 1)
    np.testing.assert_array_equal(y.astype(np.float32), np.asarray(expected, np.float32))


@pytest.mark.parametrize(
    ("name", "argument"),
    [
        ("deform_conv-all", 1),
        ("ms_deform_attn", 1),
        ("ms_deform_attn-nearest", 1),
        ("grid_sample-bilinear-zeros-False", 1),
        ("grid_sample-nearest-zeros-True", 1),
        ("grid_sample-bilinear-border-False", 1),
        ("dcnv3", 1),
    ],
)
def test_far_positions(name, argument):
    """Infinite and huge positions are outside, as in oxijax."""
    case = CASES[name]
    arrays = case.arrays(SIZES[0])
    far = [np.inf, -np.inf, 1e30, -1e30, 2.0**33, -5e9, 100.5, -7.5]
    arrays[argument].reshape(-1)[::3] = np.resize(far, arrays[argument].size)[::3]
    expected = np.asarray(case.function(*arrays))
    assert np.isfinite(expected).all()
    assert_close(run(exported(case.function, case.shapes), *arrays), expected, TOLERANCE)


def test_offsets_of_another_dtype():
    """DeformConv has one dtype: the widest one, so that no position is rounded."""
    case = CASES["deform_conv"]
    dtypes = "float16", "float32", "float16"
    model = exported(case.function, specs(case.shapes, dtypes))
    arrays = [a.astype(d) for a, d in zip(case.arrays(SIZES[1]), dtypes, strict=True)]
    y = run(model, *arrays)
    assert y.dtype == np.float16
    assert_close(y, case.function(*arrays), TOLERANCES["float16"])


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ["deform_conv-all", "grid_sample-bilinear-border-False", "gemm"])
def test_double_precision(name):
    case = CASES[name]
    model = exported(case.function, case.shapes, enable_double_precision=True)
    arrays = [array.astype(np.float64) for array in case.arrays(SIZES[1])]
    y = run(model, *arrays)
    assert y.dtype == np.float64
    assert_close(y, case.function(*arrays), TOLERANCES["float64"])


@pytest.mark.parametrize(
    ("name", "dtype", "opset", "message"),
    [
        ("deform_conv", "float32", 18, "at least 19 for DeformConv of FLOAT, got 18"),
        ("deform_conv", "bfloat16", 21, "at least 22 for DeformConv of BFLOAT16, got 21"),
        ("conv", "bfloat16", 21, "at least 22 for Conv of BFLOAT16, got 21"),
        ("dcnv3", "float32", 15, "at least 16 for GridSample of FLOAT, got 15"),
    ],
)
def test_opset_is_too_low(name, dtype, opset, message):
    case = CASES[name]
    inputs = specs(case.shapes, [dtype] * len(case.shapes))
    with pytest.raises(ValueError, match=f"^opset must be {message}"):
        exported(case.function, inputs, opset=opset)


@pytest.mark.parametrize(
    ("name", "argument", "kernel"),
    [
        ("deform_conv", 0, "deform_conv_backward_input"),
        ("deform_conv", 1, "deform_conv_backward_offset"),
        ("deform_conv", 2, "deform_conv_backward_weight"),
        ("ms_deform_attn", 0, "sampling_backward_value"),
        ("ms_deform_attn", 1, "sampling_backward_points"),
        ("conv", 0, "conv_backward_input"),
        ("conv", 1, "conv_backward_weight"),
    ],
)
def test_gradients_are_refused(name, argument, kernel):
    case = CASES[name]
    shapes = [tuple(2 if size == "B" else size for size in shape) for shape in case.shapes]

    def gradient(*arrays):
        def function(array):
            return case.function(*arrays[:argument], array, *arrays[argument + 1 :])

        y, pull_back = jax.vjp(function, arrays[argument])
        return pull_back(y)

    with (
        jax.disable_jit(),  # so that no other primitive comes first
        pytest.raises(NotImplementedError, match=f"^{kernel} has no operator in ONNX"),
    ):
        exported(gradient, shapes)


def test_every_primitive_is_registered():
    """Those that have no operator are refused by name, not as unknown."""
    primitives = {
        value.name
        for family in (_conv, _deform_conv, _gemm, _sampling)
        for value in vars(family).values()
        if isinstance(value, KernelPrimitive)
    }
    assert len(primitives) == 12
    oxijax.onnx.register()
    assert primitives | {"gemm"} <= PLUGIN_REGISTRY.keys()


def test_register_without_jax2onnx(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "jax2onnx"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    monkeypatch.delitem(sys.modules, "oxijax.onnx._plugins", raising=False)
    monkeypatch.delattr(oxijax.onnx, "_plugins", raising=False)
    with pytest.raises(ImportError, match=r'pip install "jax2onnx>=\S+" "onnx>='):
        oxijax.onnx.register()
