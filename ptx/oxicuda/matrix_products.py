"""Memory-bound matrix products under OxiCUDA's names: the roofline model, problems and tiles.

After OxiCUDA's `bandwidth_gemm.rs`, whose names and reference figures these are.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
multicore architectures", 2009.
"""

from __future__ import annotations

import dataclasses
import enum

from ptx.checks import check_at_least
from ptx.devices import DataSheet, data_sheet
from ptx.isa.dtypes import DType, bf16, f16, f32, f64
from ptx.isa.targets import Target, as_target
from ptx.kernels.gemm.definitions import GEMM
from ptx.kernels.gemm.plan import choose
from ptx.tile.vectors import accumulator_of, vector_width

__all__ = [
    "ArithmeticIntensityAnalysis",
    "BandwidthGemmConfig",
    "BandwidthPrecision",
    "BandwidthStrategy",
    "BandwidthTileConfig",
    "analyze_intensity",
    "generate_bandwidth_gemm_ptx",
    "is_bandwidth_limited",
    "select_bandwidth_tiles",
]

REFERENCE_COMPUTE_TFLOPS = 19.5  # an A100's CUDA cores in f32
REFERENCE_BANDWIDTH_TBPS = 2.0  # and its memory, about

_WARP_TILE = 32  # rows, and columns, of a warp's share of a tile


class BandwidthPrecision(enum.Enum):
    """The type of a product's operands and result; its value is the type."""

    F16 = f16
    BF16 = bf16
    F32 = f32
    F64 = f64

    @property
    def ptx_type(self) -> DType:
        """The type of an element in memory."""
        return self.value

    @property
    def elem_bytes(self) -> int:
        """Bytes of an element."""
        return self.ptx_type.bytes

    @property
    def accumulator_type(self) -> DType:
        """The type that products are summed in: f32, or f64 for f64."""
        return accumulator_of(self.ptx_type)

    @property
    def vector_width(self) -> int:
        """Elements of the widest load, 16 bytes."""
        return vector_width(self.ptx_type)


class BandwidthStrategy(enum.Enum):
    """The way in which a kernel makes the most of the memory's bandwidth.

    SHALLOW_K: all of K in one pass over wide tiles of the output, for K below 32.
    CACHE_PERSISTENT: many short steps along K over tiles that stay in L2, for K below 128.
    WARP_PARALLEL: tiles of the output spread over warps, so that many loads are under way.
    AUTO: the one of them that the shape asks for.
    """

    SHALLOW_K = "shallow_k"
    CACHE_PERSISTENT = "cache_persistent"
    WARP_PARALLEL = "warp_parallel"
    AUTO = "auto"

    @property
    def kernel_label(self) -> str:
        """The end of the names of kernels."""
        labels = {"cache_persistent": "cachepersist", "warp_parallel": "warppar"}
        return labels.get(self.value, self.value.replace("_", ""))


@dataclasses.dataclass(frozen=True)
class ArithmeticIntensityAnalysis:
    """A matrix product's place under a GPU's roofline.

    Attributes:
      flops: multiplications and additions: 2 * m * n * k.
      bytes: the least that can be moved: each operand is read once, the result written once.
      intensity: flops / bytes; 0 where nothing is moved.
      is_memory_bound: the intensity is below the balance point.
      recommended_strategy: never AUTO.
      peak_compute_tflops: the GPU's peak, in TFLOP/s.
      peak_bandwidth_tbps: its memory's bandwidth, in TB/s.
      balance_point: peak_compute_tflops / peak_bandwidth_tbps, in operations for each byte.
    """

    flops: int
    bytes: int
    intensity: float
    is_memory_bound: bool
    recommended_strategy: BandwidthStrategy
    peak_compute_tflops: float
    peak_bandwidth_tbps: float
    balance_point: float

    @property
    def attainable_tflops(self) -> float:
        """The roof above this intensity, in TFLOP/s."""
        return min(self.peak_compute_tflops, self.intensity * self.peak_bandwidth_tbps)

    @property
    def attainable_seconds(self) -> float:
        """The least time in which the GPU can move the bytes and do the operations."""
        memory = self.bytes / (self.peak_bandwidth_tbps * 1e12)
        return max(memory, self.flops / (self.peak_compute_tflops * 1e12))


def analyze_intensity(
    m: int,
    n: int,
    k: int,
    elem_bytes: int,
    *,
    device: DataSheet | str | None = None,
    exact: bool = False,
    batch: int = 1,
    reads_c: bool = False,
) -> ArithmeticIntensityAnalysis:
    """Whether memory or arithmetic bounds the product of [m, k] and [k, n].

    Args:
      m: rows of the first operand and the result; 0 is allowed, for n and k too.
      n: columns of the second operand and the result.
      k: the dimension that the operands share.
      elem_bytes: bytes of an element of the operands and the result.
      device: a data sheet, or whatever `ptx.devices.data_sheet` takes; the peak is then that of
        the type of elem_bytes: halves on tensor cores, f32 as TF32, f64. None is the reference
        of the document, whatever the type: 19.5 TFLOP/s and 2.0 TB/s, an A100 about.
      exact: f32 is multiplied as f32, not rounded to TF32; for a device only.
      batch: the number of products, each with operands of its own.
      reads_c: a third operand [m, n] is read too, as for beta * c.

    Raises:
      ValueError: a size that is negative, elem_bytes that no type of the device has, or an
        unknown device, by name.
    """
    check_at_least(0, m=m, n=n, k=k, batch=batch)
    check_at_least(1, elem_bytes=elem_bytes)
    compute, bandwidth = _peaks(elem_bytes, device, exact)
    flops = 2 * batch * m * n * k
    moved = batch * elem_bytes * (m * k + k * n + (2 if reads_c else 1) * m * n)
    intensity = flops / moved if moved else 0.0
    is_memory_bound = intensity < compute / bandwidth
    strategy = BandwidthStrategy.WARP_PARALLEL
    if is_memory_bound and k < 128:
        strategy = BandwidthStrategy.SHALLOW_K if k < 32 else BandwidthStrategy.CACHE_PERSISTENT
    return ArithmeticIntensityAnalysis(
        flops,
        moved,
        intensity,
        is_memory_bound,
        recommended_strategy=strategy,
        peak_compute_tflops=compute,
        peak_bandwidth_tbps=bandwidth,
        balance_point=compute / bandwidth,
    )


