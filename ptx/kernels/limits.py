"""The largest launches: what the kernels' 32-bit numbers can count.

Elements and bytes are counted in 64 bits, so that tensors may have any number of either. Pixels,
rows and columns are counted in 32 bits, and so are blocks by the hardware.
"""

from __future__ import annotations

from ptx.kernels.convolution import ConvolutionConfig

__all__ = ["PIXELS", "TABLE_PIXELS", "check_count", "check_sizes"]

PIXELS = 2**31  # an index is an s32, or a u32 to which a block's rows are added
TABLE_PIXELS = 2**30  # of a corner table: two bits of an entry say what is beside the corner
EXTENT = 2**30  # what is farther away counts as outside; see `Offsets`


def check_sizes(
    config: ConvolutionConfig,
    images: int,
    in_size: tuple[int, int],
    out_size: tuple[int, int],
    *,
    most_pixels: int = PIXELS,
) -> None:
    """Raises ValueError, which names the limit, for sizes that a kernel cannot count.

    Args:
      config: the convolution.
      images: how many.
      in_size: height and width of the images.
      out_size: the size of the output.
      most_pixels: the largest number of pixels of all images.
    """
    for what, (height, width), limit in (
        ("images", in_size, most_pixels),
        ("outputs", out_size, PIXELS),
    ):
        check_count(
            f"pixels of {images} {what} of {height} x {width}", images * height * width, limit
        )
    for axis, size, out, stride, pad, reach in (
        ("high", in_size[0], out_size[0], config.stride_h, config.pad_h, config.effective_kernel_h),
        ("wide", in_size[1], out_size[1], config.stride_w, config.pad_w, config.effective_kernel_w),
    ):
        # Pixels that do not exist are a stride before EXTENT at most; see `PixelTable`.
        needed = max(size + pad + stride, (out - 1) * stride + reach)
        if needed >= EXTENT:
            raise ValueError(
                f"images of {in_size[0]} x {in_size[1]} and outputs of {out_size[0]} x "
                f"{out_size[1]} take {needed} pixels {axis}, with strides, padding and dilation: "
                "less than 2**30 are expected"
            )


def check_count(what: str, count: int, limit: int) -> None:
    """Raises ValueError if there are more than `limit`, a power of two."""
    if count > limit:
        raise ValueError(
            f"{count} {what}: one launch takes 2**{limit.bit_length() - 1} at most; split the "
            "batch, or the images"
        )
