"""Operations of oxijax and XLA's own, on the same layers: one after the other, in one process."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax

from gpu_suite.jax_jobs import Job, Operands, check_device, measure
from gpu_suite.layers import Work, set_count
from gpu_suite.recorder import Recorder
from oxijax.testing import emulate_gpu

__all__ = ["Family", "run"]


@dataclasses.dataclass(frozen=True)
class Family:
    """Layers of a kind, and two ways to compute them.

    Attributes:
      layers: each can be hashed, and has a name.
      few_pixels: the layer that is called `LAUNCH_FLOOR`.
      is_small: whether a layer has too few channels, rows or columns to keep tensor cores busy.
      operands: makes the operands of (layer, dtype, seed); it is traced.
      work: returns the work of (layer, operation, dtype).
      ours: returns a layer's function by one kernel, and each gradient by one too.
      xla: returns a layer's function by XLA alone.
      operations: by name, what makes these functions those that are timed.
      wanted: returns the least values of (layer, dtype) for figures in
        `report_against_xla.against_xla`.
      xla_products: the products of XLA's function, and of each gradient of it.
    """

    layers: Sequence[Any]
    few_pixels: Any
    is_small: Callable[[Any], bool]
    operands: Callable[[Any, str, jax.Array], tuple]
    work: Callable[[Any, str, str], Work]
    ours: Callable[[Any], Callable]
    xla: Callable[[Any], Callable]
    operations: Mapping[str, Callable[[Callable], Callable]]
    wanted: Callable[[Any, str], dict[str, float]] | None = None
    xla_products: int = 1


def run(recorder: Recorder, family: Family, dtypes: Sequence[str]) -> None:
    """Measures all operations, for `report_against_xla`."""
    check_device(recorder)
    recorder.put("compared_layers", value=[layer.name for layer in family.layers])
    small = [layer.name for layer in family.layers if family.is_small(layer)]
    recorder.put("small_layers", value=small)
    if family.wanted is not None:
        for layer in family.layers:
            figures = {dtype: family.wanted(layer, dtype) for dtype in dtypes}
            recorder.put("wanted", layer.name, value=figures)
    layers = [family.few_pixels, *family.layers]
    with emulate_gpu("sm_90") if recorder.mode.emulated else contextlib.nullcontext():
        for dtype in dtypes:
            pairs = [_jobs(family, layer, dtype, recorder.mode.tiny) for layer in layers]
            measure(recorder, [job for jobs in pairs for job in jobs])


def _jobs(family: Family, layer: Any, dtype: str, tiny: bool) -> Iterator[Job]:
    """Each operation by oxijax, then by XLA."""
    works = {name: family.work(layer, name, dtype) for name in family.operations}
    sets = max(set_count(work, tiny) for work in works.values())
    operands = Operands(family.operands, layer, dtype, sets)
    ours, xla = family.ours(layer), family.xla(layer)
    for name, make in family.operations.items():
        job = functools.partial(Job, layer.name, operands=operands, work=works[name])
        yield job(name, function=make(ours), kernels=1, products=0)
        yield job(f"xla_{name}", function=make(xla), kernels=0, products=family.xla_products)
