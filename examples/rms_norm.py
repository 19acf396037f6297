"""RMS norm as a kernel of one's own: the module that docs/write_a_kernel.md goes through.

`python -m oxijax check --registry rms_norm`, in this folder, assembles its kernel for every GPU.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from oxijax.extend import Fold, KernelPrimitive, Result, call, match_varying
from ptx import DType, bf16, f16, f32
from ptx.definition import In, KernelDefinition, Out, Size
from ptx.registry import register


@dataclasses.dataclass(frozen=True)
class RmsNormConfig:
    float_type: DType = f32  # of every array
    epsilon: float = 1e-6
    swish: bool = False

    def validate(self):
        if self.float_type not in (f32, bf16, f16):
            raise ValueError(f"float_type must be f32, bf16 or f16, got {self.float_type}")
        if not 0 < self.epsilon < 1:
            raise ValueError(f"epsilon must be between 0 and 1, got {self.epsilon}")


@dataclasses.dataclass(frozen=True)
class RmsNormPlan:
    threads: int  # of a block, a power of two from 32 on
    vector: int  # elements that a thread loads at once, which divide the channels
    min_blocks: int | None = None


def plan(config, target, sizes):
    channels = 4096 if sizes is None else sizes["c"]
    vector = 4 if channels % 4 == 0 else 1
    threads = next((t for t in (32, 64, 128) if channels <= 2 * t * vector), 256)
    return RmsNormPlan(threads, vector)


def check(instance):
    if instance.sizes["c"] > 2**30:  # the loop counts in 32 bits, and steps past the end
        raise ValueError(f"a row must have at most 2^30 channels, got {instance.sizes['c']}")


def load(k, pointer, index, plan):
    return [k.convert(value, f32) for value in pointer.load(index, plan.vector)]


def swish(k, z):
    exponential = k.op("ex2.approx.f32", f32, z * -1.4426950408889634)  # exp(-z)
    return z * k.op("rcp.approx.f32", f32, exponential + 1.0)


def block_sum(k, threads, value):
    k.comment("the sum of the warp, in every lane")
    for distance in (16, 8, 4, 2, 1):
        value = value + k.shuffle("bfly", value, distance)
    warps = threads // 32
    if warps == 1:
        return value
    k.comment("the sum of the block, in every thread")
    sums = k.shared("sums", f32, warps)
    with k.if_(k.laneid().eq(0)):
        sums.store(k.tid() // 32, value)
    k.barrier()
    return functools.reduce(k.add, [sums.load(warp) for warp in range(warps)])


def body(k, config, plan, p):
    row, t = k.ctaid(), k.tid()
    first = k.mul_wide(row, p.channels)  # 64 bits: there may be more than 2^32 elements
    x, y = p.x + first, p.y + first
    scale = p.scale + k.mul_wide(row % p.groups, p.channels)
    mine = (t * plan.vector, p.channels, plan.threads * plan.vector)  # start, stop, step

    k.comment("this thread's part of the sum of squares")
    squares = k.var(f32, 0.0, "squares")
    with k.loop(*mine, name="c") as c:
        for value in load(k, x, c, plan):
            squares.set(k.fma(value, value, squares))

    total = block_sum(k, plan.threads, squares.value())
    mean = total / k.convert(p.channels, f32, "rn")
    factor = k.op("rsqrt.approx.f32", f32, mean + config.epsilon)

    k.comment("the result; x comes from a cache now")
    with k.loop(*mine, name="c") as c:
        z = [
            value * factor * weight
            for value, weight in zip(load(k, x, c, plan), load(k, scale, c, plan), strict=True)
        ]
        if config.swish:
            z = [swish(k, value) for value in z]
        y.store(c, [k.convert(value, config.float_type, "rn") for value in z])


RMS_NORM = register(
    KernelDefinition(
        name="rms_norm",
        configs={
            "f32": RmsNormConfig(),
            "bf16-swish": RmsNormConfig(bf16, swish=True),
            "f32-odd": RmsNormConfig(),
        },
        launch_sizes={"f32-odd": {"n": 1000, "g": 1, "c": 37}},
        parameters=(
            In("x", "n g c"),
            In("scale", "g c"),
            Out("y", "n g c"),
            Size("groups", lambda instance: instance.sizes["g"]),
            Size("channels", lambda instance: instance.sizes["c"]),
        ),
        plan=plan,
        grid=lambda instance: (instance.sizes["n"] * instance.sizes["g"], 1, 1),
        body=body,
        check=check,
    )
)


def reference(config, x, scale):
    z = x.astype(jnp.float32)
    mean = jnp.mean(jnp.square(z), axis=-1, keepdims=True)
    z = z * jax.lax.rsqrt(mean + config.epsilon) * scale
    return (jax.nn.silu(z) if config.swish else z,)


def cuda(config, x, scale):
    return call(RMS_NORM, config, batch="n", x=x, scale=scale)


rms_norm_p = KernelPrimitive(
    "rms_norm",
    operands={"x": "n g c", "scale": "g c"},
    results={"y": Result("n g c", like="x")},
    sizes=lambda config, sizes: sizes,
    folds=[Fold("n"), Fold("g")],
    reference=reference,
    parallel=lambda config, operands: "n g",
    cuda=cuda,
)


FLOAT_TYPES = {"float32": f32, "bfloat16": bf16, "float16": f16}


def rms_norm(x, scale, *, epsilon=1e-6, swish=False):
    """Divides x by the root of its mean square along the last axis, and multiplies it with scale.

    Args:
      x: [..., C], float32, bfloat16 or float16.
      scale: [C], in x's dtype.
      epsilon: what is added to the mean square, between 0 and 1.
      swish: whether z / (1 + exp(-z)) of each element z follows.

    Returns:
      [..., C], in x's dtype. Sums are of float32.
    """
    x, scale = jnp.asarray(x), jnp.asarray(scale)
    if x.dtype.name not in FLOAT_TYPES:
        raise TypeError(f"x must have one of the dtypes {', '.join(FLOAT_TYPES)}, got {x.dtype}")
    if scale.dtype != x.dtype:
        raise TypeError(f"scale must have the dtype of x, {x.dtype}, got {scale.dtype}")
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"x must have shape (..., C) with C at least 1, got {x.shape}")
    if scale.shape != x.shape[-1:]:
        raise ValueError(f"scale must have shape (C,) = {x.shape[-1:]}, got {scale.shape}")
    config = RmsNormConfig(FLOAT_TYPES[x.dtype.name], float(epsilon), bool(swish))
    config.validate()
    x, scale = match_varying(x, scale)
    (y,) = rms_norm_p(config, x.reshape(-1, 1, x.shape[-1]), scale[None])
    assert y is not None  # only results that are like an absent operand are absent
    return y.reshape(x.shape)
