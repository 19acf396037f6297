"""Sizes of others' launches."""

from gpu_suite.sampling_layers import SamplingLayer

__all__ = ["threads_of_dcnv4", "window"]


def window(layer: SamplingLayer) -> tuple[int, int, int, int, int]:
    """Images, height, width, groups, and channels of a group, of a layer of windows."""
    ((height, width),) = layer.levels
    return layer.images, height, width, layer.heads, layer.channels


def threads_of_dcnv4(layer: SamplingLayer, *, back: bool) -> tuple[int, int]:
    """Channels of a thread, and threads of a block, by the rule of DCNv4's Python code.

    That rule lets blocks go across images; these do not. It is for groups of under 64 channels.
    """
    channels, limit = (1, 256) if back else (8, 512)
    _, height, width, groups, of_group = window(layer)
    of_pixel = groups * of_group // channels
    fitting = (n for n in range(1, 65) if height * width % n == 0 and n * of_pixel <= limit)
    return channels, max(fitting) * of_pixel
