"""Calls of kernels in the emulator, on numpy arrays that are named as the kernel names them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from ptx import emulator
from ptx.definition import Array, KernelDefinition, PlanLike, Size, Sizes
from ptx.emulator import Buffer, EmulatorError, Report
from ptx.isa.dtypes import DType, bf16, f16, f32, f64, s32, u32
from ptx.isa.targets import Target
from ptx.launch import BufferAddress

__all__ = ["Outcome", "bytes_stored", "launch", "numpy_dtype", "run"]

_NUMPY = {
    f16: np.float16,
    bf16: ml_dtypes.bfloat16,
    f32: np.float32,
    f64: np.float64,
    u32: np.uint32,
    s32: np.int32,
}


def numpy_dtype(dtype: DType) -> np.dtype:
    """The dtype of a numpy array whose elements have a PTX type."""
    return np.dtype(_NUMPY[dtype])


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a call.

    Attributes:
      results: the kernel's results by name, with dimensions in the order of their `dims`.
      report: the emulator's report on the launch; None where there was nothing to launch.
    """

    results: Mapping[str, np.ndarray]
    report: Report | None


def run(
    kernel: KernelDefinition,
    config: Any,
    target: Target | str,
    operands: Mapping[str, np.ndarray | None],
    sizes: Sizes | None = None,
    *,
    plan: PlanLike | None = None,
    **options: Any,
) -> Outcome:
    """Calls a kernel.

    The emulator raises if a byte of a result is not written, unless the result has initial values.

    Args:
      kernel: the kernel.
      config: its configuration, which decides the operands.
      target: the GPU.
      operands: arrays by the names of the kernel's operands, initial values of results among them,
        with dimensions in the order of their `dims`; None for one that is absent.
      sizes: sizes of dimensions that only results have, by name.
      plan: instead of the one that the kernel would choose.
      **options: further ones of `launch`.

    Raises:
      TypeError: an operand that the configuration does not have, one that is missing, or one of
        another dtype than the configuration says.
      ValueError: shapes that do not fit each other, or that the kernel cannot count.
      EmulatorError: a fault of the kernel.
    """
    given = {name: array for name, array in operands.items() if array is not None}
    expected = kernel.operands(config)
    if given.keys() != expected.keys():
        raise TypeError(
            f"kernel {kernel.name} takes {', '.join(expected)} in this configuration, "
            f"and was given {', '.join(given)}"
        )
    values: dict[str, np.ndarray] = {}
    for name, parameter in expected.items():
        dtype = numpy_dtype(parameter.dtype_of(config))
        if given[name].dtype != dtype:
            raise TypeError(f"{kernel.name}: {name} must be {dtype}, got {given[name].dtype}")
        values[name] = _in_memory(parameter, config, given[name])
    known = kernel.sizes(config, {name: value.shape for name, value in values.items()})
    shapes = kernel.shapes(config, {**known, **(sizes or {})})
    results = kernel.results(config)
    initials = {p.initial for p in results.values() if p.has_initial(config)}
    buffers = {name: Buffer(v, writable=name in initials) for name, v in values.items()}
    for name, result in results.items():
        if result.initial is not None and result.has_initial(config):
            buffers[name] = buffers[result.initial]
        else:
            empty = np.empty(shapes[name], numpy_dtype(result.dtype_of(config)))
            buffers[name] = Buffer(empty, initialized=False)
    report = launch(kernel, config, target, buffers, plan=plan, **options)
    return Outcome(
        {name: _as_called(p, config, buffers[name].array) for name, p in results.items()}, report
    )


def launch(
    kernel: KernelDefinition,
    config: Any,
    target: Target | str,
    buffers: Mapping[str, Buffer],
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    plan: PlanLike | None = None,
    text: str | None = None,
    values: Mapping[str, int] | None = None,
    grid: Callable[[tuple[int, int, int]], tuple[int, int, int]] | None = None,
    **options: Any,
) -> Report | None:
    """Launches a kernel on buffers, which hold its results then.

    A fault of the kernel's own text has a note: the line of Python that wrote the instruction.

    Args:
      kernel: the kernel.
      config: its configuration.
      target: the GPU.
      buffers: operands and results, by name, as they lie in memory; the buffer of an
        initial value is that of its result.
      shapes: shapes of the larger arrays on which some buffers are windows, by name.
      plan: instead of the one that the kernel would choose.
      text: instead of the kernel's.
      values: values of some `Size` parameters, by name, instead of the launch's.
      grid: makes other blocks of those that the launch has in x, y and z.
      **options: options of `ptx.emulator.launch`; statistics are counted where they are asked for.

    Returns:
      The emulator's report; None where the grid has no blocks, and nothing is launched.

    Raises:
      TypeError: `values` that the kernel does not have.
      ValueError: shapes that do not fit each other, or that the kernel cannot count.
      EmulatorError: a fault of the kernel.
    """
    names = [*kernel.operands(config), *kernel.results(config)]
    all_shapes = {name: buffers[name].array.shape for name in names} | dict(shapes or {})
    ordered = [all_shapes[name] for name in names]
    instance = kernel.instance(config, target, ordered, plan=plan)
    prepared = kernel.launch(config, target, ordered, plan=plan)
    present = [
        name
        for p in kernel.present_parameters(config, instance.plan)
        for name in (p.names(config) if isinstance(p, Size) else [p.name])
    ]
    overrides = dict(values or {})
    arguments: list[Buffer | np.generic] = []
    for name, argument in zip(present, prepared.arguments, strict=True):
        if isinstance(argument, BufferAddress):
            arguments.append(buffers[names[argument.buffer]])
        else:
            arguments.append(np.uint32(overrides.pop(name)) if name in overrides else argument)
    if overrides:
        raise TypeError(f"kernel {kernel.name} has no size {', '.join(overrides)} here")
    blocks = prepared.grid if grid is None else grid(prepared.grid)
    if 0 in blocks:
        return None
    try:
        return emulator.launch(
            prepared.text if text is None else text,
            blocks,
            prepared.block,
            arguments,
            dynamic_shared=prepared.dynamic_shared,
            **{"statistics": False, **options},
        )
    except EmulatorError as error:
        if text is None and error.line is not None:
            origin = kernel.origin(config, target, ordered, error.line, plan=plan)
            if origin is not None:
                error.add_note(f"  written at {origin.file}:{origin.line}")
        raise


def bytes_stored(text: str, report: Report) -> int:
    """Bytes that the launch of a text has stored to global memory, atomic additions apart."""
    lines, stored = text.splitlines(), 0
    for line, count in report.executed.items():
        if store := re.search(r"\bst\.global\S*?(?:\.v(\d))?\.[a-z]+(\d+) ", lines[line - 1]):
            stored += count * int(store[1] or 1) * int(store[2]) // 8
    return stored


def _in_memory(parameter: Array, config: Any, array: np.ndarray) -> np.ndarray:
    """An array of a call as it lies in memory; without a shared dimension that it lacks."""
    axes = parameter.axes(config)
    if array.ndim == len(axes) - 1 and parameter.shareable(config) is not None:
        return np.ascontiguousarray(array)
    return np.ascontiguousarray(array.transpose(axes))


def _as_called(parameter: Array, config: Any, array: np.ndarray) -> np.ndarray:
    return array.transpose(np.argsort(parameter.axes(config)))
