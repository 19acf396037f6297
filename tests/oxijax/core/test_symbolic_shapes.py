"""Programs that are exported for sizes that are not known yet."""

import contextlib
import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import public_calls
from support.processes import python

import oxijax
from oxijax._core.arguments.checks import require_product
from oxijax._deform_conv import reference
from oxijax.testing import emulate_gpu

pytestmark = pytest.mark.quick

SIZES = [(1, 5, 6), (2, 7, 4), (3, 9, 9)]  # images, height, width


def deform_conv(*operands):
    return oxijax.deform_conv(*operands, strides=(2, 1), padding=1)


def conv(x, offset, weight, mask, bias):
    return oxijax.conv(x, weight, bias, strides=(2, 1), padding=1)


def gemm(x, offset, weight, mask, bias):
    rows = x.reshape(-1, x.shape[-1])
    return oxijax.gemm(rows, weight[0, 0], bias[None] * jnp.ones((rows.shape[0], 1)), beta=2.0)


export = functools.partial(jax.export.export, disabled_checks=oxijax.EXPORT_CHECKS)
SYMBOLIC = [name for name, call in public_calls.operator_calls().items() if call.differentiable]


@pytest.mark.spread(2)
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
@pytest.mark.parametrize("name", [name for name in SYMBOLIC if "reference" not in name])
def test_second_derivatives_of_a_symbolic_batch(name, platform):
    """A program that is differentiated twice after it was loaded."""
    call, (n,) = public_calls.operator_calls()[name], jax.export.symbolic_shape("n")
    shapes = [
        [n if d == "n" else public_calls.SIZES[d] for d in dims.split()] for dims in call.dims
    ]
    operands = [jax.ShapeDtypeStruct(tuple(shape), jnp.float32) for shape in shapes]
    exported = export(jax.jit(call.function), platforms=(platform,))(*operands)
    program = jax.export.deserialize(exported.serialize(vjp_order=2))
    if platform == "cuda" or "grid" not in name:
        return

    def twice(function):
        def squares(*arrays):
            return (jax.grad(lambda x: (function(x, *arrays[1:]) ** 2).sum())(arrays[0]) ** 2).sum()

        return jax.jit(jax.grad(squares))

    arrays = call.operands()
    found, expected = (twice(function)(*arrays) for function in (program.call, call.function))
    np.testing.assert_allclose(found, expected, 1e-4, 1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("size", ["h", "w", "c"])
@pytest.mark.parametrize("name", ["grid_sample", "dcnv3", "dcnv4"])
def test_sizes_that_sampling_operators_have_to_know(name, size):
    """The error names the argument, what is needed and why."""
    call, (n, unknown) = public_calls.operator_calls()[name], jax.export.symbolic_shape("n, u")
    sizes = {**public_calls.SIZES, "n": n, size: unknown}
    operands = [
        jax.ShapeDtypeStruct(tuple(sizes[d] for d in dims.split()), jnp.float32)
        for dims in call.dims
    ]
    with pytest.raises(
        ValueError, match=r"^x must have a height, a width and channels that are kn"
    ):
        jax.export.export(jax.jit(call.function))(*operands)


FUNCTIONS = {f.__name__: f for f in (deform_conv, conv, gemm)}


def shapes_of(n, height, width):
    """Of x, offset, weight, mask and bias."""
    pixels = n, (height - 1) // 2 + 1, width
    return (n, height, width, 4), (*pixels, 18), (3, 3, 4, 6), (*pixels, 9), (6,)


def symbolic_operands(sizes: str, dtype=jnp.float64):
    dims = jax.export.symbolic_shape(sizes)
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes_of(*dims)]


def operands_of(sizes):
    generator = np.random.default_rng(sum(sizes))
    return [generator.standard_normal(shape) for shape in shapes_of(*sizes)]


def values_and_gradients(function):
    def squares(*operands):
        return (function(*operands) ** 2).sum()

    def program(*operands):
        return function(*operands), jax.grad(squares, range(5))(*operands)

    return jax.jit(program)


def assert_close(actual, expected):
    def check(a, b):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12 * np.abs(b).max(initial=1.0))

    jax.tree.map(check, actual, expected)


@contextlib.contextmanager
def deterministic_kernels():
    with emulate_gpu(), oxijax.config.deterministic_mode():
        yield


PATHS = {"xla": contextlib.nullcontext, "kernels": emulate_gpu, "lists": deterministic_kernels}


