"""Others' operators as functions of PyTorch's tensors."""

# pyright: reportMissingImports=false
import ctypes
import dataclasses
import importlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from gpu_suite.peers.sizes import threads_of_dcnv4, window
from gpu_suite.peers.sources import compile_kernels
from gpu_suite.sampling_layers import SamplingLayer

__all__ = ["PEERS", "Calls", "Peer"]

Tensors = tuple[Any, ...]
_COMPILING = threading.Lock()


@dataclasses.dataclass(frozen=True)
class Peer:
    """An operator of others.

    Attributes:
      name: what it is called.
      windows: whether it is one of windows, as DCNv3; otherwise it is attention.
      dtypes: those that it has.
      load: makes the function (layer, dtype, set of operands, gradient of the result) -> calls.
        Raises ImportError or FileNotFoundError where the operator is not there.
    """

    name: str
    windows: bool
    dtypes: tuple[str, ...]
    load: Callable[[], Callable[[SamplingLayer, str, Tensors, Any], "Calls"]]


@dataclasses.dataclass(frozen=True)
class Calls:
    """What is timed, of one set of operands.

    Attributes:
      forward: makes the result.
      both: makes the result, and the gradients to the operands.
      backward: adds the gradients to what is there; None where that cannot be called alone.
      arrange: makes of the latter the gradients to images, places and weights.
    """

    forward: Callable[[], Any]
    both: Callable[[], tuple[Any, Sequence[Any]]]
    backward: Callable[[], Any] | None = None
    arrange: Callable[[Sequence[Any]], Sequence[Any]] = tuple


def _differentiable(function: Callable, operands: Tensors, grad_y: Any) -> Calls:
    """A function that PyTorch differentiates."""
    import torch

    for operand in operands:
        operand.requires_grad_()

    def forward():
        with torch.no_grad():
            return function(*operands)

    def both():
        y = function(*operands)
        return y, torch.autograd.grad(y, operands, grad_y.reshape(y.shape))

    return Calls(forward, both)


def _levels(layer: SamplingLayer) -> tuple[Any, Any]:
    """Heights and widths, and where each level starts, on the GPU."""
    import torch

    shapes = torch.tensor(layer.levels, device="cuda")
    sizes = shapes.prod(1)
    return shapes, torch.cumsum(sizes, 0) - sizes


def _deformops(backend: str) -> Callable:
    def load():
        if backend == "CUDA":
            os.environ.setdefault("DEFORMOPS_COMPILE", "fallback")
        registry = importlib.import_module("deformops.registry")
        chosen = registry.Backend[backend]
        try:
            registry.msda.load(chosen)
        except RuntimeError as error:  # its kernels are not there, or could not be made
            raise ImportError(str(error)) from error

        def prepare(layer, dtype, operands, grad_y):
            shapes, starts = _levels(layer)
            value, locations, weights = operands

            def call(value, locations, weights):
                return registry.msda(value, shapes, starts, locations, weights, backend=chosen)

            return _differentiable(call, (value, locations, weights.to(value.dtype)), grad_y)

        return prepare

    return load


def _msda_triton() -> Callable:
    module = importlib.import_module("msda_triton.frontend")

    def prepare(layer, dtype, operands, grad_y):
        shapes, _ = _levels(layer)

        def call(value, locations, weights):
            return module.triton_multiscale_deformable_attention(
                value, shapes, locations, weights, "zeros", False
            )

        return _differentiable(call, operands, grad_y)

    return prepare


def _deformable_detr() -> Callable:
    library = _library("deformable_detr_forward_float32")

    def prepare(layer, dtype, operands, grad_y):
        value, locations, weights = operands
        sizes = (layer.images, layer.pixels, layer.heads, layer.channels, len(layer.levels))
        sizes = (*sizes, layer.queries, layer.points)
        given = (value, *_levels(layer), locations, weights)
        return _by_pointers(library, "deformable_detr", dtype, sizes, given, grad_y, (0, 3, 4))

    return prepare


def _dcnv3() -> Callable:
    library = _library("dcnv3_forward_float32")

    def prepare(layer, dtype, operands, grad_y):
        given = [operand.to(operands[0].dtype) for operand in operands]
        return _by_pointers(library, "dcnv3", dtype, window(layer), given, grad_y, (0, 1, 2))

    return prepare


def _dcnv4() -> Callable:
    library = _library("dcnv4_forward_float32")

    def prepare(layer, dtype, operands, grad_y):
        import torch

        x, offset, mask = operands
        pixels = offset.shape[:3]
        of_group = [offset.reshape(*pixels, layer.heads, 18), mask.reshape(*pixels, layer.heads, 9)]
        packed = torch.cat(of_group, -1).reshape(*pixels, -1)
        row = -(-packed.shape[-1] // 8) * 8
        packed = torch.nn.functional.pad(packed, (0, row - packed.shape[-1])).to(x.dtype)
        threads = [*threads_of_dcnv4(layer, back=False), *threads_of_dcnv4(layer, back=True)]
        sizes = (*window(layer), *threads, row)

        def unpack(gradients):
            of_group = gradients[1][..., : layer.heads * 27].reshape(*pixels, layer.heads, 27)
            return gradients[0], of_group[..., :18], of_group[..., 18:]

        calls = _by_pointers(library, "dcnv4", dtype, sizes, (x, packed), grad_y, (0, 1))
        return dataclasses.replace(calls, arrange=unpack)

    return prepare


def _library(function: str) -> ctypes.CDLL:
    import torch

    major, minor = torch.cuda.get_device_capability()
    with _COMPILING:  # once for all
        library = compile_kernels(f"sm_{major}{minor}")
    if not hasattr(library, function):
        raise FileNotFoundError(f"the sources of {function} are not there")
    return library


def _by_pointers(
    library: ctypes.CDLL,
    name: str,
    dtype: str,
    sizes: Sequence[int],
    given: Sequence[Any],
    grad_y: Any,
    wanted: Sequence[int],
) -> Calls:
    """Calls of `name`_forward_`dtype` and `name`_backward_`dtype` in kernels.cu.

    Args:
      library: the compiled functions.
      name: of the operator.
      dtype: of its operands.
      sizes: as the functions take them.
      given: the operands.
      grad_y: the gradient of the result.
      wanted: numbers of the operands that have gradients, which are float32.
    """
    import torch

    run_forward = getattr(library, f"{name}_forward_{dtype}")
    run_backward = getattr(library, f"{name}_backward_{dtype}")
    numbers = (ctypes.c_int * len(sizes))(*sizes)
    y = torch.empty_like(grad_y)
    gradients = [torch.empty(given[i].shape, device="cuda") for i in wanted]

    def forward():
        run_forward(_pointers(*given, y), numbers, None)
        return y

    def backward():
        run_backward(_pointers(*given, grad_y, *gradients), numbers, None)

    def both():
        forward()
        for gradient in gradients:
            gradient.zero_()
        backward()
        return y, gradients

    return Calls(forward, both, backward)


def _pointers(*tensors: Any) -> ctypes.Array:
    return (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))


PEERS = (
    Peer("Deformable DETR, CUDA", False, ("float32",), _deformable_detr),
    Peer("deformops, CUDA", False, ("float32", "bfloat16"), _deformops("CUDA")),
    Peer("deformops, Triton", False, ("float32", "bfloat16"), _deformops("TRITON")),
    Peer("msda-triton", False, ("float32",), _msda_triton),
    Peer("DCNv3, CUDA", True, ("float32", "float16"), _dcnv3),
    Peer("DCNv4, CUDA", True, ("float32", "float16"), _dcnv4),
)
