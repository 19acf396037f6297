"""Every primitive within what JAX does to programs: their values are those of the plain program.

Buffers are donated, callbacks and prints run between kernels, programs are rematerialised, scanned,
vmapped and differentiated at once, a thousand calls wait in JAX's queue, and threads compile at
once: through XLA's operations, and through the kernels in the emulated GPU.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from support.deadlines import ends_within
from support.helpers import assert_close
from support.layers import LAYERS, PATHS, TOLERANCE, on_mesh, primitives_of, program_of, values_of

import oxijax

SMALL = {  # together they have all primitives
    **{name: LAYERS[name] for name in ("conv", "deform_conv", "gemm-batch")},
    "gemm-transposed": dataclasses.replace(LAYERS["gemm-transposed"], shapes=((16, 128), (8, 16))),
}
FAMILIES = "conv_", "deform_conv_", "gemm"
DEADLINE = 120  # seconds; a test takes five on an idle core


@pytest.fixture(autouse=True)
def _deadline():
    with ends_within(DEADLINE):
        yield


@pytest.fixture(params=PATHS)
def path(request, launches):
    """A context in which a part of a test runs; the emulator runs in that of kernels alone."""
    yield PATHS[request.param]
    assert bool(launches) == (request.param == "kernels")


@pytest.fixture(params=SMALL)
def layer(request):
    """One of the small layers, whose values are known."""
    found = SMALL[request.param]
    values_of(found)
    return found


def weight_of(layer):
    """Which operand of a layer are its weights, or the matrix that is like them."""
    return next(i for i, column in enumerate(layer.columns) if column is not None)


def assert_all_close(actual, values):
    for result, value in zip(actual, values, strict=True):
        assert_close(result, value, TOLERANCE)


def test_small_layers_have_every_primitive():
    def used(layers):
        found = set()
        for layer in layers.values():
            _, grad_y = values_of(layer)
            found |= {*primitives_of(program_of(layer).trace(layer.operands(), grad_y).jaxpr.jaxpr)}
        return {primitive for primitive in found if primitive.name.startswith(FAMILIES)}

    assert used(SMALL) == used(LAYERS)


# Donation.


@pytest.mark.spread(2)
def test_donation(layer, path):
    """A step of training writes the new x and weights where the old were, and reads them first."""
    at = weight_of(layer)

    def step(x, weight, others):
        operands = [x, *others[: at - 1], weight, *others[at - 1 :]]
        y, vjp = jax.vjp(layer.function, *operands)
        gradients = vjp(y)
        return x + 0.01 * gradients[0], weight - 0.01 * gradients[at], y

    x, *others = layer.operands()
    weight = others.pop(at - 1)
    wanted, y = (x, weight), None
    for _ in range(2):
        *wanted, y = jax.jit(step)(*wanted, others)
    x, weight, others = jax.tree.map(jnp.array, (x, weight, others))
    with path():
        compiled = jax.jit(step, donate_argnums=(0, 1)).lower(x, weight, others).compile()
    given, actual = (x, weight), None
    for _ in range(2):
        before = given
        *given, actual = compiled(*given, others)
        assert all(array.is_deleted() for array in before)
        assert not any(array.is_deleted() for array in others)
    assert_all_close([*given, actual], [*wanted, y])
    analysis = compiled.memory_analysis()
    assert analysis is not None
    assert analysis.alias_size_in_bytes == x.nbytes + weight.nbytes


def test_what_is_donated_and_needed_again(path):
    """The kernel of `gemm` writes its result where c was, which this program reads afterwards."""
    a, b = (v[0] for v in SMALL["gemm-batch"].operands())
    c = np.random.default_rng(2).standard_normal((len(a), b.shape[1])).astype(np.float32)

    def function(a, b, c):
        y = oxijax.gemm(a, b, c, beta=2.0, precision="highest")
        return y * c, c + 1

    wanted = jax.jit(function)(a, b, c)
    donated = jnp.array(c)
    with path():
        actual = jax.jit(function, donate_argnums=2)(a, b, donated)
    assert donated.is_deleted()
    assert_all_close(actual, wanted)


# Callbacks.


@pytest.mark.spread(3)
def test_callback_inside_jit_and_grad(layer, path, capsys):
    """It runs once, between the kernels of forward and of backward."""
    values, grad_y = values_of(layer)
    seen = []

    def function(*operands):
        y = layer.function(*operands)
        jax.debug.callback(lambda y: seen.append(np.array(y)), y)
        jax.debug.print("{} are positive", jnp.sum(y > 0))
        return y

    @jax.jit
    def program(operands, grad_y):
        y, vjp = jax.vjp(function, *operands)
        return y, *vjp(grad_y)

    with path():
        for _ in range(2):
            assert_all_close(program(layer.operands(), grad_y), values)
    jax.effects_barrier()
    assert len(seen) == 2
    assert_all_close(seen, [values[0]] * 2)
    assert capsys.readouterr().out == f"{np.sum(values[0] > 0)} are positive\n" * 2


def test_callback_inside_vmap(layer, path):
    """It runs for each example, with that example's values."""
    values, _ = values_of(layer)
    seen = {}

    def function(number, *operands):
        y = layer.function(*operands)
        jax.debug.callback(lambda i, y: seen.setdefault(int(i), np.array(y)), number, y)
        return y

    numbers = jnp.arange(3)
    stacked = [np.stack([v, 2 * v, -v]) if i == 0 else v for i, v in enumerate(layer.operands())]
    wanted = [
        jax.jit(layer.function)(*(v[i] if at == 0 else v for at, v in enumerate(stacked)))
        for i in range(3)
    ]
    with path():
        results = jax.jit(jax.vmap(function, (0, 0, *[None] * (len(stacked) - 1))))(
            numbers, *stacked
        )
    jax.effects_barrier()
    assert_close(results[0], values[0], TOLERANCE)
    assert_all_close(results, wanted)
    assert sorted(seen) == [0, 1, 2]
    assert_all_close([seen[i] for i in range(3)], wanted)


