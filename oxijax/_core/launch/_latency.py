"""The latency hint for XLA's schedulers: a lower bound of a launch's time."""

import math
from typing import Any

from oxijax._core.arguments.checks import batch_groups, is_known
from oxijax._core.gpu.data_sheets import default_data_sheet
from ptx.devices import DataSheet

__all__ = ["latency_metadata", "least_nanoseconds"]


def latency_metadata(ctx: Any, config: Any, products: Any, *, split: bool) -> dict[str, str]:
    """The frontend attribute of a custom call that XLA's GPU schedulers read its time from.

    Custom calls without it all count the same, whatever they do.

    Args:
      ctx: the context of the lowering.
      config: the kernel's configuration.
      products: how often it multiplies and adds, on all devices together.
      split: XLA may split the call along its leading dimension.

    Returns:
      Nothing where sizes are not known yet, or where nothing is known of the GPU.
    """
    shapes = [aval.shape for aval in (*ctx.avals_in, *ctx.avals_out)]
    sheet = default_data_sheet()
    if sheet is None or not is_known(products, *(size for shape in shapes for size in shape)):
        return {}
    moved = sum(aval.size * aval.dtype.itemsize for aval in (*ctx.avals_in, *ctx.avals_out))
    devices = batch_groups(ctx, shapes[0][0]) if split else 1
    return {
        "latency_metadata": str(
            least_nanoseconds(config, moved // devices, products // devices, sheet)
        )
    }


def least_nanoseconds(config: Any, moved_bytes: int, products: int, sheet: DataSheet) -> int:
    """The time of a launch under a GPU's roofline: see `oxijax.roofline`.

    Args:
      config: the kernel's configuration, which has a `float_type` and `exact` if it multiplies.
      moved_bytes: the bytes of all operands and results.
      products: how often it multiplies and adds.
      sheet: the GPU.
    """
    seconds = moved_bytes / (1e12 * sheet.bandwidth)
    if products:
        peak = sheet.peak(config.float_type, exact=config.exact)
        seconds = max(seconds, 2 * products / (1e12 * peak.tflops))
    return max(1, math.ceil(1e9 * seconds))
