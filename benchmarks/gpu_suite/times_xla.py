"""Section times-xla: the same layers as plain convolutions, and deform_conv as an XLA program.

A convolution reads its image at the grid, so that it does far less than a deformable one; it is
cuDNN's, or what XLA takes for it. The XLA program is what `deform_conv` is where there are no
kernels: gathers and products, with gradients written by hand.
"""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp

from gpu_suite.conv_layers import xla_conv
from gpu_suite.deform_conv_layers import layers, operands, trains, work
from gpu_suite.jax_jobs import Job, Operands, check_device, forward, forward_backward, measure
from gpu_suite.layers import DTYPES, set_count
from gpu_suite.recorder import Recorder
from oxijax._convolution import conv_params, parse_padding
from oxijax._core.arguments.precision import parse_precision
from oxijax._deform_conv import reference as kernels
from oxijax.testing import DeformConvCase
from ptx.kernels.deform_conv import DeformConvConfig

__all__ = ["run"]


def run(recorder: Recorder) -> None:
    check_device(recorder)
    recorder.put("layers", value=list(layers(recorder.mode.tiny)))
    cases = list(layers(recorder.mode.tiny).values())
    if recorder.mode.tiny:
        job = _jobs(cases[0], "float16", True)
        measure(recorder, job)
        return
    for dtype in DTYPES:
        jobs = [job for case in cases for job in _jobs(case, dtype)]
        measure(recorder, [job for job in jobs if job.operation.startswith("conv")])
        measure(recorder, [job for job in jobs if not job.operation.startswith("conv")])


def _jobs(case: DeformConvCase, dtype: str, tiny: bool = False) -> list[Job]:
    given = Operands(operands, case, dtype, set_count(work(case, "forward", dtype), tiny))
    few = dataclasses.replace(given, sets=2)  # with large temporaries two are more than an L2
    conv, (xla_forward, xla_both) = _conv(case), _xla(case)
    jobs = [
        Job(case.name, "conv_forward", given, forward(conv)),
        Job(case.name, "conv_forward_backward", given, forward_backward(conv)),
        Job(case.name, "xla_forward", few, xla_forward, may_lack_memory=True),
        Job(case.name, "xla_forward_backward", few, xla_both, may_lack_memory=True),
    ]
    return [job for job in jobs if job.operation.endswith("_forward") or trains(case)]


def _conv(case: DeformConvCase) -> Callable:
    """The plain convolution, of deform_conv's operands."""
    function = xla_conv(case, case.padding)
    return lambda x, offset, weight, mask, bias: function(x, weight, bias)


def _xla(case: DeformConvCase) -> tuple[Callable, Callable]:
    """Forward, and forward with all gradients."""
    image = case.x[1], case.x[2]
    padding = parse_padding(case.padding, image, case.kernel_size, case.strides, case.dilation)

    def params_of(x, weight):
        return conv_params(
            DeformConvConfig, x, weight, strides=case.strides, padding=padding,
            dilation=case.dilation, output_size=case.out_size, precision=parse_precision(None),
        )  # fmt: skip

    def forward(x, offset, weight, mask, bias, grad_y):
        return kernels.forward(params_of(x, weight), x, offset, weight, mask, bias)

    def both(x, offset, weight, mask, bias, grad_y):
        params = params_of(x, weight)
        y = kernels.forward(params, x, offset, weight, mask, bias)
        grad_x = kernels.backward_input(params, offset, weight, mask, grad_y)
        grad_offset = kernels.backward_offset(params, x, offset, weight, mask, grad_y)
        (grad_weight,) = kernels.backward_weight(params, x, offset, mask, grad_y)
        grads = (grad_x, grad_offset, grad_weight.astype(x.dtype))
        if bias is not None:
            grad_bias = jnp.sum(grad_y, axis=(0, 1, 2), dtype=jnp.float32).astype(grad_y.dtype)
            grads = (*grads, grad_bias)
        return y, grads

    return forward, both
