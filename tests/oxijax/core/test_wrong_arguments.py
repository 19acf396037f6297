"""Drawn calls with wrong arguments: each raises, and names the argument.

The tables in `test_arguments.py` of each family have the messages. Here is every argument of every
public function with values of every kind, alone and in pairs, however the function is called.
"""

import contextlib
import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax import lax
from support import wrong_arguments as wrong
from support.conv_arguments import spec
from support.layer_arguments import LAYERS
from support.sampling_layer_arguments import CONVERSIONS, SAMPLING_LAYERS
from support.wrong_arguments import Argument, Entry, operands

import oxijax
import oxijax.testing
from oxijax._core.calls.tuned_plans import TunedPlans
from oxijax.testing import emulate_gpu
from ptx import TARGETS

MODES = ("eval_shape", "jit", "eager")
SAMPLED = (jnp.ones((1, 4, 5, 2)), jnp.ones((1, 3, 2)))


def is_floats(value: Any) -> bool:
    """Whether it is an array of floats that JAX can hold, and not empty."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return False
    return value.dtype.isnative and value.size > 0


CONV = {
    "x": wrong.array(2, 8, 7, 6),
    "weight": wrong.array(3, 3, 3, 4),
    "bias": wrong.array(4, optional=True),
    "strides": wrong.pair(1),
    "padding": wrong.pads("SAME", "same", "SAME_LOWER", 1, (1, 1), np.int64(1), [[1, 1], (1, 1)]),
    "dilation": wrong.pair(1),
    "data_format": wrong.choice("NHWC", wrong=["nhwc", "NWHC"]),
    "precision": wrong.precision(),
    "implementation": wrong.implementation(),
}
DEFORM_CONV = CONV | {
    "offset": wrong.array(2, 8, 7, 36, alone=True),
    "mask": wrong.array(2, 8, 7, 18, alone=True, optional=True),
}
GEMM = {
    "a": wrong.array(5, 7, more=True),
    "b": wrong.array(7, 4, more=True),
    "c": wrong.array(5, 4, more=True),
    "alpha": wrong.factor(2, 1.0),
    "beta": wrong.factor(2, 1.0),
    "transpose_a": wrong.boolean(False),
    "transpose_b": wrong.boolean(False),
    "strategy": wrong.choice("auto", "shallow_k", wrong=["split_k"]),
    "precision": wrong.precision(),
    "implementation": wrong.implementation(),
}


MS_DEFORM_ATTN = {
    "value": wrong.array(2, 47, 2, 4, alone=True),
    "sampling_locations": wrong.array(2, 6, 2, 2, 3, 2, alone=True),
    "attention_weights": wrong.array(2, 6, 2, 2, 3, alone=True),
    "spatial_shapes": wrong.pairs((5, 7), (3, 4)),
    "points": wrong.counts(2),
    "method": wrong.choice("bilinear", "nearest", wrong=["cubic"]),
    "normalize": wrong.boolean(False),
    "precision": wrong.precision(),
    "implementation": wrong.implementation(),
}
DCNV3 = {
    "x": wrong.array(2, 5, 7, 6, alone=True),
    "offset": wrong.array(2, 5, 7, 36, alone=True),
    "mask": wrong.array(2, 5, 7, 18, alone=True),
    "kernel_size": wrong.pair(3),
    "strides": wrong.pair(1),
    "padding": CONV["padding"],
    "dilation": wrong.pair(1),
    "groups": wrong.count(2, 4, 5),
    "offset_scale": wrong.number(1.0, 2),
    "remove_center": wrong.boolean(False),
    "softmax": wrong.boolean(False),
    "implementation": wrong.implementation(),
}
DCNV4 = {name: DCNV3[name] for name in DCNV3 if name not in ("offset", "mask")} | {
    "offset_mask": wrong.array(2, 5, 7, 56, alone=True),
}
GRID_SAMPLE = {
    "x": wrong.array(2, 5, 7, 3, alone=True),
    "grid": wrong.array(2, 4, 3, 2, alone=True, more=True),
    "method": wrong.choice("bilinear", "nearest", "bicubic", wrong=["cubic"]),
    "padding_mode": wrong.choice("zeros", "border", "reflection", "wrap", wrong=["reflect"]),
    "align_corners": wrong.boolean(False),
    "coordinates": wrong.choice("normalized", "unit", "pixel", wrong=["pixels"]),
    "data_format": wrong.instance(
        *("NHWC", None), wrong=["NCWH", "nhwc", "NDHWC"], legal=lambda v: v is None
    ),
    "implementation": wrong.implementation(),
}
SPLAT = {name: GRID_SAMPLE[name] for name in GRID_SAMPLE if name != "x"} | {
    "values": wrong.array(2, 4, 3, 5, alone=True),
    "grid": wrong.array(2, 4, 3, 2, alone=True),
    "size": wrong.instance(
        *((5, 7), [5, 7], np.array([5, 7])),
        wrong=[5, (5,), (5, 7, 3), (5, 0), (5, True), (5.0, 7), (5, 2**31), "57", {5: 7}],
    ),
    "return_weights": wrong.boolean(False),
}
SAMPLE_WINDOWS = {
    "x": GRID_SAMPLE["x"],
    "centers": GRID_SAMPLE["grid"],
    "radius": wrong.instance(
        *(1, 0, (1, 0), [0, np.int64(1)], np.array([1, 1])),
        wrong=[None, -1, (1,), (1, 1, 1), (1, -1), (1, True), (1.0, 1), 1.0, "11", 2**31],
    ),
    "padding_mode": wrong.choice("zeros", "border", "reflection", wrong=["wrap"]),
    "data_format": GRID_SAMPLE["data_format"],
    "implementation": GRID_SAMPLE["implementation"],
}
MAP_COORDINATES = {
    "input": wrong.instance(
        *(spec(5, 7), spec(5, 7, dtype=jnp.int32), np.ones((5, 7), np.float16)),
        wrong=[spec(5, 7, 3), spec(5), spec(5, 7, dtype=bool), spec(5, 7, dtype=jnp.complex64)],
    ),
    "coordinates": wrong.instance(
        *(spec(2, 4, 3), spec(2, 4, 3, dtype=jnp.int32), [np.ones(3, np.float16)] * 2),
        wrong=[
            spec(3, 4),
            spec(2, 4, dtype=bool),
            [np.ones(3)],
            [1.0, 2.0],
            [np.ones(3, bool)] * 2,
        ],
    ),
    "order": wrong.instance(1, 0, np.int64(1), wrong=[2, 3, 1.0, "0"], legal=wrong.is_zero),
    "mode": wrong.choice("constant", "nearest", "wrap", "mirror", "reflect", wrong=["grid-wrap"]),
    "cval": wrong.factor(0.0, 2),
    "channel_axis": wrong.instance(
        *(None,), wrong=[2, "0", 0.0], legal=lambda v: v is None or wrong.is_zero(v)
    ),
    "implementation": wrong.implementation(),
}
ROI_ALIGN = {
    "x": wrong.array(2, 5, 7, 3, alone=True),
    "boxes": wrong.array(2, 6, 4, alone=True),
    "output_size": wrong.pair(2),
    "spatial_scale": wrong.number(1.0, 0.5),
    "sampling_ratio": wrong.instance(2, np.int64(2), wrong=[2.0, "2"], legal=wrong.is_zero),
    "max_sampling_ratio": wrong.instance(
        *(None, 3), wrong=[3.0, "3", [3]], legal=lambda v: v is None
    ),
    "aligned": wrong.boolean(False),
    "levels": wrong.instance(*(None,), wrong=[np.zeros((2, 6), int)], legal=lambda v: v is None),
    "implementation": wrong.implementation(),
}
ROI_LEVELS = {
    "boxes": wrong.array(2, 6, 4, alone=True, more=True),
    "count": wrong.count(4),
    "canonical_size": wrong.instance(
        *(224.0, np.float32(2), np.int64(3)),
        wrong=[0, -1.0, "1", spec()],
        legal=lambda v: (isinstance(v, float | np.floating) and np.isfinite(v)) or wrong.is_big(v),
    ),
    "canonical_level": wrong.instance(2, 0, -3, wrong=[2.0, "2"], legal=wrong.is_zero),
}

ONNX_DEFORM_CONV = {
    "X": wrong.array(2, 6, 8, 7),
    "W": wrong.array(4, 3, 3, 3),
    "offset": wrong.array(2, 36, 8, 7),
    "B": wrong.array(4, optional=True),
    "mask": wrong.array(2, 18, 8, 7, optional=True),
    "dilations": wrong.pair(1, optional=True),
    "group": wrong.count(2, 4),
    "kernel_shape": wrong.pair(3, optional=True),
    "offset_group": wrong.count(2, 3, 4),
    "pads": wrong.instance(
        *([1, 1, 1, 1], np.ones(4, int)),
        wrong=[(1, 1), [(1, 1), (1, 1)], [1.0] * 4, [True] * 4, [-1, 1, 1, 1], [1, 2**31, 1, 1]],
        legal=lambda v: v is None,
    ),
    "strides": wrong.pair(1, optional=True),
}


def is_minus_one(value: Any) -> bool:
    """`padding` that takes a pixel away at each side."""
    return isinstance(value, int | np.integer) and value == -1


_INTEGERS = spec(2, 6, 8, 7, dtype=jnp.int32)
GENERAL = {
    "lhs": dataclasses.replace(
        wrong.array(2, 6, 8, 7),
        wrong=[*wrong.JUNK, np.ones((2, 6, 8, 7), ">f4"), np.ones((2, 6, 8, 7), object)],
        uncovered=[_INTEGERS, spec(2, 6)],
    ),
    "rhs": dataclasses.replace(wrong.array(4, 3, 3, 3), wrong=wrong.JUNK),
    "window_strides": wrong.pair(1),
    "padding": wrong.pads("SAME", [(1, 1), (1, 1)], legal=is_minus_one),
    "lhs_dilation": wrong.pair(1, optional=True),
    "rhs_dilation": wrong.pair(1, optional=True),
    "dimension_numbers": wrong.instance(
        *(None, ("NCHW", "OIHW", "NCHW"), ["NCHW", "OIHW", "NCHW"]),
        lax.ConvDimensionNumbers((0, 1, 2, 3), (0, 1, 2, 3), (0, 1, 2, 3)),
        wrong=[
            *(("NCHW", "OIHW"), ("NCHW", "OIHW", "NCHX"), ("NCHW", 1, 2), ("NCHW", "OIH", "NCHW")),
            *(("NCHW", "OIHW", None), ("NCCC", "OIHW", "NCHW"), "NCHW", ("", "", "")),
            lax.ConvDimensionNumbers((0, 1, 2, 3), (0, 1, 2, 2), (0, 1, 2, 3)),
            lax.ConvDimensionNumbers((0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3)),
            lax.ConvDimensionNumbers("NCHW", 1, None),  # pyright: ignore[reportArgumentType]
            lax.ConvDimensionNumbers((0, 1, 2, None), (0, 1, 2, 3), (0, 1, 2, 3)),  # pyright: ignore[reportArgumentType]
        ],
        legal=lambda v: v is None,
    ),
    "feature_group_count": wrong.count(2, 3, 4),
    "batch_group_count": dataclasses.replace(wrong.count(1), uncovered=[2]),
    "precision": wrong.precision(lax_only=[("highest", "default"), ("high", "highest")]),
    "implementation": wrong.implementation(),
    "preferred_element_type": dataclasses.replace(
        wrong.dtype(optional=True),
        wrong=[w for w in wrong.JUNK if not any(w is other for other in (None, int, str))],
        uncovered=[jnp.float16, "int32", jnp.complex64],
    ),
    "out_sharding": wrong.out_sharding(),
}
ROOFLINE = {
    **{name: wrong.count(8) for name in ("m", "n", "k", "batch")},
    "dtype": wrong.dtype(),
    "device": wrong.instance(
        "H200", "sm_90", wrong=["V100", 80, ["H200"]], legal=lambda v: v is None
    ),
    "beta": wrong.factor(0, 0.5),
    "precision": wrong.precision(),
}


def deterministic(value: Any) -> None:
    before = oxijax.config.deterministic
    try:
        oxijax.config.deterministic = value
    finally:
        oxijax.config.deterministic = before


def enter(context: Callable[..., Any]) -> Callable[..., None]:
    def call(**arguments: Any) -> None:
        with context(**arguments):
            pass

    return call


def tune(function: Any, args: tuple[Any, ...]) -> None:
    """Up to where a GPU is asked for, which is after arguments."""
    with emulate_gpu(), contextlib.suppress(RuntimeError):
        oxijax.tune(function, *args)


NO_PLANS = TunedPlans().dumps()
DETERMINISTIC = wrong.instance(
    *(True, False, None), legal=lambda v: v is None or isinstance(v, bool), wrong=[1, "yes"]
)


def functions(name: str, arguments: Mapping[str, Argument], *given: str):
    """A function and its twin, called with the arguments `given`."""
    right = operands(arguments, *given)
    yield name, Entry(getattr(oxijax, name), right, arguments)
    yield f"reference.{name}", Entry(getattr(oxijax.reference, name), right, arguments)


SAMPLES = "value", "sampling_locations", "attention_weights", "spatial_shapes"
TABLE: dict[str, Entry] = dict(
    [
        *functions("conv", CONV, "x", "weight", "bias"),
        *functions("deform_conv", DEFORM_CONV, "x", "offset", "weight", "mask", "bias"),
        *functions("ms_deform_attn", MS_DEFORM_ATTN, *SAMPLES),
        *functions("dcnv3", DCNV3, "x", "offset", "mask", "kernel_size", "groups"),
        *functions("dcnv4", DCNV4, "x", "offset_mask", "kernel_size", "groups"),
        *functions("grid_sample", GRID_SAMPLE, "x", "grid"),
        *functions("sample_windows", SAMPLE_WINDOWS, "x", "centers", "radius"),
        *functions("splat", SPLAT, "values", "grid", "size"),
        *functions("map_coordinates", MAP_COORDINATES, "input", "coordinates", "order"),
        *functions("roi_align", ROI_ALIGN, "x", "boxes", "output_size", "sampling_ratio"),
        *functions("gemm", GEMM, "a", "b", "c", "alpha", "beta"),
    ],
    conv_general_dilated=Entry(
        oxijax.conv_general_dilated,
        operands(GENERAL, "lhs", "rhs", "window_strides", "padding", "feature_group_count"),
        GENERAL,
    ),
    **{
        "onnx.deform_conv": Entry(
            oxijax.onnx.deform_conv,
            operands(
                ONNX_DEFORM_CONV,
                *("X", "W", "offset", "B", "mask", "group", "kernel_shape", "offset_group", "pads"),
            ),
            ONNX_DEFORM_CONV,
        )
    },
    roi_levels=Entry(oxijax.roi_levels, operands(ROI_LEVELS, "boxes", "count"), ROI_LEVELS),
    roofline=Entry(
        oxijax.roofline,
        operands(ROOFLINE, "m", "n", "k", "dtype", "device"),
        ROOFLINE,
        traced=False,
    ),
    sampling_locations=Entry(
        lambda operator, args, kwargs: oxijax.sampling_locations(operator, *args, **kwargs),
        {"operator": oxijax.grid_sample, "args": SAMPLED, "kwargs": {}},
        {
            "operator": Argument([oxijax.grid_sample], [*wrong.JUNK, oxijax.conv]),
            "args": Argument([SAMPLED], []),
            "kwargs": Argument([{}, {"method": "nearest"}], []),
        },
        oxijax.sampling_locations,
    ),
    offset_statistics=Entry(
        oxijax.offset_statistics,
        {"offset": spec(2, 3)},
        {
            "offset": Argument(
                [spec(2, 3), spec(4, dtype=jnp.bfloat16), np.ones((1, 2), np.float32)],
                [v for v in wrong.JUNK if not is_floats(v)],
            )
        },
    ),
    draw_samples=Entry(
        oxijax.draw_samples,
        {"image": np.ones((4, 5)), "locations": np.ones((3, 2))},
        {
            "image": Argument(
                [None, np.ones((4, 5), np.uint8), np.ones((4, 5, 3), np.float32)],
                [v for v in wrong.JUNK if v is not None] + [np.ones((2, 2, 4)), np.ones(3)],
            ),
            "locations": Argument(
                [np.ones((3, 2), np.float32)], [*wrong.JUNK, np.ones((3, 3)), np.ones(())]
            ),
            "weights": Argument(
                [None, np.ones(3)],
                [v for v in wrong.JUNK if v is not None and not is_floats(v)] + [np.ones(2)],
            ),
            "center": Argument(
                [None, (1, 2.5), np.ones(2)],
                [v for v in wrong.JUNK if v is not None] + [(1, 2, 3), (1, "2"), (1, None)],
            ),
            "color": Argument(["red", (0, 0, 1)], [1, 1.5, "no", b"red", [], {}, object(), (1, 2)]),
            "area": wrong.number(60.0),
            "axes": Argument([None], [v for v in wrong.JUNK if v is not None]),
        },
        traced=False,
    ),
    resolve=Entry(
        lambda function, args: oxijax.resolve(function, *args),
        {"function": abs, "args": (1.0,)},
        {
            "function": wrong.function(abs),
            "args": wrong.trees(1.0, np.ones(2), {"a": [spec(2), None]}),
        },
        oxijax.resolve,
        traced=False,
    ),
    tune=Entry(
        tune,
        {"function": abs, "args": (1.0,)},
        {
            "function": wrong.function(abs),
            "args": wrong.trees(1.0, np.ones(2), {"a": [spec(2), None]}),
        },
        oxijax.tune,
        traced=False,
    ),
)
TABLE |= (
    LAYERS
    | SAMPLING_LAYERS
    | CONVERSIONS
    | {
        "config.deterministic": Entry(
            lambda **arguments: deterministic(arguments["deterministic"]),
            {"deterministic": None},
            {"deterministic": DETERMINISTIC},
            lambda deterministic: None,  # an attribute has no signature
            traced=False,
        ),
        "config.deterministic_mode": Entry(
            enter(oxijax.config.deterministic_mode),
            {},
            {"value": DETERMINISTIC},
            oxijax.config.deterministic_mode,
            traced=False,
        ),
        "config.tuning.loads": Entry(
            oxijax.config.tuning.loads,
            {"text": NO_PLANS},
            {"text": Argument([NO_PLANS], [*wrong.JUNK, "[]", "{}", NO_PLANS.encode()])},
            traced=False,
        ),
        "testing.emulate_gpu": Entry(
            enter(oxijax.testing.emulate_gpu),
            {},
            {
                "target": Argument(
                    ["sm_80", "sm_90", np.str_("sm_80")],
                    [
                        *wrong.JUNK,
                        ["sm_80"],
                        {"sm_80": 1},
                        b"sm_80",
                        TARGETS["sm_80"],
                        "sm_1",
                        "SM_80",
                    ],
                ),
                "schedule": Argument([None, 0, 7], ["", "1", 1.5, True, -1, [], {}, object()]),
            },
            oxijax.testing.emulate_gpu,
            traced=False,
        ),
    }
)


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A call: the name of its entry, which arguments were replaced, and how it is made."""

    name: str
    replaced: Mapping[str, tuple[str, Any]]  # "right", "wrong" or "uncovered", and a value
    mode: str

    def __repr__(self) -> str:
        values = {name: f"{kind}: {short(v)}" for name, (kind, v) in self.replaced.items()}
        return f"{self.name} ({self.mode}) with {values}"


