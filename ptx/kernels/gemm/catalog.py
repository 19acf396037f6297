"""Named products: what is assembled for every target."""

from __future__ import annotations

import dataclasses

from ptx.isa.dtypes import bf16, f16, f32, f64
from ptx.kernels.gemm.config import GemmConfig
from ptx.kernels.gemm.plan import choose

__all__ = ["CONFIGS", "ROWS", "SHAPES"]

# Memory-bound products: name -> (m, n, k). Each has a twin with no size that a vector divides.
SHAPES = {
    "1M-64-64": (1 << 20, 64, 64),
    "16K-16K-8": (1 << 14, 1 << 14, 8),
    "1M-32-256": (1 << 20, 32, 256),
    "16-8192-8192": (16, 8192, 8192),
    "64-64-4M": (64, 64, 1 << 22),
    "1M-63-63": ((1 << 20) - 1, 63, 63),
    "16K-16K-7": ((1 << 14) - 1, (1 << 14) - 1, 7),
    "1M-31-255": ((1 << 20) - 1, 31, 255),
    "15-8191-8191": (15, 8191, 8191),
    "63-63-4M": (63, 63, (1 << 22) - 1),
}


def _all() -> dict[str, GemmConfig]:
    configs = {}
    for name, (m, n, k) in SHAPES.items():
        for dtype in (bf16, f16, f32, f64):
            configs[f"{name}/{dtype}"] = choose(m, n, k, float_type=dtype)
        configs[f"{name}/f32-exact"] = choose(m, n, k, float_type=f32, exact=True)
    for strategy, k in (("shallow_k", 24), ("cache_persistent", 96), ("warp_parallel", 1024)):
        for dtype in (bf16, f32, f64):
            for layout in ("NT", "TN", "TT"):
                config = choose(
                    4096, 48, k, transpose_a=layout[0] == "T", transpose_b=layout[1] == "T",
                    float_type=dtype, strategy=strategy, use_alpha=True, use_c=True, use_beta=True,
                )  # fmt: skip
                configs[f"{strategy}-{layout}/{dtype}"] = config
                if config.parts is None:  # partial sums are never stored the other way round
                    swapped = dataclasses.replace(config, swapped=True)
                    configs[f"{strategy}-{layout}-swapped/{dtype}"] = swapped
    return configs


CONFIGS = _all()

# The rows that each of `SHAPES` has, by the name of the configuration.
ROWS = {
    name: {"g": 1, "r": max(SHAPES[shape][:2])}
    for name in CONFIGS
    if (shape := name.partition("/")[0]) in SHAPES
}
