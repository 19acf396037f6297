"""Convolutions that are split along their channels: groups, and the input channels of one group."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.helpers import assert_close
from support.layers import PATHS, TOLERANCE, Layer, collectives, on_mesh, program_of

import oxijax

TYPES = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
WHOLE, BIAS = P(), P("model")
CHANNELS, INPUTS = P(None, None, None, "model"), P(None, None, "model")
SUM = {"all-reduce": 1}
IMAGES, MANY = (2, 4, 5, 16), (2, 4, 5, 72)  # MANY has four offset groups


conv, conv_of_lines, deform_conv = (
    functools.partial(function, precision="highest", **options)
    for function, options in (
        (oxijax.conv, {}),
        (oxijax.conv, {"data_format": "NWC"}),
        (oxijax.deform_conv, {}),
    )
)


@dataclasses.dataclass(frozen=True)
class Case:
    """A call on four devices.

    Attributes:
      function: the convolution.
      shapes: the operands' shapes.
      specs: the operands' shardings.
      forward: the arrays that the forward call sends, by kind.
      every: the arrays that the call sends with all gradients.
      y: the output's sharding.
      free: as `every`, where XLA chooses how results are sharded.
    """

    function: Callable[..., jax.Array]
    shapes: tuple[tuple[int, ...], ...]
    specs: tuple[P, ...]
    forward: dict[str, int] = dataclasses.field(default_factory=dict)
    every: dict[str, int] = dataclasses.field(default_factory=dict)
    y: P = CHANNELS
    free: dict[str, int] | None = None


CASES = {
    "groups": Case(conv, (IMAGES, (3, 3, 4, 8), (8,)), (CHANNELS, CHANNELS, BIAS)),
    "depthwise": Case(conv, (IMAGES, (3, 3, 1, 16)), (CHANNELS, CHANNELS)),
    "groups-of-a-line": Case(conv_of_lines, ((2, 9, 16), (3, 4, 8)), (INPUTS, INPUTS), y=INPUTS),
    "offset-groups": Case(
        deform_conv,
        (IMAGES, MANY, (3, 3, 4, 8), (2, 4, 5, 36), (8,)),
        (CHANNELS, CHANNELS, CHANNELS, CHANNELS, BIAS),
    ),
    # Gradients of what all devices have are sums over them.
    "groups-with-the-same-offsets": Case(
        deform_conv,
        (IMAGES, (2, 4, 5, 18), (3, 3, 4, 8), (2, 4, 5, 9)),
        (CHANNELS, WHOLE, CHANNELS, WHOLE),
        every={"all-reduce": 2},
    ),
    # Each device takes its channels of x, and all get the others' of its gradient.
    "groups-of-weights": Case(
        conv, (IMAGES, (3, 3, 4, 8)), (WHOLE, CHANNELS), every={"all-gather": 1}, free={}
    ),
    "inputs": Case(conv, (IMAGES, (3, 3, 16, 8)), (CHANNELS, INPUTS), SUM, SUM, WHOLE),
    "inputs-with-offset-groups": Case(
        deform_conv,
        (IMAGES, MANY, (3, 3, 16, 8), (2, 4, 5, 36)),
        (CHANNELS, CHANNELS, INPUTS, CHANNELS),
        *(SUM, SUM, WHOLE),
    ),
    "inputs-with-the-same-offsets": Case(
        deform_conv,
        (IMAGES, (2, 4, 5, 18), (3, 3, 16, 8)),
        (CHANNELS, WHOLE, INPUTS),
        *(SUM, {"all-reduce": 2}, WHOLE),
    ),
    # Where four parts would cut a group, or each add the bias, channels are gathered.
    "two-groups": Case(
        conv,
        (IMAGES, (3, 3, 8, 8)),
        (CHANNELS, CHANNELS),
        *({"all-gather": 2}, {"all-gather": 3}),
    ),
    "two-offset-groups": Case(
        deform_conv,
        (IMAGES, (2, 4, 5, 36), (3, 3, 4, 8)),
        (CHANNELS, CHANNELS, CHANNELS),
        *({"all-gather": 3}, {"all-gather": 4}),
    ),
    "inputs-and-bias": Case(
        conv,
        (IMAGES, (3, 3, 16, 8), (8,)),
        (CHANNELS, INPUTS, WHOLE),
        *({"all-gather": 2}, {"all-gather": 2}, WHOLE),
    ),
}


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("kind", "path"), [("explicit", "xla"), ("explicit", "kernels"), ("auto", "kernels")]
)
@pytest.mark.parametrize("name", CASES)
def test_split_along_channels(name, kind, path):
    case = CASES[name]
    layer = Layer(case.function, case.shapes)
    values, program = layer.operands(), program_of(layer)
    shape = jax.eval_shape(layer.function, *values).shape
    grad_y = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    expected = program(values, grad_y)
    mesh = jax.make_mesh((4,), ("model",), axis_types=(TYPES[kind],))
    with jax.set_mesh(mesh), PATHS[path]():
        operands = on_mesh(values, mesh, case.specs)
        forward = jax.jit(case.function).lower(*operands).compile()
        grad_y = jax.device_put(grad_y, NamedSharding(mesh, case.y))
        compiled = program.lower(operands, grad_y).compile()
        results = compiled(operands, grad_y)
    for result, value in zip(results, expected, strict=True):
        assert_close(result, value, TOLERANCE)
    for result, spec in zip(results, (case.y, *case.specs), strict=True):
        if kind == "explicit":
            assert result.sharding.is_equivalent_to(NamedSharding(mesh, spec), result.ndim)
    assert collectives(forward) == case.forward
    free = kind == "auto" and case.free is not None
    assert collectives(compiled) == (case.free if free else case.every)


@pytest.mark.parametrize("function", ["conv", "deform_conv"])
def test_groups_over_one_axis_and_their_inputs_over_another(function):
    """Each device has one group, whose input channels are gathered, not split again."""
    case = {
        "conv": Case(conv, (IMAGES, (3, 3, 8, 6)), (CHANNELS, P(None, None, "data", "model"))),
        "deform_conv": Case(
            deform_conv,
            (IMAGES, (2, 4, 5, 18), (3, 3, 8, 6)),
            (CHANNELS, WHOLE, P(None, None, "data", "model")),
        ),
    }[function]
    layer = Layer(case.function, case.shapes)
    expected = layer.function(*layer.operands())
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    with jax.set_mesh(mesh):
        operands = on_mesh(layer.operands(), mesh, case.specs)
        y = jax.jit(layer.function)(*operands)
    assert y.sharding.is_equivalent_to(NamedSharding(mesh, CHANNELS), 4)
    assert_close(y, expected, TOLERANCE)