def short(value: Any) -> str:
    try:
        return f"{type(value).__name__} {value!r}"[:80]
    except ValueError:  # an int of more than 4,300 digits
        return f"{type(value).__name__} too long to be shown"


@st.composite
def calls(draw) -> Drawn:
    name = draw(st.sampled_from(sorted(TABLE)))
    arguments = TABLE[name].arguments
    chosen = draw(st.lists(st.sampled_from(sorted(arguments)), min_size=1, max_size=2, unique=True))
    replaced = {}
    for argument in chosen:
        options = arguments[argument]
        values = [
            *(("right", value) for value in options.right),
            *(("wrong", value) for value in options.wrong),
            *(("uncovered", value) for value in options.uncovered),
        ]
        replaced[argument] = values[draw(st.integers(0, len(values) - 1))]
    modes = MODES if TABLE[name].traced else ("eager",)
    return Drawn(name, replaced, draw(st.sampled_from(modes)))


def run(drawn: Drawn) -> None:
    entry = TABLE[drawn.name]
    values = {**entry.right, **{name: value for name, (_, value) in drawn.replaced.items()}}
    specs = {
        name: value for name, value in values.items()
        # One that is wrong as such is given as it is.
        if isinstance(value, jax.ShapeDtypeStruct) and not any(value is junk for junk in wrong.JUNK)
    }  # fmt: skip
    rest = {name: value for name, value in values.items() if name not in specs}
    if drawn.mode == "eager":
        zeros = {name: jnp.zeros(value.shape, value.dtype) for name, value in specs.items()}
        entry.call(**rest, **zeros)
        return
    transform = jax.jit if drawn.mode == "jit" else lambda function: function
    jax.eval_shape(transform(lambda arrays: entry.call(**rest, **arrays)), specs)


