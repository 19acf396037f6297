"""Section times-xla: the same layers as plain convolutions, and deform_conv as an XLA program.

A convolution reads its image at the grid, so that it does far less than a deformable one; it is
cuDNN's, or what XLA takes for it. The XLA program is what `deform_conv` is where there are no
kernels: gathers and products, with gradients written by hand.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from gpu_suite.jax_jobs import Job, check_device, forward_backward, measure
from gpu_suite.layers import DTYPES, layers, set_count
from gpu_suite.recorder import Recorder
from oxijax import _deform_conv_reference as kernels
from oxijax._arguments import read_padding, read_precision
from oxijax.testing import DeformConvCase

__all__ = ["run"]


def run(recorder: Recorder) -> None:
    check_device(recorder)
    recorder.put("layers", value=list(layers(recorder.dry_run)))
    cases = list(layers(recorder.dry_run).values())
    if recorder.dry_run:
        job = _jobs(cases[0], "float16", True)
        measure(recorder, job)
        return
    for dtype in DTYPES:
        jobs = [job for case in cases for job in _jobs(case, dtype)]
        measure(recorder, [job for job in jobs if job.operation.startswith("conv")])
        measure(recorder, [job for job in jobs if not job.operation.startswith("conv")])


def _jobs(case: DeformConvCase, dtype: str, dry_run: bool = False) -> list[Job]:
    sets = set_count(case, dtype, dry_run)
    conv, (forward, both) = _conv(case), _xla(case)
    named = case.name, dtype
    return [
        Job(*named, "conv_forward", case, lambda *a: conv(*a[:5]), sets),
        Job(*named, "conv_forward_backward", case, forward_backward(conv), sets),
        # Slow, and with large temporaries: two sets are more than an L2 here.
        Job(*named, "xla_forward", case, forward, 2, may_lack_memory=True),
        Job(*named, "xla_forward_backward", case, both, 2, may_lack_memory=True),
    ]


def _conv(case: DeformConvCase) -> Callable:
    def conv(x, offset, weight, mask, bias):
        y = jax.lax.conv_general_dilated(
            x,
            weight,
            case.strides,
            case.padding,  # pyright: ignore[reportArgumentType]
            rhs_dilation=case.dilation,
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=case.groups,
        )
        return y if bias is None else y + bias

    return conv


def _xla(case: DeformConvCase) -> tuple[Callable, Callable]:
    """Forward, and forward with all gradients."""
    image = case.x[1], case.x[2]
    config = kernels.DeformConvConfig(
        image_size=image,
        kernel_size=case.kernel_size,
        strides=case.strides,
        padding=read_padding(case.padding, image, case.kernel_size, case.strides, case.dilation),
        dilation=case.dilation,
        groups=case.groups,
        precision=read_precision(None),
    )

    def forward(x, offset, weight, mask, bias, grad_y):
        return kernels.forward(config, x, offset, weight, mask, bias)

    def both(x, offset, weight, mask, bias, grad_y):
        y = kernels.forward(config, x, offset, weight, mask, bias)
        grad_x = kernels.backward_input(config, offset, weight, mask, grad_y)
        grad_offset = kernels.backward_offset(config, x, offset, weight, mask, grad_y)
        grad_weight = kernels.backward_weight(config, x, offset, mask, grad_y)
        grad_bias = jnp.sum(grad_y, axis=(0, 1, 2), dtype=jnp.float32).astype(grad_y.dtype)
        return y, grad_x, grad_offset, grad_weight, grad_bias

    return forward, both
