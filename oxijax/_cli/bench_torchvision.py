"""torchvision's CPU operator on the layers of the benchmark: same values, same threads."""

import importlib
import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from oxijax._cli import CommandError
from oxijax.testing import DeformConvCase

__all__ = ["check_same", "import_torchvision", "torchvision_programs"]


def import_torchvision(threads: int) -> tuple[Any, Any, str]:
    """Torch and torchvision, and what is missing: empty if nothing is, and then they are there.

    Args:
      threads: the number of threads that torch is to use.
    """
    # Threads of OpenMP that have no work would otherwise keep a core from the program that is next.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        torch = importlib.import_module("torch")
        torchvision = importlib.import_module("torchvision")
    except Exception as error:  # not installed, or two that do not fit
        return None, None, f"{type(error).__name__}: {error}"
    torch.set_num_threads(threads)
    return torch, torchvision, ""


def torchvision_programs(
    torch: Any, torchvision: Any, case: DeformConvCase
) -> dict[str, tuple[Callable, list]]:
    """Forward, and forward with autograd's backward, of contiguous NCHW tensors.

    Args:
      torch: the module.
      torchvision: the module.
      case: a layer with equal padding on both sides, as torchvision's operator has it.
    """

    def tensor(array: np.ndarray, *axes: int) -> Any:
        array = array.transpose(axes) if axes else array
        return torch.from_numpy(np.ascontiguousarray(array)).requires_grad_()

    x, offset, weight, mask, bias = case.operands()
    operands = [
        tensor(x, 0, 3, 1, 2),
        tensor(offset, 0, 3, 1, 2),
        tensor(weight, 3, 2, 0, 1),
        None if bias is None else tensor(bias),
        None if mask is None else tensor(mask, 0, 3, 1, 2),
    ]
    grad_y = tensor(case.grad_y(), 0, 3, 1, 2).detach()
    geometry = {
        "stride": case.strides,
        "padding": tuple(
            dilation * (size - 1) // 2
            for dilation, size in zip(case.dilation, case.kernel_size, strict=True)
        ),
        "dilation": case.dilation,
    }

    def call(x, offset, weight, bias, mask):
        return torchvision.ops.deform_conv2d(x, offset, weight, bias, mask=mask, **geometry)

    def forward(*operands):
        with torch.no_grad():
            return call(*operands)

    def forward_backward(grad_y, *operands):
        y = call(*operands)
        present = [operand for operand in operands if operand is not None]
        return y, torch.autograd.grad(y, present, grad_y)

    return {
        "torchvision_forward_ms": (forward, operands),
        "torchvision_forward_backward_ms": (forward_backward, [grad_y, *operands]),
    }


def check_same(case: DeformConvCase, ours: tuple[Callable, list], theirs: tuple[Callable, list]):
    """Raises `CommandError` unless both programs find the same output."""
    y = np.asarray(jax.block_until_ready(ours[0](*ours[1])))
    expected = theirs[0](*theirs[1]).numpy().transpose(0, 2, 3, 1)
    if not np.allclose(y, expected, rtol=1e-3, atol=1e-3):
        raise CommandError(f"torchvision finds another output of {case.name}: nothing to compare")
