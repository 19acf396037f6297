"""Forward: the samples of a column, one after another, between lines of pixels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ptx.builder import Kernel, Val
from ptx.definition import KernelDefinition, Plan
from ptx.kernels.sampling.windows.columns import Column, each_column
from ptx.kernels.sampling.windows.config import CENTERS, CONFIGS, VALUE, WindowsConfig, Y
from ptx.kernels.sampling.windows.launch import SIZES, check, entry, grid, text_config
from ptx.tile.vectors import load_elements, store_vector

__all__ = ["WINDOWS_FORWARD"]


def _body(k: Kernel, config: WindowsConfig, plan: Plan, p: Any) -> None:
    with each_column(k, config, p, more=0) as column:
        _write_column(k, config, p, column)


def _write_column(k: Kernel, config: WindowsConfig, p: Any, column: Column) -> None:
    pairs = [
        (column.pixel(axis, place), column.pixel(axis, place + 1))
        for axis, place in enumerate(column.places, 1)
    ]
    corners = list(itertools.product(*pairs))

    def line(row: Val | int) -> Val:
        """What lies between the pixels of a row."""
        first, values = column.pixel(0, row), []
        for others in corners:
            pixel = column.join(first, *others)
            values += load_elements(column.address(p.value, pixel), 1, where=pixel.inside)
        return _interpolated(k, values, column.fractions[1:])

    before = k.var(config.sum_type, line(0))
    with k.loop(column.rows, name="row", unroll=False) as row:
        after = line(row + 1)
        sample = _interpolated(k, [before.value(), after], column.fractions[:1])
        store_vector(column.sample(p.y, row, column.places), [sample])
        before.set(after)


def _interpolated(k: Kernel, values: Sequence[Val], fractions: Sequence[Val]) -> Val:
    """What lies between the corners of a cube."""
    for fraction in reversed(fractions):
        rest = 1.0 - fraction
        pairs = zip(values[::2], values[1::2], strict=True)
        values = [k.fma(rest, low, fraction * high) for low, high in pairs]
    (value,) = values
    return value


WINDOWS_FORWARD = KernelDefinition(
    name="sampling_windows_forward",
    configs=CONFIGS,
    parameters=(VALUE, CENTERS, Y, *SIZES),
    check=check,
    grid=grid(more=0),
    entry=entry("forward"),
    body=_body,
    text_config=text_config,
)
