"""Layers of published networks, whose times are modelled and measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

__all__ = ["NetworkLayer", "distinct_configs"]


@dataclasses.dataclass(frozen=True)
class NetworkLayer:
    """A layer of a published network, and an input that it has there.

    Attributes:
      config: the layer's configuration, but for the dtype.
      extent: the input's extent: of a convolution the number of images, their height and width; of
        a weighted sum of samples the numbers of images and queries.
      network: the network, and what its own input is.
      source: the paper, or the file of a public repository, that has the sizes.
      trains: whether the network trains on such inputs; else it has a forward pass alone.
    """

    config: Any
    extent: tuple[int, ...]
    network: str
    source: str
    trains: bool = True


def distinct_configs(layers: Mapping[str, NetworkLayer]) -> dict[str, Any]:
    """The configurations of layers, each by the name of the first layer that has it."""
    names: dict[Any, str] = {}
    for name, layer in layers.items():
        names.setdefault(layer.config, name)
    return {name: config for config, name in names.items()}
