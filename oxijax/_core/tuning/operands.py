"""Operands to time a kernel on: random ones, on which it does what it does in a network."""

import math

import numpy as np

from oxijax._core.arguments.precision import numpy_dtype
from oxijax._core.calls.kernel_call import KernelCall
from ptx.kernels.layer_model import OFFSET_DEVIATION

__all__ = ["random_operands"]

_SPREAD = {"offset": OFFSET_DEVIATION}  # standard deviation; else 1
_DISTINCT = 1_000_003  # values of an array, then the same again: no multiple of an image's size


def random_operands(call: KernelCall) -> dict[str, np.ndarray]:
    """The operands of a call as they lie in memory, by name, initial values of results included.

    Floating-point values are normal. Lists of samples (`starts` and `order`, see
    `ptx.kernels.deform_conv.backward_input_gather`) are those of samples that are spread evenly.
    """
    random, operands = np.random.default_rng(0), {}
    for name, parameter in call.kernel.operands(call.config).items():
        shape, dtype = call.instance.shapes[name], numpy_dtype(parameter.dtype_of(call.config))
        if dtype.kind in "iu":
            operands[name] = _list(name, shape, call).astype(dtype)
            continue
        size = min(math.prod(shape), _DISTINCT)
        values = _SPREAD.get(name, 1.0) * random.standard_normal(size, np.float32)
        operands[name] = np.resize(values.astype(dtype), shape)
    return operands


def _list(name: str, shape: tuple[int, ...], call: KernelCall) -> np.ndarray:
    """A list in the last dimension: where each cell's samples start, or the samples themselves."""
    last = shape[-1]
    if name == "starts":
        samples = call.instance.sizes["s"]
        return np.broadcast_to(np.arange(last) * samples // max(1, last - 1), shape)
    return np.broadcast_to(np.arange(last), shape)
