"""The kernel of a memory-bound matrix product: its parameters, tiles and grid."""

from __future__ import annotations

from typing import Any

from ptx.builder import Kernel
from ptx.definition import In, Instance, KernelDefinition, Out, Size
from ptx.isa.dtypes import DType
from ptx.kernels.gemm.catalog import CONFIGS, ROWS
from ptx.kernels.gemm.config import LARGEST, GemmConfig
from ptx.kernels.gemm.operations import ALPHA, BETA
from ptx.kernels.gemm.plan import SplitPlan, StreamPlan, gemm_plan
from ptx.kernels.gemm.split import split_blocks, split_gemm
from ptx.kernels.gemm.streaming import streaming_blocks, streaming_gemm

__all__ = ["GEMM"]

_LABELS = {
    "shallow_k": "shallowk",
    "cache_persistent": "cachepersist",
    "warp_parallel": "warppar",
}


def _entry(config: GemmConfig, plan: StreamPlan | SplitPlan) -> str:
    tiles = f"{plan.m}x{plan.n}x{plan.k}"
    return f"bw_gemm_{config.float_type}_{tiles}_{_LABELS[config.strategy]}"


def _body(k: Kernel, config: GemmConfig, plan: StreamPlan | SplitPlan, p: Any) -> None:
    if isinstance(plan, StreamPlan):
        streaming_gemm(k, config, plan, p)
    else:
        split_gemm(k, config, plan, p)


def _result_type(config: GemmConfig) -> DType:
    return config.float_type if config.parts is None else config.sum_type


def _result_dims(config: GemmConfig) -> str:
    if config.parts is not None:
        return "g s r n"  # parts of the sums, which another pass adds up
    return "g? n r" if config.swapped else "g? r n"


def _blocks(instance: Instance) -> int:
    """Blocks of one product."""
    return (streaming_blocks if instance.config.parts is None else split_blocks)(instance)


def _grid(instance: Instance) -> tuple[int, int, int]:
    sizes = instance.sizes
    return sizes["g"] * _blocks(instance), -(-sizes["n"] // instance.plan.n), 1


def _check(instance: Instance) -> None:
    rows = instance.sizes["r"]
    if rows >= LARGEST:
        raise ValueError(f"rows of the large operand must be below 2**31, got {rows}")


def _step(operand: str, dims: int) -> Size:
    """How an operand goes on from a product to the next: 1, or 0 where all have the same."""

    def value(instance: Instance) -> int:
        shape = instance.shapes[operand]
        return int(len(shape) == dims and shape[0] > 1)

    flags = {"alpha": "use_alpha", "beta": "use_beta"}
    if operand not in flags:
        return Size(f"{operand}_step", value)
    return Size(f"{operand}_step", value, lambda config, plan: getattr(config, flags[operand]))


# Dimensions: products g, rows r of the large operand and columns n of the result, depth k, parts s
# of the depth.
GEMM = KernelDefinition(
    name="gemm",
    configs=CONFIGS,
    parameters=(
        In("large", lambda config: "g? r k" if config.large_k_axis else "g? k r"),
        In("small", lambda config: "g? n k" if config.small_k_axis else "g? k n"),
        *(ALPHA, BETA),
        Out("y", _result_dims, dtype=_result_type, initial="c", initial_flag="use_c"),
        Size("rows", lambda instance: instance.sizes["r"]),
        Size("blocks", _blocks),
        _step("large", 3),
        _step("small", 3),
        _step("alpha", 1),
        _step("beta", 1),
    ),
    plan=gemm_plan,
    launch_sizes=ROWS,
    entry=_entry,
    check=_check,
    grid=_grid,
    body=_body,
)
