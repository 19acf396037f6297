"""Section times-sampling: the sampling operators' kernels against four gathers in plain JAX.

Forward, and each backward pass alone.
"""

from gpu_suite.jax_jobs import forward, gradients_of
from gpu_suite.layers import LAUNCH_FLOOR
from gpu_suite.recorder import Recorder
from gpu_suite.sampling_layers import SamplingLayer, layers, operands, work
from gpu_suite.times_against_xla import Family
from gpu_suite.times_against_xla import run as run_family

__all__ = ["run"]


def run(recorder: Recorder) -> None:
    family = Family(
        layers=layers(recorder.mode.tiny),
        few_pixels=SamplingLayer(LAUNCH_FLOOR, 1, ((4, 4),), 2, 8, 4, 4),
        is_small=lambda layer: False,
        operands=operands,
        work=work,
        ours=lambda layer: layer.ours,
        xla=lambda layer: layer.plain,
        operations={
            "forward": forward,
            "backward_value": lambda function: gradients_of(function, [0]),
            "backward_points": lambda function: gradients_of(function, [1, 2]),
        },
        xla_products=0,
    )
    run_family(recorder, family, ["bfloat16"] if recorder.mode.tiny else ["bfloat16", "float32"])
