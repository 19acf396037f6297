"""All functions on two GPUs, over Auto and Explicit axes, have the values of a CPU."""

import functools
import re

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import oxijax

BATCH, COLUMNS = P("gpu"), P(None, None, None, "gpu")
LAYERS = {
    "conv": ((4, 5, 6, 4), (3, 3, 4, 8), (8,)),
    "deform_conv": ((4, 5, 6, 4), (4, 5, 6, 36), (3, 3, 4, 8), (4, 5, 6, 18), (8,)),
    "gemm": ((1024, 16), (16, 8)),
}
ALONG_THE_BATCH = {
    "conv": (BATCH, P(), P()),
    "deform_conv": (BATCH, BATCH, P(), BATCH, P()),
    "gemm": (BATCH, P()),
}
ALONG_THE_COLUMNS = {
    "conv": (P(), COLUMNS, BATCH),
    "deform_conv": (P(), P(), COLUMNS, P(), BATCH),
    "gemm": (P(), P(None, "gpu")),
}


def values_and_gradients(function, operands):
    def squares(*operands):
        return (function(*operands) ** 2).sum()

    return function(*operands), jax.grad(squares, range(len(operands)))(*operands)


def main() -> None:
    assert len(jax.devices()) == 2
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((2,), ("gpu",), axis_types=(kind,))
        for layout in (ALONG_THE_BATCH, ALONG_THE_COLUMNS):
            for name, shapes in LAYERS.items():
                run(name, shapes, layout[name], mesh, kind)


def run(name, shapes, specs, mesh, kind) -> None:
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal(shape).astype(np.float32) for shape in shapes]
    with jax.default_device(jax.devices("cpu")[0]):
        reference = getattr(oxijax.reference, name)
        expected = jax.jit(functools.partial(values_and_gradients, reference))(arrays)
        expected = jax.tree.map(np.asarray, expected)
    function = functools.partial(getattr(oxijax, name), precision="highest")
    with jax.set_mesh(mesh):
        operands = [
            jax.device_put(array, NamedSharding(mesh, spec))
            for array, spec in zip(arrays, specs, strict=True)
        ]
        program = jax.jit(functools.partial(values_and_gradients, function))
        compiled = program.lower(operands).compile()
        actual = compiled(operands)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        error = np.linalg.norm(np.asarray(a) - b) / np.linalg.norm(b)
        assert error <= 2e-6, (name, error)
    text = compiled.as_text()
    assert text is not None
    sent = set(re.findall(r"all-gather|all-reduce|all-to-all|collective-permute", text))
    assert sent == {"all-reduce"}, sent
    print("done", kind, name, *specs)


if __name__ == "__main__":
    main()
