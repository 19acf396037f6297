"""Section times-torch: torchvision.ops.deform_conv2d on the same layers, by CUDA events.

NCHW and contiguous, as the operator wants it. It has float16 and float32 but no bfloat16; products
in float32 may be TF32's, as oxijax's are.
"""

# pyright: reportMissingImports=false
import math
from typing import Any

from gpu_suite.cuda_events import time_calls
from gpu_suite.deform_conv_layers import layers, trains, work
from gpu_suite.layers import set_count
from gpu_suite.recorder import Recorder
from oxijax.testing import DeformConvCase
from ptx.kernels.layer_model import OFFSET_DEVIATION

__all__ = ["run"]

_DTYPES = ("float16", "float32")
_LEAST_SECONDS = 3.0  # with less left nothing more is started


def run(recorder: Recorder) -> None:
    problem = _missing()
    if problem:
        recorder.put("not_measured", value=problem)
        if not recorder.mode.tiny:
            recorder.fail("torchvision", problem)
        return
    if recorder.mode.tiny:
        recorder.put("not_measured", value=f"not in this mode: {recorder.mode.value}")
        return
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    recorder.put("device", value=torch.cuda.get_device_name(0))
    for dtype in _DTYPES:
        for case in layers(recorder.mode.tiny).values():
            if recorder.left() < _LEAST_SECONDS:
                recorder.cut(f"torchvision {case.name} {dtype}")
                continue
            try:
                _measure_layer(recorder, case, dtype)
            except Exception as error:
                recorder.fail(
                    f"torchvision {case.name} {dtype}", f"{type(error).__name__}: {error}"
                )
            torch.cuda.empty_cache()


def _missing() -> str:
    """Why nothing can be measured; empty if it can."""
    try:
        import torch
        import torchvision  # noqa: F401
    except Exception as error:  # ModuleNotFoundError, or libraries that do not fit
        return f"no torch with torchvision: {type(error).__name__}: {error}"
    return "" if torch.cuda.is_available() else "torch sees no CUDA GPU"


def _measure_layer(recorder: Recorder, case: DeformConvCase, dtype: str) -> None:
    import torch
    from torchvision.ops import deform_conv2d

    sets = _operands(case, dtype, set_count(work(case, "forward", dtype), tiny=False))
    sizes = case.dilation, case.kernel_size
    geometry: dict[str, Any] = {
        "stride": case.strides,
        "padding": tuple(d * (k - 1) // 2 for d, k in zip(*sizes, strict=True)),
        "dilation": case.dilation,
    }

    def forward(x, offset, weight, mask, bias, grad_y):
        with torch.no_grad():
            return deform_conv2d(x, offset, weight, bias, mask=mask, **geometry)

    def both(x, offset, weight, mask, bias, grad_y):
        y = deform_conv2d(x, offset, weight, bias, mask=mask, **geometry)
        inputs = [v for v in (x, offset, weight, mask, bias) if v is not None]
        return y, torch.autograd.grad(y, inputs, grad_y)

    shape = tuple(forward(*sets[0]).shape)
    n, height, width, channels = case.y
    assert shape == (n, channels, height, width), f"torchvision's output has shape {shape}"
    for name, function in (("forward", forward), ("forward_backward", both)):
        if name == "forward_backward" and not trains(case):
            continue
        found = time_calls(function, sets)
        recorder.put("times", case.name, dtype, name, value=found)


def _operands(case: DeformConvCase, dtype: str, count: int) -> list[tuple]:
    """Sets like `deform_conv_layers.operands`, in torchvision's layouts."""
    import torch

    n, height, width, channels = case.x
    _, out_height, out_width, out_channels = case.y
    samples = math.prod(case.kernel_size) * case.offset_groups
    in_group = channels // case.groups
    fan_in = math.prod(case.kernel_size) * in_group
    torch.manual_seed(0)

    def normal(*shape: int, scale: float = 1.0):
        values = torch.randn(shape, device="cuda") * scale
        return values.to(getattr(torch, dtype)).requires_grad_()

    def one():
        pixels = out_height, out_width
        mask = normal(n, samples, *pixels).detach().abs().requires_grad_() if case.mask else None
        return (
            normal(n, channels, height, width),
            normal(n, 2 * samples, *pixels, scale=OFFSET_DEVIATION),
            normal(out_channels, in_group, *case.kernel_size, scale=fan_in**-0.5),
            mask,
            normal(out_channels) if case.bias else None,
            normal(n, out_channels, *pixels).detach(),
        )

    return [one() for _ in range(count)]
