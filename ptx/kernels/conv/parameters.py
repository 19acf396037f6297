"""What the three kernels of a convolution have in common: the dimensions of their arrays."""

from __future__ import annotations

from ptx.kernels.conv.config import ConvConfig

__all__ = ["WEIGHT", "X", "Y", "known_sizes"]

# The dimensions of arrays: images n of h x w pixels and c channels; output pixels p x q and output
# channels o; taps i x j and input channels e of a group.
X, WEIGHT, Y = "n h w c", "i j e o", "n p q o"


def known_sizes(config: ConvConfig) -> dict[str, int]:
    """The sizes of those dimensions that a configuration knows."""
    return {
        "c": config.in_channels,
        "i": config.kernel_h,
        "j": config.kernel_w,
        "e": config.in_channels_per_group,
        "o": config.out_channels,
    }
