"""The largest launches: `ptx.kernels.limits`, with windows that may lie outside of all images."""

from __future__ import annotations

from ptx.definition import Instance
from ptx.kernels.limits import PIXELS, check_count, check_sizes

__all__ = ["check_windows"]


def check_windows(instance: Instance, *, backward_input: bool = False) -> None:
    """Raises ValueError, which names the limit, for sizes that a kernel cannot count.

    Args:
      instance: the kernel, with the images' size h, w and the output's p, q.
      backward_input: whether windows are of the output's gradient, and not of the images.
    """
    config, sizes = instance.config, instance.sizes
    images, in_size, out_size = sizes["n"], (sizes["h"], sizes["w"]), (sizes["p"], sizes["q"])
    check_sizes(config, images, in_size, out_size)
    # A window's first tap is a pixel in an s32, and it may be outside: before the first image, or
    # behind the last gradient, from where a pixel gathers upwards. So are the steps to other taps.
    rows, columns = config.effective_kernel_h - 1, config.effective_kernel_w - 1
    if not backward_input:
        rows, columns = max(rows, config.pad_h), max(columns, config.pad_w)
        reach, what = rows * in_size[1] + columns, f"{rows} rows of images {in_size[1]} wide"
    else:
        below = (in_size[0] + config.pad_h) // config.stride_h + 1
        beside = (in_size[1] + config.pad_w) // config.stride_w + 1
        rows = max(rows, (max(images, 1) - 1) * out_size[0] + max(below, out_size[0]))
        reach = rows * out_size[1] + max(columns, beside)
        what = f"{rows} rows of outputs {out_size[1]} wide, those that windows begin in included"
    check_count(f"pixels of {what}", reach, PIXELS)
