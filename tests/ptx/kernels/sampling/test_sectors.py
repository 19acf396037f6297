"""Sectors of global memory that accesses touch, which docs/sampling_sectors.md has in a table."""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
import pytest
from support.paths import DOCS
from support.sampling_kernels import KERNELS, SamplingCall
from support.sectors import TARGETS, Access, SectorTable, sectors_of_arrays, times

from ptx.emulator.report import Sectors
from ptx.isa.dtypes import bf16, f32
from ptx.kernels.sampling.geometry import HEIGHT, WIDTH, Across, Window
from ptx.kernels.sampling.model import MODEL, centers
from ptx.testing.call import run

pytestmark = pytest.mark.slow

SPREAD, OFFSETS = 2.0, 0.5  # standard deviations, in pixels: around a query, and in a window


@dataclasses.dataclass(frozen=True)
class NearCall(SamplingCall):
    """A call whose points lie near their queries, as those of the layers that are modelled do."""

    @functools.cached_property
    def operands(self) -> Mapping[str, np.ndarray]:
        c, random = self.config, np.random.default_rng(self.seed)
        n, q, points = self.images, self.queries, sum(c.points)

        def normal(*shape: int) -> np.ndarray:
            return random.standard_normal(shape)

        locations = OFFSETS * normal(n, q, c.heads, points, 2)
        if isinstance(c.geometry, Across):
            size = np.repeat([(s[WIDTH], s[HEIGHT]) for s in c.levels], c.points, axis=0)
            at = centers(c.levels) if q == c.pixels else random.random((q, 2))
            locations = at[:, None, None] + SPREAD / OFFSETS * locations / size
        return {
            "value": normal(n, c.pixels, c.heads, c.channels),
            "locations": locations.astype(np.float32).astype(np.float64),
            "weights": normal(n, q, c.heads, points),
            "grad_y": normal(n, q, c.heads, c.channels),
        }


def call_of(kernel: str, layer: str, target: str) -> NearCall:
    """A layer for one image: levels with an eighth of their sides, windows in one of 14 x 14."""
    config, (_, queries) = MODEL.layers[layer].config, MODEL.layers[layer].extent
    everywhere = queries == config.pixels
    levels = tuple((-(-height // 8), -(-width // 8)) for height, width in config.levels)
    geometry = config.geometry
    if isinstance(geometry, Window):
        levels = ((14, 14),)
        geometry = dataclasses.replace(geometry, out_size=(14, 14))
    config = dataclasses.replace(
        config, levels=levels, geometry=geometry, float_type=bf16, location_type=f32
    )
    queries = config.pixels if everywhere else queries
    return NearCall(kernel, config, images=1, queries=queries, target=target)


@functools.cache
def touched(kernel: str, layer: str, target: str) -> dict[Access, Sectors]:
    """What accesses to each array touch."""
    call = call_of(kernel, layer, target)
    options = {"statistics": True, "step_limit": 200_000}
    report = run(call.definition, call.config, target, call.arrays, call.sizes, **options).report
    assert report is not None
    return dict(sectors_of_arrays(call.text, report))


TABLE = SectorTable((DOCS / "sampling_sectors.md").read_text(), [*MODEL.layers], touched)


def test_the_page_has_every_kernel():
    assert list(dict.fromkeys(row[0] for row in TABLE.rows)) == list(KERNELS)
    assert f"| kernel | access | GPU | {' | '.join(TABLE.layers)} | reason |\n" in TABLE.page


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_page_says_what_is_touched(kernel):
    assert TABLE.written(kernel) == TABLE.counted(kernel)


def test_what_is_wasted_has_a_reason():
    TABLE.check_reasons()


# Heads of 16 and of 32 channels are whole sectors of float32, and neighbouring lanes add to
# neighbouring numbers: to one of each before sm_90, and to four then.
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layer", MODEL.layers)
def test_additions_fill_sectors(layer, target):
    additions = touched("backward_value", layer, target)["add", "grad_value"]
    assert additions.requests > 200
    assert times(additions) == 1.0
