"""gemm on several devices, exported, and in memory that is given to it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from support.gemm_checks import EVERY, assert_trees_close, matmul, product, squares

import oxijax
from oxijax.testing import emulate_gpu

SPECS = (P("batch"), P(), P("batch"), P(), P())
COLLECTIVES = ("all-gather", "all-to-all", "collective-permute")


def mesh_of(count, axis_type=AxisType.Auto):
    return jax.make_mesh((count,), ("batch",), axis_types=(axis_type,))


def rows(count, *batch) -> tuple[jax.Array, ...]:
    """A, b, c, alpha and beta with so many rows."""
    rng = np.random.default_rng(count)
    a, b, c = (
        jax.device_put(rng.standard_normal(shape).astype(np.float32))
        for shape in ((*batch, count, 16), (16, 8), (*batch, count, 8))
    )
    return a / 4, b, c, jnp.float32(0.75), jnp.float32(-1.5)


def test_factors_that_vary_over_devices():
    """Each device has an alpha of its own, and one beta is for all."""
    a, b, c, _, beta = rows(8)
    alphas = jnp.arange(1.0, 5.0)

    def inside(a, b, c, alphas, beta):
        return oxijax.gemm(a, b, c, alpha=alphas[0], beta=beta)

    specs = (P("batch"), P(), P("batch"), P("batch"), P())
    parallel = jax.shard_map(inside, mesh=mesh_of(4), in_specs=specs, out_specs=P("batch"))

    def loss(*operands):
        return jnp.sum(jnp.sin(parallel(*operands)))

    def whole(a, b, c, alphas, beta):
        return jnp.sum(jnp.sin(jnp.repeat(alphas, 2)[:, None] * (a @ b) + beta * c))

    operands = (a, b, c, alphas, beta)
    actual = jax.jit(jax.grad(loss, EVERY))(*operands)
    assert_trees_close(actual, jax.grad(whole, EVERY)(*operands))


# jit with sharded operands.


def sharded(operands, mesh):
    return tuple(
        jax.device_put(v, NamedSharding(mesh, spec))
        for v, spec in zip(operands, SPECS, strict=True)
    )


def assert_nothing_is_gathered(compiled) -> int:
    """Returns how many kernels are called."""
    text = compiled.as_text()
    assert not any(name in text for name in COLLECTIVES)
    return text.count('custom_call_target="oxijax_launch"')


@pytest.mark.quick
@pytest.mark.parametrize("batch", [(), (4,)])
def test_sharded_operands_under_jit(batch):
    """Rows, or a batch, that are sharded stay where they are: by XLA's own product."""
    operands = rows(8, *batch)
    program = jax.jit(jax.value_and_grad(squares(product()), EVERY))
    compiled = program.lower(*sharded(operands, mesh_of(4))).compile()
    assert assert_nothing_is_gathered(compiled) == 0
    actual = compiled(*sharded(operands, mesh_of(4)))
    assert_trees_close(
        actual, jax.value_and_grad(squares(product(function=matmul)), EVERY)(*operands)
    )


@pytest.mark.parametrize(
    ("count", "batch", "strategy"), [(64, (), "auto"), (16, (4,), "auto"), (32, (8,), "shallow_k")]
)
def test_kernels_split_rows(count, batch, strategy):
    """Of one product, each device has its part of the rows."""
    operands, mesh = rows(count, *batch), mesh_of(4)

    def run(a, b, c, alpha, beta):
        options = {"strategy": strategy, "precision": "highest"}
        return oxijax.gemm(a, b, c, alpha=alpha, beta=beta, **options)

    with emulate_gpu():
        compiled = jax.jit(run).lower(*sharded(operands, mesh)).compile()
        y = compiled(*sharded(operands, mesh))
    assert assert_nothing_is_gathered(compiled) == 1
    assert_trees_close(y, product(function=matmul)(*operands))


@pytest.mark.spread(1)
@pytest.mark.parametrize("strategy", ["auto", "warp_parallel"])
def test_kernels_split_batches(strategy):
    """Of many products, each device has some."""
    mesh, (a, _, c, alpha, beta) = mesh_of(4), rows(8, 4)
    operands = (a, jnp.cos(jnp.arange(4 * 16 * 8.0)).reshape(4, 16, 8), c, alpha, beta)
    specs = (P("batch"), P("batch"), P("batch"), P(), P())
    placed = tuple(
        jax.device_put(v, NamedSharding(mesh, s)) for v, s in zip(operands, specs, strict=True)
    )

    def run(a, b, c, alpha, beta):
        options = {"strategy": strategy, "precision": "highest"}
        return oxijax.gemm(a, b, c, alpha=alpha, beta=beta, **options)

    with emulate_gpu():
        compiled = jax.jit(run).lower(*placed).compile()
        y = compiled(*placed)
    assert assert_nothing_is_gathered(compiled) == 1
    assert_trees_close(y, product(function=matmul)(*operands))


def test_kernels_split_the_rows_of_gradients():
    """Where rows are what is summed over, each device sums its own, and sums are added up."""
    operands, mesh = rows(512), mesh_of(4)

    def loss(a, b, c, alpha, beta):
        y = oxijax.gemm(a, b, c, alpha=alpha, beta=beta, precision="highest")
        return jnp.mean(jnp.sin(y) ** 2)

    def whole(*operands):
        return jnp.mean(jnp.sin(product(function=matmul)(*operands)) ** 2)

    with emulate_gpu():
        program = jax.jit(jax.grad(loss, EVERY))
        compiled = program.lower(*sharded(operands, mesh)).compile()
        actual = compiled(*sharded(operands, mesh))
    assert assert_nothing_is_gathered(compiled) == 4
    assert_trees_close(actual, jax.jit(jax.grad(whole, EVERY))(*operands))


# Export.


def test_export_for_any_batch():
    operands = rows(8, 3)
    (count,) = jax.export.symbolic_shape("n")
    shapes = [
        jax.ShapeDtypeStruct((count, *v.shape[1:]) if v.ndim == 3 else v.shape, v.dtype)
        for v in operands
    ]
    gradients = jax.jit(jax.grad(squares(product()), EVERY))
    exported = jax.export.export(gradients)(*shapes)
    for size in (3, 1):
        values = [v[:size] if v.ndim == 3 else v for v in operands]
        assert_trees_close(exported.call(*values), gradients(*values))


# Memory.


@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize("shape", [(64, 16, 8), (8, 16, 64)])
def test_donated_c_becomes_the_result(shape, emulated):
    """The result is written where c was; what is not donated stays as it is."""
    m, k, n = shape
    a, b, c = jnp.ones((m, k)), jnp.ones((k, n)), jnp.ones((m, n))

    def run(a, b, c, beta):
        return oxijax.gemm(a, b, c, beta=beta)

    def call(donated):
        compiled = jax.jit(run, donate_argnums=donated).lower(a, b, c, jnp.float32(2)).compile()
        return compiled(a, b, c, jnp.float32(2))

    def both():
        np.testing.assert_array_equal(call(()), jnp.full((m, n), k + 2.0))
        np.testing.assert_array_equal(c, jnp.ones((m, n)))
        address = c.unsafe_buffer_pointer()
        y = call(2)
        assert c.is_deleted()
        assert y.unsafe_buffer_pointer() == address
        np.testing.assert_array_equal(y, jnp.full((m, n), k + 2.0))

    if emulated:
        with emulate_gpu():
            both()
    else:
        both()
