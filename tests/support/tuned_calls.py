"""Calls whose kernels are tuned."""

import oxijax
from oxijax._core.calls.kernel_call import KernelCall
from oxijax._core.calls.tuned_plans import TunedPlans
from oxijax._core.calls.variations import variations
from ptx.isa.dtypes import bf16, f32
from ptx.isa.targets import TARGETS
from ptx.kernels import conv, deform_conv
from ptx.kernels.gemm import GEMM, choose

__all__ = [
    "FILE", "GPU", "layer_call", "product_call", "text_of", "window_call",
]  # fmt: skip

GPU = "Fake H100 80GB"
FILE = f"tuning-Fake-H100-80GB-{oxijax.__version__}.json"


def layer_call(outputs=32, gpu=GPU) -> KernelCall:
    """A call whose plan holds a class, as SamplePlan does."""
    config = deform_conv.DeformConvConfig(64, outputs, float_type=bf16)
    sizes = {"n": 1, "h": 8, "w": 8, "p": 8, "q": 8}
    shapes = tuple(deform_conv.FORWARD.shapes(config, sizes).values())
    return KernelCall(gpu, TARGETS["sm_90"], deform_conv.FORWARD, config, shapes)


def product_call(gpu=GPU) -> KernelCall:
    config = choose(300, 24, 32, float_type=f32, strategy="shallow_k")
    shapes = tuple(GEMM.shapes(config, {"g": 1, "r": 300}).values())
    return KernelCall(gpu, TARGETS["sm_90"], GEMM, config, shapes)


def window_call(gpu=GPU) -> KernelCall:
    config = conv.ConvConfig(16, 24, float_type=f32)
    sizes = {"n": 1, "h": 8, "w": 8, "p": 8, "q": 8, "s": 2}
    shapes = tuple(conv.BACKWARD_WEIGHT.shapes(config, sizes).values())
    return KernelCall(gpu, TARGETS["sm_90"], conv.BACKWARD_WEIGHT, config, shapes)


def text_of(*calls: KernelCall, choice: int = 1) -> str:
    """What `dumps` says where each call has one of its variations."""
    source = TunedPlans()
    source._plans = {call: variations(call)[choice] for call in calls}
    return source.dumps()
