"""GridSample and RoiAlign of ONNX, run by `oxijax.grid_sample` and `oxijax.roi_align`."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from oxijax._core.arguments import checks
from oxijax._sampling import grid_sample as _grid_sample
from oxijax._sampling import roi_align as _roi_align

__all__ = ["grid_sample", "roi_align"]

_METHODS = {
    **{"linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest"},
    **{"cubic": "bicubic", "bicubic": "bicubic"},
}
_ALIGNED = {"half_pixel": True, "output_half_pixel": False}


def grid_sample(
    X: ArrayLike,  # noqa: N803
    grid: ArrayLike,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> jax.Array:
    """`oxijax.grid_sample` with the inputs and the attributes of ONNX's GridSample.

    Args:
      X: images [N, C, W], [N, C, H, W] or [N, C, D, H, W]; float16, bfloat16, float32 or float64.
      grid: positions [N, ..., K] for images of K dimensions, in (x), (x, y) or (x, y, z).
      align_corners: whether -1 and 1 are the middles of the first and the last pixel, not the
        image's borders; 0 or 1.
      mode: "linear", "nearest" or "cubic", or opset 16's "bilinear" and "bicubic". Volumes have no
        "cubic".
      padding_mode: "zeros", "border" or "reflection".

    Returns:
      Y [N, C, ...], in X's dtype. It is computed, and differentiated, as `oxijax.grid_sample` says.

    Raises:
      ValueError: a shape or an attribute that does not fit, by ONNX's name.
      TypeError: an input of the wrong type or dtype, by ONNX's name.

    Source: GridSample of opsets 16 to 22, https://onnx.ai/onnx/operators/onnx__GridSample.html.
    """
    x = checks.as_float_array("X", X)
    if x.ndim not in (3, 4, 5):
        raise ValueError(f"X must have 3, 4 or 5 dimensions, got shape {x.shape}")
    grid = checks.as_array("grid", grid, x.ndim)
    if mode not in _METHODS or (_METHODS[mode] == "bicubic" and x.ndim == 5):
        names = [n for n, method in _METHODS.items() if x.ndim < 5 or method != "bicubic"]
        raise ValueError(
            f"mode must be one of {', '.join(map(repr, names))} for X of {x.ndim} dimensions, got "
            f"{checks.shown(mode)}"
        )
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(
            "padding_mode must be 'zeros', 'border' or 'reflection', got "
            f"{checks.shown(padding_mode)}"
        )
    names = ("N", *("oD", "oH", "oW")[5 - x.ndim :], "K")
    checks.check_shape("grid", grid, names, (x.shape[0], *grid.shape[1:-1], x.ndim - 2))
    return _grid_sample.grid_sample(
        *(x, grid),
        method=_METHODS[mode],
        padding_mode=padding_mode,
        align_corners=_flag("align_corners", align_corners),
        data_format="NC" + "DHW"[5 - x.ndim :],
    )


def roi_align(
    X: ArrayLike,  # noqa: N803
    rois: ArrayLike,
    batch_indices: ArrayLike,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> jax.Array:
    """`oxijax.roi_align` with the inputs and the attributes of ONNX's RoiAlign.

    Args:
      X: images [N, C, H, W]; float16, bfloat16, float32 or float64.
      rois: boxes [K, 4], as (x1, y1, x2, y2). With `sampling_ratio` 0 they must not be traced.
      batch_indices: the number of the image of each box, integers [K].
      coordinate_transformation_mode: "half_pixel", or "output_half_pixel", which opsets before 16
        mean.
      mode: "avg". "max" is refused: oxijax has means alone.
      output_height: the bins of a box from top to bottom.
      output_width: those from left to right.
      sampling_ratio: samples in a bin along each axis; 0 for as many as a bin has pixels.
      spatial_scale: the pixels of X in one of the units that rois have.

    Returns:
      Y [K, C, output_height, output_width], in X's dtype, as `oxijax.roi_align` says.

    Raises:
      ValueError: a shape or an attribute that does not fit, by ONNX's name.
      TypeError: an input or an attribute of the wrong type or dtype, by ONNX's name.

    Source: RoiAlign of opsets 10 to 22, https://onnx.ai/onnx/operators/onnx__RoiAlign.html.
    """
    x, rois = checks.as_array("X", X, 4), checks.as_array("rois", rois, 2)
    numbers = jnp.asarray(batch_indices)
    checks.check_shape("rois", rois, ("K", "4"), (rois.shape[0], 4))
    checks.check_shape("batch_indices", numbers, ("K",), rois.shape[:1])
    if not jnp.issubdtype(numbers.dtype, jnp.integer):
        raise TypeError(f"batch_indices must be of integers, got {numbers.dtype}")
    if coordinate_transformation_mode not in _ALIGNED:
        raise ValueError(
            "coordinate_transformation_mode must be 'half_pixel' or 'output_half_pixel', got "
            f"{checks.shown(coordinate_transformation_mode)}"
        )
    if mode != "avg":
        raise ValueError(f"mode must be 'avg', which is all that oxijax has, got {mode!r}")
    size = tuple(
        checks.parse_int(name, value)
        for name, value in (("output_height", output_height), ("output_width", output_width))
    )
    boxes = jnp.concatenate([numbers[:, None].astype(rois.dtype), rois], axis=1)
    y = _roi_align.roi_align(
        *(jnp.moveaxis(x, 1, -1), boxes),
        output_size=(size[0], size[1]),
        spatial_scale=spatial_scale,
        sampling_ratio=sampling_ratio,
        aligned=_ALIGNED[coordinate_transformation_mode],
    )
    return jnp.moveaxis(y, -1, 1)


def _flag(name: str, value: int) -> bool:
    if value not in (0, 1):
        raise ValueError(f"{name} must be 0 or 1, got {checks.shown(value)}")
    return bool(value)
