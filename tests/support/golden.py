"""Recorded arguments, results and gradients of torchvision's own operator, in float64."""

from typing import Any

import numpy as np

from support.paths import DATA

__all__ = ["GOLDEN", "golden"]

GOLDEN = [("small", i) for i in range(60)] + [("wide", i) for i in range(8)]


def golden(file: str, index: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arguments, options and results of torchvision's operator, NCHW, computed in float64."""
    with np.load(DATA / f"deform_conv_{file}.npz") as data:
        case = {
            key.split("/")[1]: data[key] for key in data.files if key.startswith(f"case{index}/")
        }
    stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w = map(int, case.pop("config"))
    options = {
        "strides": (stride_h, stride_w),
        "padding": ((pad_h, pad_h), (pad_w, pad_w)),
        "dilation": (dilation_h, dilation_w),
    }
    return case, options
