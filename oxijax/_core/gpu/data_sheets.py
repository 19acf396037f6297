"""The data sheet of the GPU that programs are made for."""

import jax

from oxijax._core.gpu.driver import driver
from ptx.devices import DATA_SHEETS, DataSheet, estimate_data_sheet, find_data_sheet

__all__ = ["default_data_sheet"]

_WITHOUT_GPU = DATA_SHEETS["A100 80GB"]


def default_data_sheet() -> DataSheet | None:
    """The sheet of the GPU that JAX uses, from its driver's figures if need be, or of an A100.

    None where there is neither a data sheet nor all of the figures.

    Raises:
      DriverError: the GPU has no data sheet, and its driver cannot be asked.
    """
    device = jax.devices()[0]
    if device.platform != "gpu":
        return _WITHOUT_GPU
    return find_data_sheet(device.device_kind) or _estimated_data_sheet(device.device_kind)


def _estimated_data_sheet(kind: str) -> DataSheet | None:
    for gpu in driver().devices:
        # Drivers of GPUs that share the memory of the host may know no memory clock.
        if gpu.name == kind and gpu.memory_clock_khz and gpu.bus_width:
            return estimate_data_sheet(
                gpu.name,
                gpu.sm,
                sms=gpu.sms,
                clock_khz=gpu.clock_khz,
                memory_clock_khz=gpu.memory_clock_khz,
                bus_width=gpu.bus_width,
            )
    return None
