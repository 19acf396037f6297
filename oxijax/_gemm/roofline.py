"""`oxijax.roofline`: what bounds a matrix product on a GPU, and which program multiplies it."""

import dataclasses
from typing import Any

import jax
from jax import lax
from jax.typing import DTypeLike

import ptx
from oxijax._core.arguments import checks
from oxijax._core.arguments.keywords import explain_keywords
from oxijax._core.arguments.precision import PTX_DTYPES, parse_precision
from oxijax._core.gpu.data_sheets import default_data_sheet
from ptx.devices import DATA_SHEETS, DataSheet, data_sheet
from ptx.kernels.gemm.plan import choose

__all__ = ["DOT_GENERAL", "Roofline", "auto_strategy", "roofline"]

DOT_GENERAL = "dot_general"  # XLA's own product, which is made for what arithmetic bounds


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Where a matrix product lies under a GPU's roofline.

    Attributes:
      m, n, k, batch: sizes: batch products of [m, k] and [k, n].
      dtype: the dtype of the operands and the result, for example "bfloat16".
      device: the GPU, a name of `ptx.devices.DATA_SHEETS`; without a data sheet, CUDA's name.
      unit: what multiplies there, for example "TF32 tensor cores".
      flops: multiplications and additions.
      bytes: the least that can be moved: each operand is read once, the result written once.
      intensity: flops / bytes.
      balance_point: the intensity at which memory and arithmetic take equally long.
      bound: "memory" below the balance point, else "compute".
      peak_tflops: the peak rate of the unit, in TFLOP/s.
      peak_bandwidth_tbps: the bandwidth of the memory, in TB/s.
      attainable_us: the least time, in microseconds.
      attainable_tflops: TFLOP/s in that time.
      strategy: what `oxijax.gemm` takes for strategy="auto": the name of a kernel's strategy where
        memory is the bound, else "dot_general", which is `jax.lax.dot_general`.
    """

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    device: str
    unit: str
    flops: int
    bytes: int
    intensity: float
    balance_point: float
    bound: str
    peak_tflops: float
    peak_bandwidth_tbps: float
    attainable_us: float
    attainable_tflops: float
    strategy: str


@explain_keywords
def roofline(
    m: int,
    n: int,
    k: int,
    *,
    dtype: DTypeLike,
    device: str | DataSheet | None = None,
    batch: int = 1,
    beta: float = 0.0,
    precision: lax.PrecisionLike = None,
) -> Roofline:
    """What bounds the product of [m, k] and [k, n] on a GPU: memory, or arithmetic.

    The roofline model: a GPU needs at least the time in which its memory moves all bytes once, and
    at least the time in which its arithmetic units do all operations. Nothing is measured or
    compiled; the rates are those of NVIDIA's data sheets, which real programs come near to.

    Args:
      m: rows of the first operand and the result.
      n: columns of the second operand and the result.
      k: what the operands share.
      dtype: the dtype of all of them: float16, bfloat16, float32 or float64.
      device: a GPU: its name in `ptx.devices.DATA_SHEETS`, for example "H200"; CUDA's name, which
        is the `device_kind` of a JAX device; a target, which stands for one GPU, for example
        "sm_90"; or a data sheet. None is the GPU that JAX uses, whose rates are estimated from its
        driver's figures where it has no data sheet; and an A100 with 80 GB where JAX uses none.
      batch: so many products, each with operands of its own. Where all share the second operand
        they are one, of batch * m rows.
      beta: as in `oxijax.gemm`; c is read too unless it is the number 0.
      precision: as in `jax.lax`; float32 is multiplied as TF32 unless it is "highest".

    Raises:
      ValueError: a size below 1 or of 2**63 and more, or a GPU without a data sheet, by name.
      DriverError: JAX uses a GPU without a data sheet, and its driver cannot be asked.
      TypeError: a size that is no int, or another dtype, by name.

    Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
    multicore architectures", 2009.
    """
    m, n, k, batch = (
        checks.parse_int(name, value, most=2**63 - 1)
        for name, value in (("m", m), ("n", n), ("k", k), ("batch", batch))
    )
    name = checks.parse_float_dtype("dtype", dtype).name
    factor = checks.parse_factor("beta", beta)
    reads_c = isinstance(factor, jax.Array) or factor != 0
    exact = parse_precision(precision) == lax.Precision.HIGHEST
    sheet = _data_sheet(device)
    product = {"batch": batch, "exact": exact, "reads_c": reads_c}
    analysis = ptx.analyze_intensity(m, n, k, PTX_DTYPES[name].bytes, device=sheet, **product)
    return Roofline(
        *(m, n, k, batch),
        dtype=name,
        device=sheet.name,
        unit=sheet.peak(PTX_DTYPES[name], exact=exact).unit,
        flops=analysis.flops,
        bytes=analysis.bytes,
        intensity=analysis.intensity,
        balance_point=analysis.balance_point,
        bound="memory" if analysis.is_memory_bound else "compute",
        peak_tflops=analysis.peak_compute_tflops,
        peak_bandwidth_tbps=analysis.peak_bandwidth_tbps,
        attainable_us=1e6 * analysis.attainable_seconds,
        attainable_tflops=analysis.attainable_tflops,
        strategy=auto_strategy(m, n, k, dtype=name, sheet=sheet, **product),
    )


def auto_strategy(
    m: int,
    n: int,
    k: int,
    *,
    dtype: str,
    sheet: DataSheet | None,
    batch: int = 1,
    exact: bool = False,
    reads_c: bool = False,
) -> str:
    """What `oxijax.gemm` takes for strategy="auto": a kernel's strategy, or `DOT_GENERAL`.

    Args:
      m: as for `roofline`, like n, k and batch.
      n: likewise.
      k: likewise.
      dtype: the name of a supported dtype.
      sheet: the GPU; None is one of which nothing is known, which the reference of
        `ptx.analyze_intensity` stands for. That has few operations for each byte, so that the
        kernels get only what memory bounds on any GPU.
      batch: likewise.
      exact: float32 is multiplied as float32.
      reads_c: there is a third operand [m, n].
    """
    float_type, exact = PTX_DTYPES[dtype], exact and dtype == "float32"
    analysis = ptx.analyze_intensity(
        m, n, k, float_type.bytes, device=sheet, exact=exact, batch=batch, reads_c=reads_c
    )
    if not analysis.is_memory_bound:
        return DOT_GENERAL
    return choose(m, n, k, batch=batch, float_type=float_type, exact=exact).strategy


def _data_sheet(device: Any) -> DataSheet:
    if isinstance(device, DataSheet):
        return device
    if isinstance(device, str):
        return data_sheet(device)
    if device is not None:
        raise TypeError(
            f"device must be a name, a ptx.devices.DataSheet or None, got {checks.shown(device)}"
        )
    sheet = default_data_sheet()
    if sheet is None:
        raise ValueError(
            f"device must be given, one of {', '.join(DATA_SHEETS)}: of "
            f"{jax.devices()[0].device_kind!r}, which JAX uses, there is no data sheet, and its "
            "driver has no memory clock"
        )
    return sheet
