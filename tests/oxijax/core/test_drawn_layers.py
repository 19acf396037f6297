"""Drawn valid calls of every public function that has kernels: none refused, none wrong.

What each should result in is the formula's, in float64 (`support.formulas`), within what the dtypes
of its operands allow. A failure prints the call, and how it is drawn again.
"""

import contextlib
import traceback
from collections.abc import Sequence
from typing import Any

import jax
import pytest
from support.drawn_layers import FAMILIES, Drawn, draw
from support.layers import kernel_primitives, primitives_of

import oxijax
from oxijax._core.launch import TARGET_NAME
from oxijax.testing import emulate_gpu
from ptx.isa.targets import TARGETS

TOGETHER = 10  # calls of one program: to compile one takes less time than to compile ten
TOGETHER_EMULATED = 5
PROGRAMS = 200  # of each family: 2,000 calls
PROGRAMS_EMULATED = 5  # of each family and target: 200 calls of a family
WITHOUT_KERNELS = {"roi_levels", "roofline"}
# They bind the primitives or kernels of `grid_sample`, and are compared with what others recorded.
OF_GRIDS = {"map_coordinates", "roi_align", "sample_windows", "splat"}


def gradients_alone(call: Drawn, arrays: Any, grad_y: jax.Array) -> dict[str, jax.Array]:
    """The gradient to each operand, where none other is wanted."""
    found = {}
    for name, array in arrays.items():
        _, vjp = jax.vjp(lambda array, name=name: call({**arrays, name: array}), array)
        (found[name],) = vjp(grad_y)
    return found


def program_of(calls: Sequence[Drawn]) -> Any:
    """The jitted function (operands of each call, gradients of the outputs) -> all results."""

    @jax.jit
    def results(operands, gradients):
        every = []
        for number, (call, arrays, grad_y) in enumerate(
            zip(calls, operands, gradients, strict=True)
        ):
            y, vjp = jax.vjp(call, arrays)
            (grads,) = vjp(grad_y) if number else (gradients_alone(call, arrays, grad_y),)
            every.append({"y": y, **{f"d{name}": grad for name, grad in grads.items()}})
        return every

    return results


def complaints_about(calls: Sequence[Drawn], target: str | None, number: int) -> list[str]:
    """What is wrong with the results of one program that makes these calls.

    Args:
      calls: all with 64 bits, or all without.
      target: the emulated GPU's target; None for the CPU.
      number: even ones are of deterministic programs, and it is a seed of the warps' order.
    """
    operands = [dict(call.arrays) for call in calls], [call.grad_y for call in calls]
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.enable_x64(calls[0].float64))
        stack.enter_context(oxijax.config.deterministic_mode(number % 2 == 0))
        if target is not None:
            stack.enter_context(emulate_gpu(target, schedule=number))
        compiled = program_of(calls).lower(*operands).compile()
        results = jax.device_get(compiled(*operands))
    if target is not None:
        kernels = compiled.as_text().count(f'custom_call_target="{TARGET_NAME}"')
        assert kernels >= sum(call.kernels for call in calls)
    return [
        f"{call}: {complaint}"
        for call, result in zip(calls, results, strict=True)
        for complaint in call.complaints(result, kernels=target is not None)
    ]


def check(family: str, number: int, count: int = TOGETHER, target: str | None = None) -> None:
    """Draws calls and makes them, all by one program.

    Args:
      family: a key of `FAMILIES`.
      number: the number that these calls are drawn with.
      count: the number of calls.
      target: the emulated GPU's target; None for the CPU.
    """
    calls = [draw(family, (number, i), float64=number % 3 != 0) for i in range(count)]
    try:
        complaints = complaints_about(calls, target, number)
    except Exception:
        complaints = [c for call in calls for c in complaints_alone(call, target, number)]
        if not complaints:
            raise
    assert not complaints, "\n".join(complaints)


def complaints_alone(call: Drawn, target: str | None, number: int) -> list[str]:
    try:
        return complaints_about([call], target, number)
    except Exception:
        return [f"{call}: refused\n{traceback.format_exc(limit=-4)}"]


def test_every_function_that_has_kernels_is_drawn():
    """A new family needs an entry in `FAMILIES`, whose calls bind all of its primitives."""
    packages = kernel_primitives()
    public = {
        name
        for name in oxijax.__all__
        for package in packages
        if getattr(getattr(oxijax, name), "__module__", "").startswith(package)
    }
    assert public - WITHOUT_KERNELS - OF_GRIDS == set(FAMILIES)
    used = set()
    for family in FAMILIES:
        calls = [draw(family, (0, i), float64=False) for i in range(20)]
        operands = [dict(call.arrays) for call in calls], [call.grad_y for call in calls]
        used.update(primitives_of(program_of(calls).trace(*operands).jaxpr.jaxpr))
    assert {p.primitive for primitives in packages.values() for p in primitives} <= used


@pytest.mark.slow
@pytest.mark.parametrize("number", range(PROGRAMS))
@pytest.mark.parametrize("family", FAMILIES)
def test_many_drawn(family, number):
    check(family, number)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("number", range(PROGRAMS_EMULATED))
@pytest.mark.parametrize("family", FAMILIES)
def test_many_drawn_emulated(family, number, target):
    number += PROGRAMS_EMULATED * [*TARGETS].index(target)  # others for each target
    check(family, number, TOGETHER_EMULATED, target)