def on_four_devices(layer):
    """Its operands, split along the batch, and their specs."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    specs = tuple(
        P(*("data" if i == split else None for i in range(len(shape))))
        for split, shape in zip(layer.split, layer.shapes, strict=True)
    )
    return mesh, specs, on_mesh(layer.operands(), mesh, specs)


@pytest.mark.spread(8)
@pytest.mark.parametrize("mapped", [False, True])
def test_callback_on_sharded_operands(layer, path, mapped):
    """Under jit it sees the whole output once; in a `jax.shard_map` each device's part."""
    values, _ = values_of(layer)
    mesh, specs, operands = on_four_devices(layer)
    seen = []

    def function(*operands):
        y = layer.function(*operands)
        jax.debug.callback(lambda y: seen.append(np.array(y)), y)
        return y

    program = function
    if mapped:
        program = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=P("data"))
    with path():
        y = jax.jit(program)(*operands)
    assert_close(y, values[0], TOLERANCE)
    jax.effects_barrier()
    if not mapped:
        assert_all_close(seen, [values[0]])
        return
    parts = np.split(values[0], 4)
    assert len(seen) == 4
    for part in parts:
        assert sum(np.allclose(part, found, atol=1e-5) for found in seen) == 1


# Programs within programs.


@pytest.mark.spread(2)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_vmap_of_sharded(layer, path, kind):
    """The vmapped axis is whole; the batch inside of it is what devices have parts of."""
    values, grad_y = values_of(layer)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(kind,))
    # Each operand that is split has two examples, of which the second is the first's negative.
    axes = tuple(None if split is None else 0 for split in layer.split)
    mapped = jax.vmap(layer.function, axes)
    with jax.set_mesh(mesh):
        operands = list(layer.operands())
        for i, split in enumerate(layer.split):
            if split is not None:
                pair, spec = np.stack([operands[i], -operands[i]]), P(*[None] * (split + 1), "data")
                operands[i : i + 1] = on_mesh([pair], mesh, [spec])
        (grad_y,) = on_mesh([np.stack([grad_y, 0 * grad_y])], mesh, [P(None, "data")])

        @jax.jit
        def program(operands, grad_y):
            y, vjp = jax.vjp(mapped, *operands)
            return y, *vjp(grad_y)

        with path():
            y, *gradients = program(operands, grad_y)
    second = [v if axis is None else -v for v, axis in zip(layer.operands(), axes, strict=True)]
    assert_close(y[0], values[0], TOLERANCE)
    assert_close(y[1], jax.jit(layer.function)(*second), TOLERANCE)
    for gradient, value, axis in zip(gradients, values[1:], axes, strict=True):
        assert_close(gradient if axis is None else gradient[0], value, TOLERANCE)
        assert axis is None or not np.any(gradient[1])


