"""Records `tests/data/deform_conv_layers.npz`: deformable convolutions of PyTorch's libraries."""

# pyright: reportMissingImports=false
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from support.paths import DATA
from torchvision.ops import DeformConv2d

from recording import deform_conv_modules as modules
from recording.files import record, run

BATCH, SIZE = 2, (7, 8)
KINDS = {
    kind.__name__: kind
    for kind in (
        DeformConv2d,
        modules.DeformConv2dPack,
        modules.ModulatedDeformConv2dPack,
        modules.SecondOrderDeformableAlignment,
        modules.DeformableConv2d,
        modules.ASPPDeformable,
    )
}


def sizes(in_channels: int, out_channels: int, kernel_size: Any) -> dict[str, Any]:
    return {"in_channels": in_channels, "out_channels": out_channels, "kernel_size": kernel_size}


# What torchvision's own test of the operator, TestDeformConv, has.
SUITE = sizes(6, 2, [3, 2]) | {
    "stride": [2, 1], "padding": [1, 0], "dilation": [2, 1], "groups": 2, "offset_groups": 3,
    "batch": 33, "size": [5, 4],
}  # fmt: skip
# The arguments of each module, by kind and name. Inputs follow from them, but for torchvision's
# module, which is told its offsets: `OF_INPUTS` are no arguments of it.
OF_INPUTS = ("offset_groups", "mask", "batch", "size")
CASES: dict[str, dict[str, Any]] = {
    "DeformConv2d/offsets": sizes(4, 6, 3) | {"padding": 1},
    "DeformConv2d/modulated": sizes(4, 6, 3) | {"padding": 1, "mask": True},
    "DeformConv2d/groups": sizes(8, 6, 3) | {"padding": 1, "groups": 2, "offset_groups": 4},
    "DeformConv2d/strides": sizes(4, 6, 3)
    | {"stride": 2, "padding": 2, "dilation": 2, "bias": False, "offset_groups": 2, "mask": True},
    "DeformConv2d/rectangle": sizes(4, 2, [3, 2])
    | {"stride": [1, 2], "padding": [1, 0], "dilation": [2, 1]}
    | {"groups": 2, "mask": True},
    "DeformConv2d/suite": SUITE,
    "DeformConv2d/suite-modulated": SUITE | {"mask": True},
    "DeformConv2dPack/plain": sizes(4, 6, 3) | {"padding": 1},
    "DeformConv2dPack/groups": sizes(8, 4, 3)
    | {"stride": 2, "padding": 2, "dilation": 2, "groups": 2, "deform_groups": 4},
    "ModulatedDeformConv2dPack/plain": sizes(4, 6, 3) | {"padding": 1},
    "ModulatedDeformConv2dPack/groups": sizes(8, 4, 3)
    | {"stride": 2, "padding": 1, "groups": 4, "deform_groups": 2, "bias": False},
    "SecondOrderDeformableAlignment/plain": sizes(8, 4, 3) | {"padding": 1, "deform_groups": 4},
    "SecondOrderDeformableAlignment/near": sizes(4, 2, 3)
    | {"padding": 1, "deform_groups": 2, "max_residue_magnitude": 3},
    "DeformableConv2d/1": sizes(4, 6, 1) | {"padding": 0},
    "DeformableConv2d/3": sizes(4, 6, 3) | {"stride": 2},
    "DeformableConv2d/7": sizes(3, 2, 7) | {"padding": 3},
    "ASPPDeformable/plain": {"in_channels": 4, "out_channels": 3, "planes": 5},
}  # fmt: skip


def inputs_of(case: str, config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Random inputs of a module, by the names of its arguments."""
    random = np.random.default_rng(zlib.crc32(case.encode()) + 1)

    batch, whole = config.get("batch", BATCH), tuple(config.get("size", SIZE))

    def images(channels: int, size: tuple[int, ...] = whole, scale: float = 1) -> np.ndarray:
        values = scale * random.standard_normal((batch, channels, *size))
        return values.astype(np.float32)

    x, kind = images(config["in_channels"]), case.split("/")[0]
    if kind == "SecondOrderDeformableAlignment":
        features = images(3 * config["out_channels"])
        flows = {name: images(2, scale=2) for name in ("flow_1", "flow_2")}
        return {"x": x, "extra_feat": features, **flows}
    if kind != "DeformConv2d":
        return {"x": x}
    kernel, stride, padding, dilation = (
        np.broadcast_to(config.get(name, default), 2)
        for name, default in (("kernel_size", 1), ("stride", 1), ("padding", 0), ("dilation", 1))
    )
    output = (np.array(whole) + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    samples = config.get("offset_groups", 1) * int(kernel.prod())
    inputs = {"input": x, "offset": images(2 * samples, tuple(output), 1.5)}
    if config.get("mask"):
        inputs["mask"] = random.random((batch, samples, *output), np.float32)
    return inputs


def make() -> dict[str, np.ndarray]:
    arrays = {}
    for case, config in CASES.items():
        options = {k: v for k, v in config.items() if k not in OF_INPUTS}
        options |= {k: tuple(v) for k, v in options.items() if isinstance(v, list)}
        weights = ("weight", "bias") if "suite" in case else ()
        kind, inputs = KINDS[case.split("/")[0]], inputs_of(case, config)
        arrays |= record(case, kind, options, inputs, weights=weights)
    return arrays


if __name__ == "__main__":
    run("deform_conv_layers.npz", make, DATA)
