"""Whether memory or arithmetic bounds a matrix product: the roofline model.

After OxiCUDA's `bandwidth_gemm.rs`, whose names and reference figures these are.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
multicore architectures", 2009.
"""

from __future__ import annotations

import dataclasses
import enum

from ptx.devices import DataSheet, data_sheet
from ptx.isa.dtypes import DType, bf16, f16, f32, f64

__all__ = [
    "REFERENCE_BANDWIDTH_TBPS",
    "REFERENCE_COMPUTE_TFLOPS",
    "ArithmeticIntensityAnalysis",
    "BandwidthPrecision",
    "BandwidthStrategy",
    "analyze_intensity",
    "is_bandwidth_limited",
]

REFERENCE_COMPUTE_TFLOPS = 19.5  # an A100's CUDA cores in f32
REFERENCE_BANDWIDTH_TBPS = 2.0  # and its memory, about

_VECTOR_BYTES = 16  # the widest load of a thread


class BandwidthPrecision(enum.Enum):
    """The type of a product's operands and result; its value is the type."""

    F16 = f16
    BF16 = bf16
    F32 = f32
    F64 = f64

    @property
    def ptx_type(self) -> DType:
        """Of an element in memory."""
        return self.value

    @property
    def elem_bytes(self) -> int:
        """Bytes of an element."""
        return self.ptx_type.bytes

    @property
    def accumulator_type(self) -> DType:
        """In which products are summed: f32, or f64 for f64."""
        return f64 if self is BandwidthPrecision.F64 else f32

    @property
    def vector_width(self) -> int:
        """Elements of the widest load, 16 bytes."""
        return _VECTOR_BYTES // self.elem_bytes


class BandwidthStrategy(enum.Enum):
    """How a kernel makes the most of the memory's bandwidth.

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
        """What names of kernels end with."""
        return _KERNEL_LABELS[self]


_KERNEL_LABELS = {
    BandwidthStrategy.SHALLOW_K: "shallowk",
    BandwidthStrategy.CACHE_PERSISTENT: "cachepersist",
    BandwidthStrategy.WARP_PARALLEL: "warppar",
    BandwidthStrategy.AUTO: "auto",
}
_SHALLOW_K = 32  # SHALLOW_K below
_CACHE_PERSISTENT_K = 128  # CACHE_PERSISTENT below


@dataclasses.dataclass(frozen=True)
class ArithmeticIntensityAnalysis:
    """Where a matrix product lies under a GPU's roofline.

    Attributes:
      flops: multiplications and additions: 2 * m * n * k.
      bytes: the least that can be moved: each operand is read once, the result written once.
      intensity: flops / bytes; 0 where nothing is moved.
      is_memory_bound: the intensity is below the balance point.
      recommended_strategy: never AUTO.
      peak_compute_tflops: of the GPU, in TFLOP/s.
      peak_bandwidth_tbps: of its memory, in TB/s.
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
      k: what the operands share.
      elem_bytes: of an element of the operands and the result.
      device: a data sheet, or whatever `ptx.devices.data_sheet` takes; the peak is then that of
        the type of elem_bytes: halves on tensor cores, f32 as TF32, f64. None is the reference
        of the document, whatever the type: 19.5 TFLOP/s and 2.0 TB/s, an A100 about.
      exact: f32 is multiplied as f32, not rounded to TF32; for a device only.
      batch: so many products, each with operands of its own.
      reads_c: a third operand [m, n] is read too, as for beta * c.

    Raises:
      ValueError: a size that is negative, elem_bytes that no type of the device has, or an
        unknown device, by name.
    """
    for name, value, lowest in (
        *(("m", m, 0), ("n", n, 0), ("k", k, 0), ("batch", batch, 0)),
        ("elem_bytes", elem_bytes, 1),
    ):
        if value < lowest:
            raise ValueError(f"{name} must be at least {lowest}, got {value}")
    compute, bandwidth = _peaks(elem_bytes, device, exact)
    flops = 2 * batch * m * n * k
    elements = m * k + k * n + (2 if reads_c else 1) * m * n
    moved = batch * elements * elem_bytes
    intensity = flops / moved if moved else 0.0
    balance_point = compute / bandwidth
    is_memory_bound = intensity < balance_point
    return ArithmeticIntensityAnalysis(
        flops,
        moved,
        intensity,
        is_memory_bound,
        _recommended(k, is_memory_bound),
        compute,
        bandwidth,
        balance_point,
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


def _peaks(elem_bytes: int, device: DataSheet | str | None, exact: bool) -> tuple[float, float]:
    """TFLOP/s and TB/s."""
    if device is None:
        return REFERENCE_COMPUTE_TFLOPS, REFERENCE_BANDWIDTH_TBPS
    sheet = data_sheet(device) if isinstance(device, str) else device
    types = {2: f16, 4: f32, 8: f64}  # tensor cores multiply f16 and bf16 equally fast
    if elem_bytes not in types:
        raise ValueError(f"elem_bytes must be 2, 4 or 8 for a device, got {elem_bytes}")
    return sheet.peak(types[elem_bytes], exact=exact).tflops, sheet.bandwidth


def _recommended(k: int, is_memory_bound: bool) -> BandwidthStrategy:
    if is_memory_bound and k < _SHALLOW_K:
        return BandwidthStrategy.SHALLOW_K
    if is_memory_bound and k < _CACHE_PERSISTENT_K:
        return BandwidthStrategy.CACHE_PERSISTENT
    return BandwidthStrategy.WARP_PARALLEL