@pytest.mark.spread(1)
def test_grad_of_vmap(layer, path):
    """What examples share has the sum of their gradients."""
    _, grad_y = values_of(layer)
    scales = np.array([1.0, -0.5, 2.0], np.float32)
    xs = scales.reshape(-1, *[1] * len(layer.shapes[0])) * layer.operands()[0]
    others = layer.operands()[1:]

    def loss(xs, others, each):
        """The cosines make the gradient of each example another one."""
        y = each(lambda x: jnp.cos(layer.function(x, *others)), xs)
        return jnp.sum(y * grad_y)

    def plain(function, xs):
        return jnp.stack([function(x) for x in xs])

    wanted = jax.jit(jax.grad(functools.partial(loss, each=plain), (0, 1)))(xs, others)
    with path():
        mapped = functools.partial(loss, each=lambda function, xs: jax.vmap(function)(xs))
        actual = jax.jit(jax.grad(mapped, (0, 1)))(xs, others)
    assert_all_close(jax.tree.leaves(actual), jax.tree.leaves(wanted))


POLICIES = {
    "nothing": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,  # which kernels are not
    "names": jax.checkpoint_policies.save_only_these_names("output"),
}


@pytest.mark.spread(4)
@pytest.mark.parametrize("policy", POLICIES)
def test_remat(layer, path, policy):
    """A forward kernel runs again for the gradient unless its output is saved by name."""
    _, grad_y = values_of(layer)

    def block(*operands):
        return jnp.cos(checkpoint_name(layer.function(*operands), "output"))

    def gradient_of(block):
        def loss(*operands):
            return jnp.sum(block(*operands) * grad_y)

        return jax.jit(jax.grad(loss, tuple(range(len(layer.shapes)))))

    operands = layer.operands()
    plain = gradient_of(block)
    wanted = plain(*operands)
    program = gradient_of(jax.checkpoint(block, policy=POLICIES[policy]))
    with path():
        actual = program(*operands)
    assert_all_close(actual, wanted)
    kernels = [
        sum(count for primitive, count in primitives_of(trace.jaxpr.jaxpr).items()
            if primitive.name.startswith(FAMILIES))
        for trace in (plain.trace(*operands), program.trace(*operands))
    ]  # fmt: skip
    assert kernels[1] - kernels[0] == (policy != "names")


@pytest.mark.spread(2)
def test_scan_over_layers(layer, path):
    """Values and gradients of a scan, with rematerialised steps, are those of a Python loop."""
    at = weight_of(layer)
    x, *others = layer.operands()
    weight = others.pop(at - 1)
    weights = np.stack([weight, -weight / 2, weight / 4])

    def step(x, weight):
        y = layer.function(x, *others[: at - 1], weight, *others[at - 1 :])
        return x * jnp.cos(jnp.mean(y)), y

    def scanned(x, weights):
        return jax.lax.scan(jax.checkpoint(step), x, weights)

    def looped(x, weights):
        ys = []
        for weight in weights:
            x, y = step(x, weight)
            ys.append(y)
        return x, jnp.stack(ys)

    def program(layers, x, weights):
        (x, ys), vjp = jax.vjp(layers, x, weights)
        return x, ys, *vjp((x, ys))

    wanted = jax.jit(functools.partial(program, looped))(x, weights)
    with path():
        actual = jax.jit(functools.partial(program, scanned))(x, weights)
    assert_all_close(actual, wanted)
