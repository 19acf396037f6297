"""Results of PyTorch's code for the sampling operators in float64, and a formula of samples.

Multi-scale deformable attention and DCNv3 are of the pure-PyTorch cores of Deformable DETR and
InternImage, `grid_sample` of PyTorch 2.13; `map_coordinates` is SciPy's, `roi_align` torchvision's.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

import oxijax
from support.paths import DATA

__all__ = ["RECORDED", "Recorded", "bilinear", "recorded", "recorded_names"]


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A recorded call.

    Attributes:
      function: the public function.
      arrays: its operands, by name.
      options: its other arguments.
      grad_y: the gradient of its result.
      results: "y", and the gradients "d..." by the operands' names.
    """

    function: Callable[..., jax.Array]
    arrays: Mapping[str, np.ndarray]
    options: Mapping[str, Any]
    grad_y: np.ndarray
    results: Mapping[str, np.ndarray]


def recorded(name: str) -> Recorded:
    """The call of a name such as "msda-7"."""
    family, index = name.split("-")
    with np.load(DATA / f"{family}.npz") as data:
        start = f"case{index}/"
        case = {key[len(start) :]: data[key] for key in data.files if key.startswith(start)}
    return RECORDED[family](case)


def recorded_names(family: str) -> list[str]:
    """The names of all calls of a family."""
    with np.load(DATA / f"{family}.npz") as data:
        count = len({key.split("/")[0] for key in data.files})
    return [f"{family}-{i}" for i in range(count)]


def _msda(case: Mapping[str, np.ndarray]) -> Recorded:
    names = {"value": "value", "sampling_locations": "locations", "attention_weights": "weights"}
    shape = *case["locations"].shape[:3], case["value"].shape[3]
    return Recorded(
        oxijax.ms_deform_attn,
        {name: case[key] for name, key in names.items()},
        {"spatial_shapes": tuple(map(tuple, case["shapes"].tolist()))},
        case["grad_y"].reshape(shape),
        {
            "y": case["y"].reshape(shape),
            **{f"d{name}": case[f"d{key}"] for name, key in names.items()},
        },
    )


def _dcnv3(case: Mapping[str, np.ndarray]) -> Recorded:
    kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w, groups, _, no = (
        map(int, case["config"])
    )
    return Recorded(
        oxijax.dcnv3,
        {name: case[name] for name in ("x", "offset", "mask")},
        {
            "kernel_size": (kernel_h, kernel_w),
            "strides": (stride_h, stride_w),
            "padding": ((pad_h, pad_h), (pad_w, pad_w)),
            "dilation": (dilation_h, dilation_w),
            "groups": groups,
            "offset_scale": float(case["offset_scale"]),
            "remove_center": bool(no),
        },
        case["grad_y"].reshape(case["y"].shape),
        {name: case[name] for name in ("y", "dx", "doffset", "dmask")},
    )


def _grid_sample(case: Mapping[str, np.ndarray]) -> Recorded:
    method, padding_mode, align_corners, *data_format = case["config"].tolist()
    return Recorded(
        oxijax.grid_sample,
        {name: case[name] for name in ("x", "grid")},
        {
            "method": method,
            "padding_mode": padding_mode,
            "align_corners": align_corners == "1",
            **({"data_format": data_format[0]} if data_format else {}),
        },
        case["grad_y"],
        {name: case[name] for name in ("y", "dx", "dgrid")},
    )


def _map_coordinates(case: Mapping[str, np.ndarray]) -> Recorded:
    mode, order, cval = case["config"].tolist()
    options = {"order": int(order), "mode": mode, "cval": float(cval)}
    return Recorded(
        oxijax.map_coordinates,
        {"input": case["input"]},
        {"coordinates": case["coordinates"], **options},
        case["grad_y"],
        {name: case[name] for name in ("y", "dinput")},
    )


def _roi_align(case: Mapping[str, np.ndarray]) -> Recorded:
    height, width, scale, ratio, aligned = case["config"].tolist()
    last = {name: np.moveaxis(case[name], 1, -1) for name in ("x", "y", "grad_y", "dx")}
    options = {
        "boxes": case["boxes"],
        "output_size": (int(height), int(width)),
        "spatial_scale": float(scale),
        "sampling_ratio": int(ratio),
        "aligned": aligned == "1",
    }
    results = {name: last[name] for name in ("y", "dx")}
    return Recorded(oxijax.roi_align, {"x": last["x"]}, options, last["grad_y"], results)


RECORDED = {
    "msda": _msda,
    "dcnv3": _dcnv3,
    "grid_sample": _grid_sample,
    "grids": _grid_sample,
    "map_coordinates": _map_coordinates,
    "roi_align": _roi_align,
}


def bilinear(image: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Samples of an image [H, W, D] at points [...]: each pixel counts as far as it is near."""
    height, width = image.shape[:2]
    rows = np.maximum(0, 1 - np.abs(y[..., None] - np.arange(height)))
    columns = np.maximum(0, 1 - np.abs(x[..., None] - np.arange(width)))
    return np.einsum("...h,hwd,...w->...d", rows, image, columns)
