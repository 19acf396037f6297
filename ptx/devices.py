"""NVIDIA's data sheets of GPUs: peak rates of arithmetic, and memory bandwidth.

Rates are of dense matrices: where a data sheet has a rate with sparsity only, half of it. What
kernels reach is less; `ptx.model` has rates for modelling them.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from ptx.isa.dtypes import DType, bf16, f16, f32, f64
from ptx.isa.targets import target_for

__all__ = [
    "DATA_SHEETS",
    "DataSheet",
    "Peak",
    "data_sheet",
    "estimate_data_sheet",
    "find_data_sheet",
]


class Peak(NamedTuple):
    """A rate of multiplying and adding.

    Attributes:
      unit: the units, for example "TF32 tensor cores".
      tflops: 10**12 operations a second; a multiplication with an addition is two.
    """

    unit: str
    tflops: float


@dataclasses.dataclass(frozen=True)
class DataSheet:
    """A GPU as its data sheet has it.

    Attributes:
      name: the name that it is sold by.
      target: the name of its target.
      f16, bf16: TFLOP/s of tensor cores that add in f32.
      tf32: TFLOP/s of tensor cores.
      f32, f64: TFLOP/s of CUDA cores.
      f64_tensor: TFLOP/s of tensor cores; None where NVIDIA states no rate.
      bandwidth: the memory's, in TB/s: 10**12 bytes a second.
      source: NVIDIA's document that has these figures.
      kinds: CUDA's names for it, which are JAX's `device_kind`.
    """

    name: str
    target: str
    f16: float
    bf16: float
    tf32: float
    f32: float
    f64: float
    f64_tensor: float | None
    bandwidth: float
    source: str
    kinds: tuple[str, ...]

    def peaks(self, dtype: DType) -> tuple[Peak, ...]:
        """The units that can multiply operands of a type, the fastest first.

        Raises:
          ValueError: dtype is none of f16, bf16, f32 and f64.
        """
        if dtype not in _UNITS:
            raise ValueError(f"dtype must be f16, bf16, f32 or f64, got {dtype}")
        peaks = (Peak(unit, getattr(self, rate)) for unit, rate in _UNITS[dtype].items())
        return tuple(peak for peak in peaks if peak.tflops is not None)

    def peak(self, dtype: DType, *, exact: bool = False) -> Peak:
        """The fastest unit; for f32 with `exact` the one that does not round to TF32.

        Raises:
          ValueError: dtype is none of f16, bf16, f32 and f64.
        """
        peaks = self.peaks(dtype)
        return peaks[-1] if exact and dtype is f32 else peaks[0]


# The units that multiply operands of a type, the fastest first: names, and fields of their rates.
_UNITS = {
    f16: {"f16 tensor cores": "f16"},
    bf16: {"bf16 tensor cores": "bf16"},
    f32: {"TF32 tensor cores": "tf32", "f32 CUDA cores": "f32"},
    f64: {"f64 tensor cores": "f64_tensor", "f64 CUDA cores": "f64"},
}

_A100 = DataSheet(
    "A100 80GB", "sm_80",
    f16=312, bf16=312, tf32=156, f32=19.5, f64=9.7, f64_tensor=19.5, bandwidth=2.039,
    source="NVIDIA A100 Tensor Core GPU datasheet, A100 80GB SXM",
    kinds=("NVIDIA A100-SXM4-80GB",),
)  # fmt: skip

DATA_SHEETS = {
    sheet.name: sheet
    for sheet in (
        dataclasses.replace(
            _A100, name="A100 40GB", bandwidth=1.555,
            source="NVIDIA A100 Tensor Core GPU Architecture whitepaper, A100 40GB",
            kinds=("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"),
        ),
        _A100,
        dataclasses.replace(
            _A100, name="A100 80GB PCIe", bandwidth=1.935,
            source="NVIDIA A100 Tensor Core GPU datasheet, A100 80GB PCIe",
            kinds=("NVIDIA A100 80GB PCIe",),
        ),
        DataSheet(
            "H100 SXM", "sm_90",
            f16=989.4, bf16=989.4, tf32=494.7, f32=66.9, f64=33.5, f64_tensor=66.9,
            bandwidth=3.352,
            source="NVIDIA H100 Tensor Core GPU Architecture whitepaper, H100 SXM5",
            kinds=("NVIDIA H100 80GB HBM3",),
        ),
        DataSheet(
            "H200", "sm_90",
            f16=989.5, bf16=989.5, tf32=494.5, f32=67, f64=34, f64_tensor=67, bandwidth=4.8,
            source="NVIDIA H200 Tensor Core GPU datasheet, H200 SXM; half of its sparse rates",
            kinds=("NVIDIA H200",),
        ),
        DataSheet(
            "RTX 4090", "sm_89",
            f16=165.2, bf16=165.2, tf32=82.6, f32=82.6, f64=82.6 / 64, f64_tensor=None,
            bandwidth=1.008,
            source="NVIDIA Ada GPU Architecture whitepaper, GeForce RTX 4090; f64 is 1/64 of f32",
            kinds=("NVIDIA GeForce RTX 4090",),
        ),
        DataSheet(
            "B200", "sm_100",
            f16=2250, bf16=2250, tf32=1100, f32=80, f64=40, f64_tensor=40, bandwidth=8.0,
            source="NVIDIA Blackwell Architecture Technical Brief, HGX B200; half of its sparse "
            "rates",
            kinds=("NVIDIA B200",),
        ),
    )
}  # fmt: skip

# Operations of one SM in a cycle: f16, bf16, TF32, f32, f64, and f64 on tensor cores. Without
# tensor cores for a type, the rate is that of the CUDA cores. Where GPUs of one target differ it is
# the lowest: GeForce's tensor cores add in f32 at half the rate of others.
# Source: NVIDIA's architecture whitepapers of Turing, A100, GA102, Ada, H100 and Blackwell, peak
# rates divided by SMs and boost clock.
_OPERATIONS = {
    "sm_75": (512, 128, 128, 128, 4, None),
    "sm_80": (2048, 2048, 1024, 128, 64, 128),
    "sm_86": (512, 512, 256, 256, 4, None),
    "sm_89": (512, 512, 256, 256, 4, None),
    "sm_90": (4096, 4096, 2048, 256, 128, 256),
    "sm_100": (8192, 8192, 4096, 256, 128, 128),
    "sm_120": (512, 512, 256, 256, 4, None),
}

# Of the GPUs of a target, the one that stands for it; and short names.
_OTHER_NAMES = {
    "sm_80": "A100 80GB",
    "sm_89": "RTX 4090",
    "sm_90": "H200",
    "sm_90a": "H200",
    "sm_100": "B200",
    "A100": "A100 80GB",
    "H100": "H100 SXM",
    **{kind: sheet.name for sheet in DATA_SHEETS.values() for kind in sheet.kinds},
}


def find_data_sheet(device: str) -> DataSheet | None:
    """The data sheet of a GPU, or None if `DATA_SHEETS` lacks it.

    Args:
      device: its name in `DATA_SHEETS`, or "A100" or "H100"; what CUDA and JAX call it, for
        example "NVIDIA H200"; or a target, for example "sm_90".
    """
    return DATA_SHEETS.get(_OTHER_NAMES.get(device, device))


def data_sheet(device: str) -> DataSheet:
    """The data sheet of a GPU.

    Args:
      device: as for `find_data_sheet`.

    Raises:
      ValueError: there is none of this name.
    """
    sheet = find_data_sheet(device)
    if sheet is None:
        raise ValueError(
            f"device must be one of {', '.join(DATA_SHEETS)}, CUDA's name of one, or a target of "
            f"one, got {device!r}"
        )
    return sheet


def estimate_data_sheet(
    name: str, sm: int, *, sms: int, clock_khz: int, memory_clock_khz: int, bus_width: int
) -> DataSheet:
    """A data sheet of a GPU by what its driver says of it, for one that `DATA_SHEETS` lacks.

    Args:
      name: CUDA's name for it.
      sm: its SM version, for example 89.
      sms: the number of its SMs.
      clock_khz: the highest clock of the SMs, in kHz.
      memory_clock_khz: the memory's clock, in kHz; it moves bits twice in a cycle.
      bus_width: the width of the memory's bus, in bits.

    Raises:
      UnsupportedError: it is older than the lowest target.
      ValueError: an attribute is not positive.
    """
    for attribute, value in (
        ("sms", sms),
        ("clock_khz", clock_khz),
        ("memory_clock_khz", memory_clock_khz),
        ("bus_width", bus_width),
    ):
        if value <= 0:
            raise ValueError(f"{attribute} must be positive, got {value}")
    target = target_for(sm).name
    teracycles = sms * clock_khz * 1e3 / 1e12
    rates = (rate and rate * teracycles for rate in _OPERATIONS[target])
    return DataSheet(
        name,
        target,
        *rates,
        bandwidth=2e3 * memory_clock_khz * bus_width / 8 / 1e12,
        source=f"{sms} SMs, clocks and bus width as the driver has them",
        kinds=(name,),
    )
