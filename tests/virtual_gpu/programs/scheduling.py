"""Compiles training steps for two GPUs, and finds kernels beside all-reduces in XLA's schedules."""

import re

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import oxijax

DEPTH = 3  # layers, each with weights of its own
IMAGES, OFFSETS, WEIGHTS = (4, 28, 28, 64), (4, 28, 28, 18), (3, 3, 64, 64)


def deform_conv(x, weight, offset):
    return oxijax.deform_conv(x, offset, weight)


# Each: the layer, and the shapes of its input, its weights and the rest.
LAYERS = {
    "conv": (oxijax.conv, IMAGES, WEIGHTS, ()),
    "deform_conv": (deform_conv, IMAGES, WEIGHTS, (OFFSETS,)),
    "gemm": (oxijax.gemm, (65536, 16), (16, 16), ()),
}
OPTIONS = {
    "xla_gpu_enable_latency_hiding_scheduler": True,
    "xla_gpu_all_reduce_combine_threshold_bytes": 0,  # else small ones wait for each other
}


def main() -> None:
    assert len(jax.devices()) == 2
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((2,), ("gpu",), axis_types=(kind,))
        for name in LAYERS:
            with jax.set_mesh(mesh):
                schedule = compiled(name, mesh)
            beside = launches_beside_all_reduces(schedule)
            # Each layer's all-reduce has the next layer's kernels beside it; the last has none.
            assert len(beside) == DEPTH, schedule
            assert sorted(beside)[1] >= 1, schedule
            print("done", kind, name, *beside)


def compiled(name: str, mesh) -> str:
    """XLA's program for the gradients of all weights, in the order in which it runs."""
    layer, images, weights, others = LAYERS[name]

    def loss(weights, x, others):
        for weight in weights:
            x = layer(x, weight, *others)
        return (x**2).sum()

    def struct(shape, spec):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))

    lowered = jax.jit(jax.grad(loss)).lower(
        [struct(weights, P())] * DEPTH,
        struct(images, P("gpu")),
        [struct(shape, P("gpu")) for shape in others],
    )
    times = re.findall(r'latency_metadata = "(\d+)"', lowered.as_text())
    print("said", *times)
    text = lowered.compile(compiler_options=OPTIONS).as_text()
    assert text is not None
    assert "is_scheduled=true" in text
    return text[text.index("ENTRY") :]


def launches_beside_all_reduces(schedule: str) -> list[int]:
    """For each all-reduce, the kernels that are launched between its start and its end."""
    counts, under_way = [], False
    for line in schedule.splitlines():
        if " all-reduce-start(" in line:
            counts.append(0)
            under_way = True
        elif " all-reduce-done(" in line:
            under_way = False
        elif 'custom_call_target="oxijax_launch"' in line and under_way:
            counts[-1] += 1
    return counts


if __name__ == "__main__":
    main()
