"""Drawn valid calls of every public function that has kernels: none refused, none wrong."""

import contextlib
import importlib
import pkgutil
import traceback
from collections.abc import Sequence

import jax
import pytest
from support.drawn_layers import FAMILIES, Drawn, draw
from support.layers import primitives_of

import oxijax
from oxijax._core.launch import TARGET_NAME
from oxijax._core.primitive import KernelPrimitive
from oxijax.testing import emulate_gpu
from ptx.isa.targets import TARGETS

TOGETHER = 10  # calls of one program: to compile one of many takes less than many of one


def program_of(calls: Sequence[Drawn]):
    """The function (operands of each call, gradients of the outputs) -> all results by name."""

    def results(operands, gradients):
        every = []
        for call, arrays, grad_y in zip(calls, operands, gradients, strict=True):
            y, vjp = jax.vjp(call, arrays)
            (grads,) = vjp(grad_y)
            every.append({"y": y, **{f"d{name}": g for name, g in grads.items()}})
        return every

    return jax.jit(results)


def run(calls: Sequence[Drawn], target: str | None, schedule: int | None = None):
    """What is wrong with each call."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.enable_x64(calls[0].float64))
        if target is not None:
            stack.enter_context(emulate_gpu(target, schedule=schedule))
        operands = [dict(call.arrays) for call in calls], [call.grad_y for call in calls]
        results = jax.device_get(program_of(calls)(*operands))
    return [
        f"{call}: {complaint}"
        for call, result in zip(calls, results, strict=True)
        for complaint in call.complaints(result, target is not None)
    ]


def check(family: str, numbers: Sequence[tuple[int, ...]], float64: bool, target=None) -> None:
    calls = [draw(family, number, float64) for number in numbers]
    try:
        complaints = run(calls, target)
    except Exception:  # of which of them
        complaints = []
        for call in calls:
            try:
                complaints += run([call], target)
            except Exception:
                complaints.append(f"{call}: refused\n{traceback.format_exc(limit=-4)}")
    assert not complaints, "\n".join(complaints)
