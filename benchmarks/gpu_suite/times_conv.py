"""Section times-conv: conv's kernels against XLA's own convolution, which is cuDNN's.

Forward, and each backward pass alone.
"""

import functools

import oxijax
from gpu_suite.conv_layers import has_few_channels, layers, operands, work, xla_conv
from gpu_suite.jax_jobs import forward, gradients_of
from gpu_suite.layers import LAUNCH_FLOOR
from gpu_suite.recorder import Recorder
from gpu_suite.times_against_xla import Family
from gpu_suite.times_against_xla import run as run_family
from oxijax.testing import ConvCase

__all__ = ["run"]


def run(recorder: Recorder) -> None:
    family = Family(
        layers=list(layers(recorder.mode.tiny).values()),
        few_pixels=ConvCase(LAUNCH_FLOOR, (1, 4, 4, 32), 32, bias=False),
        is_small=has_few_channels,
        operands=operands,
        work=work,
        ours=lambda case: functools.partial(oxijax.conv, **case.options),
        xla=lambda case: xla_conv(case, case.pads),
        operations={
            "forward": forward,
            "backward_input": lambda function: gradients_of(function, [0]),
            "backward_weight": lambda function: gradients_of(function, [1]),
        },
    )
    run_family(recorder, family, ["bfloat16"] if recorder.mode.tiny else ["bfloat16", "float32"])
