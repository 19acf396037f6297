"""gemm's GPU kernels, in the emulator: values and gradients of named and drawn products."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.gemm_checks import check
from support.places import PRECISIONS, emulated

import oxijax
from oxijax.testing import GEMM_CASES, GemmCase, emulate_gpu
from ptx.kernels.gemm import STRATEGIES

TARGETS = ("sm_75", "sm_80", "sm_90")
COMBINATIONS = list(itertools.product(PRECISIONS, TARGETS))
NARROW = 9  # a product that has no more of rows, columns or depth is bound by any GPU's memory


def rotating(names):
    """Each product with one combination of precision and target, so that all come up."""
    return [(name, *pair) for name, pair in zip(names, itertools.cycle(COMBINATIONS), strict=False)]


def target_for(case: GemmCase, target: str) -> str:
    """A target on which strategy "auto" takes the kernels; of sm_75 no peak rates are known."""
    wide = min(case.m, case.n, case.k) > NARROW
    return "sm_80" if wide and target == "sm_75" else target


@pytest.mark.spread(2, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("name", "precision", "target"), rotating(GEMM_CASES))
def test_case(name, precision, target):
    case = GEMM_CASES[name]
    check(case, precision, emulated(target_for(case, target), schedule=len(name)))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("precision", "target"), COMBINATIONS)
@pytest.mark.parametrize("name", GEMM_CASES)
def test_case_everywhere(name, precision, target):
    case = GEMM_CASES[name]
    check(case, precision, emulated(target_for(case, target)))


def drawn(number: int) -> GemmCase:
    """A product whose layout, strategy and size are drawn."""
    rng = np.random.default_rng(number)

    def size(largest: int) -> int:
        return int(np.exp(rng.uniform(0, np.log(largest))) + 0.5)

    strategy = ("auto", *STRATEGIES)[number % 4]
    depth = {"shallow_k": 32, "cache_persistent": 130}.get(strategy, 600)
    sizes = [20 + size(130), size(NARROW), size(depth)]  # so many that errors are those of many
    if rng.random() < 0.5:
        sizes[:2] = sizes[1::-1]
    batch = (int(rng.integers(2, 4)),) if rng.random() < 0.5 else ()

    def shared() -> tuple[int, ...]:
        return batch if rng.random() < 0.6 else ()

    with_c = rng.random() < 0.6
    return GemmCase(
        f"drawn-{number}",
        *sizes,
        batch_a=shared(),
        batch_b=shared(),
        batch_c=shared() if with_c else None,
        transpose_a=bool(rng.random() < 0.5),
        transpose_b=bool(rng.random() < 0.5),
        alpha=float(rng.choice([1.0, -0.5, 2.25])),
        beta=float(rng.choice([0.0, 1.0, -0.5])) if with_c else 0.0,
        traced=bool(rng.random() < 0.5),
        strategy=strategy,
    )


@pytest.mark.spread(2, rest="proof")
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("number", "precision", "target"), rotating(range(30)))
def test_drawn(number, precision, target):
    check(drawn(number), precision, emulated(target, schedule=number))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("number", "precision", "target"), rotating(range(30, 630)))
def test_many_drawn(number, precision, target):
    check(drawn(number), precision, emulated(target))


@pytest.mark.spread(3, rest="proof")
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("swapped", [False, True])
def test_c_is_not_used_where_beta_is_0(swapped, value, strategy):
    m, n = (8, 70) if swapped else (70, 8)
    a, b, c = jnp.ones((m, 16)), jnp.ones((16, n)), jnp.full((m, n), value)

    def run(beta):
        return oxijax.gemm(a, b, c, beta=beta, strategy=strategy)

    with emulate_gpu("sm_80"):
        np.testing.assert_array_equal(jax.jit(run)(jnp.float32(0)), jnp.full((m, n), 16.0))
        np.testing.assert_array_equal(jax.jit(lambda: run(0.0))(), jnp.full((m, n), 16.0))
        assert not np.isfinite(jax.jit(run)(jnp.float32(1))).any()


def test_factors_of_each_product():
    """Alpha and beta that vmap maps are read by each product for itself."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(s).astype(np.float32) for s in ((9, 8), (8, 6), (9, 6)))
    alphas, betas = jnp.arange(1.0, 4.0), jnp.array([0.0, -1.0, 2.0])

    def run(alpha, beta):
        return oxijax.gemm(a, b, c, alpha=alpha, beta=beta, precision="highest")

    with emulate_gpu():
        ys = jax.jit(jax.vmap(run))(alphas, betas)
    expected = alphas[:, None, None] * (a @ b) + betas[:, None, None] * c
    np.testing.assert_allclose(ys, expected, rtol=1e-5, atol=1e-5)


# Which program a GPU gets.


def lowered(function, *operands) -> str:
    return jax.jit(function).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()


def spec(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


@pytest.mark.parametrize(
    ("shapes", "options", "kernel"),
    [
        # Memory bounds it: a kernel's. Arithmetic does: XLA's own, unless a kernel is asked for.
        ((spec(100_000, 64), spec(64, 32)), {}, True),
        ((spec(4096, 4096), spec(4096, 4096)), {}, False),
        ((spec(4096, 4096), spec(4096, 4096)), {"strategy": "warp_parallel"}, True),
        # Many products of a vector each are one product of many rows.
        ((spec(4096, 1, 64), spec(64, 64)), {}, True),
        ((spec(100_000, 64, 64), spec(64, 64)), {}, True),
        ((spec(8192, 1, 8192), spec(8192, 8192)), {}, False),
        # Nothing to compute.
        ((spec(0, 64), spec(64, 64)), {}, False),
        ((spec(64, 0), spec(0, 64)), {"strategy": "shallow_k"}, False),
    ],
)
@pytest.mark.parametrize("target", [None, "sm_80", "sm_90"])
def test_auto_leaves_to_xla_what_arithmetic_bounds(target, shapes, options, kernel):
    def run(a, b):
        return oxijax.gemm(a, b, **options)

    if target is None:
        text = lowered(run, *shapes)
    else:
        with emulate_gpu(target):
            text = jax.jit(run).lower(*shapes).as_text()
    assert ("oxijax_launch" in text) == kernel
    assert ("stablehlo.dot_general" in text) != kernel


def test_the_gpu_decides():
    """A product between the balance points of two GPUs."""
    a, b = spec(100_000, 384), spec(384, 384)
    assert oxijax.roofline(100_000, 384, 384, dtype="bfloat16", device="sm_80").bound == "compute"
    assert oxijax.roofline(100_000, 384, 384, dtype="bfloat16", device="sm_90").bound == "memory"
    for target, kernel in (("sm_80", False), ("sm_90", True)):
        with emulate_gpu(target):
            text = jax.jit(oxijax.gemm).lower(a, b).as_text()
        assert ("oxijax_launch" in text) == kernel


def test_alpha_beta_and_c_take_no_pass_of_their_own():
    """A kernel has them: the program is one call."""
    case = GEMM_CASES["traced"]
    a, b, c, alpha, beta = case.operands().values()

    def run(a, b, c, alpha, beta):
        return oxijax.gemm(a, b, c, alpha=alpha, beta=beta)

    text = lowered(run, a, b, c, alpha, beta)
    assert text.count("oxijax_launch") == 1
    for operation in ("multiply", "add ", "dot_general", "transpose"):
        assert f"stablehlo.{operation}" not in text
