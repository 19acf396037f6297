"""Backward to the images: each pixel of a window is added to once, for all samples about it.

The order of the additions of windows that overlap is not fixed.
"""

from __future__ import annotations

import itertools
from typing import Any

from ptx.builder import Kernel, Val
from ptx.definition import KernelDefinition, Out, Plan
from ptx.kernels.sampling.windows.columns import Column, each_column
from ptx.kernels.sampling.windows.config import CENTERS, CONFIGS, GRAD_Y, WindowsConfig
from ptx.kernels.sampling.windows.launch import SIZES, check, entry, grid, text_config
from ptx.tile.vectors import load_elements

__all__ = ["WINDOWS_BACKWARD_VALUE"]


def _body(k: Kernel, config: WindowsConfig, plan: Plan, p: Any) -> None:
    with each_column(k, config, p, more=1) as column:
        _add_column(k, config, p, column)


def _add_column(k: Kernel, config: WindowsConfig, p: Any, column: Column) -> None:
    others = [column.pixel(axis, place) for axis, place in enumerate(column.places, 1)]
    samples_high, *sides = config.window
    # Along each axis, the samples before and behind the pixel: the place, whether there is one, and
    # the pixel's factor.
    about = [
        ((place - 1, place > 0, fraction), (place, place < side, 1.0 - fraction))
        for place, side, fraction in zip(column.places, sides, column.fractions[1:], strict=True)
    ]

    def line(row: Val) -> Val:
        """What the samples of a row add to the pixel of a line, before the row is weighed."""
        total = k.var(config.sum_type, 0.0)
        for samples in itertools.product(*about):
            where, factor = row < samples_high, None
            for _, exists, of_axis in samples:
                where, factor = where & exists, of_axis if factor is None else factor * of_axis
            address = column.sample(p.grad_y, row, [place for place, *_ in samples])
            (grad,) = load_elements(address, 1, where=where)
            total.set(total + grad if factor is None else k.fma(factor, grad, total))
        return total.value()

    before, fraction = k.var(config.sum_type, 0.0), column.fractions[0]
    with k.loop(column.rows, name="row", unroll=False) as row:
        pixel = column.join(column.pixel(0, row), *others)
        after = line(row)
        added = k.fma(fraction, before, (1.0 - fraction) * after)
        column.address(p.grad_value, pixel).red(0, added, where=pixel.inside & added.ne(0.0))
        before.set(after)


WINDOWS_BACKWARD_VALUE = KernelDefinition(
    name="sampling_windows_backward_value",
    configs=CONFIGS,
    parameters=(
        *(CENTERS, GRAD_Y, Out("grad_value", "n s d", "sum_type", initial="zeros")),
        *SIZES,
    ),
    check=check,
    grid=grid(more=1),
    entry=entry("backward_value"),
    body=_body,
    text_config=text_config,
)