@pytest.mark.spread(2)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("sizes", ["n, 7, 4", "n, h, w"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_at_any_size(name, sizes, path):
    program = values_and_gradients(FUNCTIONS[name])
    with jax.enable_x64(True), PATHS[path]():
        exported = export(program)(*symbolic_operands(sizes))
        kernels = exported.mlir_module().count("@oxijax_launch")
        again = jax.export.deserialize(exported.serialize())
        for known in SIZES if "h" in sizes else [(1, 7, 4), (2, 7, 4), (5, 7, 4)]:
            operands = operands_of(known)
            expected = values_and_gradients(FUNCTIONS[name])(*operands)
            assert_close(again.call(*operands), expected)
    assert (kernels > 0) == (path != "xla")


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_for_cuda(name, deterministic):
    program = values_and_gradients(FUNCTIONS[name])
    with oxijax.config.deterministic_mode(deterministic):
        exported = export(program, platforms=("cuda",))(*symbolic_operands("n, h, w", jnp.float32))
    # Of gemm the gradient to b sums over rows, whose number a kernel has to know: XLA has it.
    gradients = {"deform_conv": 3, "conv": 2, "gemm": 1}[name]
    assert exported.mlir_module().count("@oxijax_launch") == 2 + gradients  # and forward twice


EXPORT = """
import pathlib, sys
import jax
jax.config.update("jax_enable_x64", True)
sys.path[:0] = sys.argv[1].split()
import test_symbolic_shapes as tests
with tests.emulate_gpu():
    for name, function in tests.FUNCTIONS.items():
        program = tests.values_and_gradients(function)
        exported = tests.export(program)(*tests.symbolic_operands("n, h, w"))
        (pathlib.Path(sys.argv[2]) / name).write_bytes(exported.serialize())
"""
CALL = """
import pathlib, sys
import jax
jax.config.update("jax_enable_x64", True)
sys.path[:0] = sys.argv[1].split()
import test_symbolic_shapes as tests
for name, function in tests.FUNCTIONS.items():
    exported = jax.export.deserialize(bytearray((pathlib.Path(sys.argv[2]) / name).read_bytes()))
    for sizes in tests.SIZES:
        operands = tests.operands_of(sizes)
        expected = tests.values_and_gradients(function)(*operands)
        tests.assert_close(exported.call(*operands), expected)
        print("done", name, sizes)
"""


@pytest.mark.slow
def test_in_another_process(tmp_path):
    here = pathlib.Path(__file__)
    folders = f"{here.parent} {here.parents[2]}"
    for program in (EXPORT, CALL):
        status, printed = python("-c", program, folders, str(tmp_path))
        assert status == 0, printed
    assert printed.count("done ") == len(FUNCTIONS) * len(SIZES)


# What cannot be decided before sizes are known.


@contextlib.contextmanager
def refused(message):
    """JAX raises an error that has ours as its cause."""
    with pytest.raises(ValueError, match="Error refining shapes") as error:
        yield
    assert message in str(error.value.__cause__)


def test_an_output_without_extent():
    (height,) = jax.export.symbolic_shape("h")
    x = jax.ShapeDtypeStruct((1, height, 5, 2), jnp.float32)
    weight = jax.ShapeDtypeStruct((3, 3, 2, 2), jnp.float32)
    program = jax.jit(lambda x, weight: oxijax.conv(x, weight, padding="VALID"))
    exported = jax.export.export(program)(x, weight)
    assert exported.call(jnp.ones((1, 3, 5, 2)), jnp.ones(weight.shape)).shape == (1, 1, 3, 2)
    with refused("the output would have no extent: x with height and width (h, 5)"):
        exported.call(jnp.ones((1, 2, 5, 2)), jnp.ones(weight.shape))


def test_more_rows_than_xla_indexes(monkeypatch):
    monkeypatch.setattr(
        reference,
        "require_product",
        lambda factors, most, text: require_product(factors, 200, text),
    )
    exported = jax.export.export(jax.jit(deform_conv))(*symbolic_operands("n, h, w", jnp.float32))
    small, large = ([v.astype(np.float32) for v in operands_of(s)] for s in SIZES[::2])
    assert exported.call(*small).shape == (1, 3, 6, 6)  # 9 * 10 rows
    with refused("XLA indexes fewer than 2**31: split the batch"):
        exported.call(*large)  # 3 * 13 * 13


def test_a_product_of_sizes():
    def program(x):
        require_product(x.shape, 100, "too many")
        return x

    exported = jax.export.export(jax.jit(program))(
        jax.ShapeDtypeStruct(jax.export.symbolic_shape("a, b"), jnp.float32)
    )
    for shape in ((10, 10), (1, 100), (33, 3), (100, 1)):
        assert exported.call(jnp.ones(shape)).shape == shape
    for shape in ((10, 11), (1, 101), (101, 1), (34, 3)):
        with refused("too many"):
            exported.call(jnp.ones(shape))
        with pytest.raises(ValueError, match="too many"):
            program(jnp.ones(shape))


def test_padding_that_depends_on_the_size():
    def program(x, weight):
        return oxijax.conv(x, weight, strides=2, padding="SAME")

    weight = jax.ShapeDtypeStruct((3, 3, 2, 2), jnp.float32)

    def export_for(sizes):
        x = jax.ShapeDtypeStruct((1, *jax.export.symbolic_shape(sizes), 2), jnp.float32)
        return jax.export.export(jax.jit(program))(x, weight)

    with pytest.raises(ValueError, match=r"padding 'SAME' depends on x's height and width.*2\*h"):
        export_for("h, 8")
    x, weight = jnp.ones((1, 6, 8, 2)), jnp.ones((3, 3, 2, 2))
    np.testing.assert_array_equal(export_for("2*h, 8").call(x, weight), program(x, weight))


def test_a_strategy_for_unknown_sizes():
    shape = jax.export.symbolic_shape("m, k")
    a, b = (jax.ShapeDtypeStruct(s, jnp.float32) for s in (shape, (shape[1], 8)))
    program = jax.jit(lambda a, b: oxijax.gemm(a, b, strategy="shallow_k"))
    with pytest.raises(ValueError, match="strategy must be 'auto' where K"):
        jax.export.export(program)(a, b)