def complaint(drawn: Drawn) -> str:
    """What is wrong with how a call ended; empty if nothing is."""
    kinds = {name: kind for name, (kind, _) in drawn.replaced.items()}
    refused = [name for name, kind in kinds.items() if kind != "right"]
    expected: tuple[type[Exception], ...] = (ValueError, TypeError)
    if "uncovered" in kinds.values():
        expected += (NotImplementedError,)
    try:
        run(drawn)
    except Exception as error:
        message = str(error)
        if not refused:
            return f"{drawn}: refused, {type(error).__name__}: {message}"
        # Of a subclass nobody knows what it means: a ConcretizationTypeError is JAX's own.
        if type(error) not in expected:
            return f"{drawn}: raw {type(error).__name__}: {message}"
        if not any(names(message, name) for name in refused):
            return f"{drawn}: unnamed {type(error).__name__}: {message}"
        return ""
    return f"{drawn}: accepted" if refused else ""


def names(message: str, argument: str) -> bool:
    """Whether a message is about an argument: "a" alone is a word in many."""
    pattern = r"\ba must|of a," if argument == "a" else rf"\b{argument}\b"
    return re.search(pattern, message) is not None


def test_all_arguments_are_in_the_table():
    functions = {name: getattr(oxijax, name) for name in oxijax.__all__}
    public = {
        name
        for name, function in functions.items()
        # What a function returns is made by nobody else.
        if not (isinstance(function, type) and issubclass(function, tuple))
        and callable(function)
        and inspect.signature(function).parameters
    }
    public |= {f"reference.{name}" for name in oxijax.reference.__all__}
    public |= {f"convert.{name}" for name in oxijax.convert.__all__}
    public.add("onnx.deform_conv")
    for library in ("nnx", "linen", "equinox"):
        layers = getattr(oxijax, library).__all__
        public |= {f"{library}.{name}{call}" for name in layers for call in ("", "()")}
    assert public <= set(TABLE)
    flax_own = {"self", "parent", "name"}
    for entry in TABLE.values():
        parameters = inspect.signature(entry.signature or entry.call).parameters
        assert set(entry.arguments) == set(parameters) - flax_own


@pytest.mark.slow
@settings(
    max_examples=3000,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(calls())
def test_drawn_calls(drawn):
    assert not complaint(drawn)