def is_bandwidth_limited(
    m: int,
    n: int,
    k: int,
    elem_bytes: int,
    *,
    device: DataSheet | str | None = None,
    exact: bool = False,
) -> bool:
    """Whether memory bounds a product; arguments and errors as for `analyze_intensity`."""
    return analyze_intensity(m, n, k, elem_bytes, device=device, exact=exact).is_memory_bound


@dataclasses.dataclass(frozen=True)
class BandwidthGemmConfig:
    """The product of [m, k] and [k, n].

    Attributes:
      m, n, k: at least 1.
      target: GPU, for example "sm_80".
      precision: the type of the operands and the result.
      strategy: AUTO is the one that `analyze_intensity` recommends.
    """

    m: int
    n: int
    k: int
    target: Target | str = "sm_80"
    precision: BandwidthPrecision = BandwidthPrecision.F32
    strategy: BandwidthStrategy = BandwidthStrategy.AUTO

    def validate(self) -> None:
        """Raises ValueError or TypeError that names the field at fault, if one is."""
        check_at_least(1, m=self.m, n=self.n, k=self.k)
        as_target(self.target)
        for name, kind in (("precision", BandwidthPrecision), ("strategy", BandwidthStrategy)):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise TypeError(f"{name} must be a {kind.__name__}, got {value!r}")

    def resolved_strategy(self) -> BandwidthStrategy:
        """The strategy; instead of AUTO the one that the reference GPU's roofline recommends.

        The target has no say in it, so that tiles depend on the shape alone.

        Raises:
          ValueError, TypeError: a field is wrong.
        """
        self.validate()
        if self.strategy is not BandwidthStrategy.AUTO:
            return self.strategy
        analysis = analyze_intensity(self.m, self.n, self.k, self.precision.elem_bytes)
        return analysis.recommended_strategy


@dataclasses.dataclass(frozen=True)
class BandwidthTileConfig:
    """A block's share of a product.

    Attributes:
      tile_m, tile_n: rows and columns of the output.
      tile_k: a step along K.
      pipeline_stages: steps that shared memory holds.
      warps_m, warps_n: warps along M and N.
      vector_width: elements of a load.
      prefetch_distance: steps that loads are ahead of their use.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    pipeline_stages: int
    warps_m: int
    warps_n: int
    vector_width: int
    prefetch_distance: int


def select_bandwidth_tiles(config: BandwidthGemmConfig) -> BandwidthTileConfig:
    """The tiles of a product.

    The output's tile is the largest whose longer side fits the output both ways; 32 x 32 for small
    ones.

    Raises:
      ValueError, TypeError: a field of the configuration is wrong.
    """
    largest, depth, stages, ahead = {
        BandwidthStrategy.SHALLOW_K: ((128, 128), config.k, 1, 0),
        BandwidthStrategy.CACHE_PERSISTENT: ((64, 64), 8, 2, 1),
        BandwidthStrategy.WARP_PARALLEL: ((128, 64), 16, 2, 2),
    }[config.resolved_strategy()]
    extent = min(config.m, config.n)
    fitting = (tile for tile in (largest, (64, 64)) if max(tile) <= extent)
    tile_m, tile_n = next(fitting, (32, 32))
    return BandwidthTileConfig(
        tile_m,
        tile_n,
        tile_k=min(depth, config.k),
        pipeline_stages=stages,
        warps_m=tile_m // _WARP_TILE,
        warps_n=tile_n // _WARP_TILE,
        vector_width=config.precision.vector_width,
        prefetch_distance=ahead,
    )


def generate_bandwidth_gemm_ptx(config: BandwidthGemmConfig) -> str:
    """The PTX of `alpha * A @ B + beta * C`, or of strategy WARP_PARALLEL the sums of parts of K.

    Tiles are those that fit the target, not `select_bandwidth_tiles`; the entry's name says which.

    Raises:
      ValueError: a field of the configuration is wrong, or the strategy cannot take the problem.
      TypeError: a field has the wrong type.
      UnsupportedError: the target lacks an instruction.
    """
    strategy = config.resolved_strategy()
    kernel = choose(
        config.m, config.n, config.k, float_type=config.precision.ptx_type,
        strategy=strategy.value, use_alpha=True, use_c=True, use_beta=True,
    )  # fmt: skip
    return GEMM.write(kernel, config.target, {"r": max(config.m, config.n)}).text


def _peaks(elem_bytes: int, device: DataSheet | str | None, exact: bool) -> tuple[float, float]:
    """TFLOP/s and TB/s."""
    if device is None:
        return REFERENCE_COMPUTE_TFLOPS, REFERENCE_BANDWIDTH_TBPS
    sheet = data_sheet(device) if isinstance(device, str) else device
    types = {2: f16, 4: f32, 8: f64}  # tensor cores multiply f16 and bf16 equally fast
    if elem_bytes not in types:
        raise ValueError(f"elem_bytes must be 2, 4 or 8 for a device, got {elem_bytes}")
    return sheet.peak(types[elem_bytes], exact=exact).tflops, sheet.bandwidth
