"""What the three kernels of a convolution have in common: names and sizes of their parameters."""

from __future__ import annotations

from ptx.kernel import Size
from ptx.kernels.conv.config import ConvConfig

__all__ = ["GEOMETRY", "WEIGHT", "X", "Y", "known_sizes"]

# The dimensions of arrays: images n of h x w pixels and c channels; output pixels p x q and output
# channels o; taps i x j and input channels e of a group.
X, WEIGHT, Y = "n h w c", "i j e o", "n p q o"

GEOMETRY = (
    Size("batch_size", lambda instance: instance.sizes["n"]),
    Size("in_h", lambda instance: instance.sizes["h"]),
    Size("in_w", lambda instance: instance.sizes["w"]),
    Size("out_h", lambda instance: instance.sizes["p"]),
    Size("out_w", lambda instance: instance.sizes["q"]),
)


def known_sizes(config: ConvConfig) -> dict[str, int]:
    """The sizes of those dimensions that a configuration knows."""
    return {
        "c": config.in_channels,
        "i": config.kernel_h,
        "j": config.kernel_w,
        "e": config.in_channels_per_group,
        "o": config.out_channels,
    }
