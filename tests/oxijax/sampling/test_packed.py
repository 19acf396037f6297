"""Locations and weights in one array, as DCNv4 has them: kernels read and write it themselves."""

import contextlib
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.helpers import assert_close, program_of, values_and_gradients
from support.places import assert_has_kernels, emulated
from support.sampling_checks import KERNELS, TOLERANCES, check, in_dtype
from support.sampling_data import Recorded

import oxijax
from oxijax._sampling.packed import packed_width
from oxijax.testing import emulate_gpu

TARGETS = ("sm_75", "sm_80", "sm_90")
GROUPS = (1, 3, 8)  # with 5, 7 and no elements of padding for nine taps; 0, 0 and 0 for eight
WINDOWS = [
    {"softmax": softmax, "remove_center": center}
    for softmax, center in itertools.product([False, True], repeat=2)
]
# Each dtype and number of groups with one window in turn, and with a target in another turn.
CASES = [
    (dtype, groups, WINDOWS[i % len(WINDOWS)], TARGETS[(i + i // 3) % len(TARGETS)])
    for i, (dtype, groups) in enumerate(itertools.product(TOLERANCES, GROUPS))
]


def drawn(groups: int, n: int = 2, size: tuple[int, int] = (5, 7), **options) -> Recorded:
    """A call of dcnv4 with a window of 3 x 3, and NaN in the padding."""
    generator = np.random.default_rng(groups)
    taps = 9 - options.get("remove_center", False)
    used = 3 * groups * taps
    packed = np.full((n, *size, packed_width(groups, taps)), np.nan)
    packed[..., :used] = generator.standard_normal((n, *size, used))
    arrays = {
        "x": generator.standard_normal((n, *size, 8 * groups)),
        "offset_mask": packed,
    }
    grad_y = generator.standard_normal(arrays["x"].shape)
    options = {"kernel_size": 3, "groups": groups, **options}
    return Recorded(oxijax.dcnv4, arrays, options, grad_y, {})


def place(on_gpu: bool) -> contextlib.AbstractContextManager:
    return emulate_gpu() if on_gpu else contextlib.nullcontext()


def padding_of(call: Recorded, array: np.ndarray | jax.Array) -> np.ndarray:
    """What there is behind the last group's elements."""
    taps = 9 - call.options.get("remove_center", False)
    return np.asarray(array)[..., 3 * call.options["groups"] * taps :]


@pytest.mark.spread(1, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("dtype", "groups", "options", "target"), CASES)
def test_kernels(dtype, groups, options, target):
    check(drawn(groups, **options), dtype, emulated(target))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("n", "size", "groups", "softmax"),
    [
        (4, (7, 7), 8, True),
        (2, (5, 9), 4, False),
        pytest.param(64, (7, 7), 32, True, marks=pytest.mark.proof),
        pytest.param(2, (25, 42), 4, False, marks=pytest.mark.proof),
    ],
)
def test_kernels_whose_blocks_go_across_images(n, size, groups, softmax):
    """Blocks have units of two images, where DCNv4's own kernels read another one."""
    check(drawn(groups, n, size, softmax=softmax), "float32", emulated("sm_90"))


@pytest.mark.spread(5, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_gradient_of_padding_is_zero(on_gpu, groups, dtype):
    call = in_dtype(drawn(groups), dtype)
    assert np.isnan(padding_of(call, call.arrays["offset_mask"])).all()
    program = program_of(functools.partial(call.function, **call.options))
    with place(on_gpu):
        compiled = program.lower(tuple(call.arrays.values()), call.grad_y).compile()
        calls = assert_has_kernels(compiled.as_text(), KERNELS if on_gpu else ())
        y, (grad_x, grad_packed) = compiled(tuple(call.arrays.values()), call.grad_y)
    assert calls == 3 * on_gpu
    padding = padding_of(call, grad_packed)
    assert padding.size
    assert not padding.any()
    for array in (y, grad_x, grad_packed):
        assert np.isfinite(np.asarray(array, np.float64)).all()
        assert np.asarray(array).any()


@pytest.mark.spread(2, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("softmax", [False, True])
def test_deterministic(dtype, softmax):
    call = in_dtype(drawn(3, softmax=softmax), dtype)
    names, operands = [*call.arrays], [*call.arrays.values()]
    twin = functools.partial(oxijax.reference.dcnv4, **call.options)
    exact = [np.asarray(array, np.float64) for array in operands]
    expected = values_and_gradients(twin, exact, np.float64(call.grad_y), names)
    program = program_of(functools.partial(call.function, **call.options))
    with emulate_gpu("sm_80"), oxijax.config.deterministic_mode():
        compiled = program.lower(tuple(operands), call.grad_y).compile()
        kernels = (KERNELS[0], "sampling_backward_value_gather", KERNELS[2])
        assert assert_has_kernels(compiled.as_text(), kernels) == 3
        y, (grad_x, grad_packed) = compiled(tuple(operands), call.grad_y)
    for name, found in {"y": y, "dx": grad_x, "doffset_mask": grad_packed}.items():
        assert_close(found, expected[name], TOLERANCES[dtype], name)


def test_operand_is_not_copied():
    """What is lowered for CUDA cuts nothing out of the operand, and puts no gradient together."""
    call = in_dtype(drawn(3, softmax=True), np.float32)
    traced = program_of(functools.partial(call.function, **call.options)).trace(
        tuple(call.arrays.values()), call.grad_y
    )
    found = {}
    for platform in ("cuda", "cpu"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        operations = ("stablehlo.slice", "stablehlo.concatenate", "stablehlo.pad")
        found[platform] = [text.count(operation) > 0 for operation in operations]
    assert found == {"cuda": [False] * 3, "cpu": [True] * 3}


@pytest.mark.spread(1, rest="proof")
@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("split", ["images", "groups", "rows"])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_sharded(on_gpu, split, axis_type):
    """Images are split over devices; groups are not, since a row of the operand has all of them."""
    call = in_dtype(drawn(4, n=4, softmax=True), np.float32)
    mesh = jax.make_mesh((4,), ("i",), axis_types=(axis_type,))
    arrays = [np.nan_to_num(array) for array in call.arrays.values()]
    specs = {
        "images": (PartitionSpec("i"), PartitionSpec("i")),
        "groups": (PartitionSpec(None, None, None, "i"), PartitionSpec()),
        "rows": (PartitionSpec(), PartitionSpec(None, None, None, "i")),
    }[split]

    def both(*arrays):
        y, vjp = jax.vjp(functools.partial(oxijax.dcnv4, **call.options), *arrays)
        return y, vjp(y)

    expected = jax.jit(both)(*arrays)
    sharded = [
        jax.device_put(a, NamedSharding(mesh, s)) for a, s in zip(arrays, specs, strict=True)
    ]
    with jax.set_mesh(mesh), place(on_gpu):
        found = jax.jit(both)(*sharded)
    jax.tree.map(lambda a, e: assert_close(a, e, 1e-5), found, expected)


def test_exported_for_any_batch():
    (n,) = jax.export.symbolic_shape("n")
    call = in_dtype(drawn(3, softmax=True), np.float32)
    shapes = [
        jax.ShapeDtypeStruct((n, *array.shape[1:]), array.dtype) for array in call.arrays.values()
    ]

    def both(*arrays):
        y, vjp = jax.vjp(functools.partial(oxijax.dcnv4, **call.options), *arrays)
        return y, vjp(y)

    expected = jax.jit(both)(*call.arrays.values())
    with emulate_gpu():
        exported = jax.export.export(jax.jit(both), disabled_checks=oxijax.EXPORT_CHECKS)(*shapes)
        found = jax.jit(exported.call)(*map(jnp.asarray, call.arrays.values()))
    used = 3 * 3 * 9
    for actual, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_close(actual[..., :used], wanted[..., :used], 1e-5)
