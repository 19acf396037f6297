"""Tiles of queries, which add to images by products: against units in order, which do not."""

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
import pytest
from support.sampling_kernels import SamplingCall, small, wide
from support.small_calls import without_synchronisation

from ptx.emulator import RaceError, UninitializedError
from ptx.isa.dtypes import bf16, f16, f32
from ptx.kernels.sampling import CONFIGS, SamplingConfig
from ptx.kernels.sampling.geometry import Across, Window
from ptx.kernels.sampling.plan import without_tiles

pytestmark = pytest.mark.proof

DTYPES = {"bf16": bf16, "f16": f16}
ATTENTION = SamplingConfig(2, 32, ((16, 32), (8, 16), (4, 1)), (4, 3, 1))
WINDOW = wide(small(CONFIGS["window/f16"]))
FLOAT = np.float64


@dataclasses.dataclass(frozen=True)
class TiledCall(SamplingCall):
    """A call with tiles, of which some operands may be others, in float64, by name."""

    replaced: tuple[tuple[str, np.ndarray], ...] = ()

    @functools.cached_property
    def operands(self) -> Mapping[str, np.ndarray]:
        return {**super().operands, **dict(self.replaced)}

    @property
    def every_operand(self) -> Mapping[str, np.ndarray]:
        return {**self.operands, "zeros": np.zeros(self.operands["value"].shape)}

    def assert_as_without_tiles(self, **options) -> np.ndarray:
        """The result, which is that without tiles, where it is finite and where it is not."""
        assert self.tiled
        (found,) = self.outcome(step_limit=500_000, **options).results.values()
        plan = without_tiles(self.plan)
        (expected,) = self.outcome(step_limit=500_000, plan=plan).results.values()
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(np.isfinite(found), finite)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        precision = {f16: 5e-4, bf16: 4e-3}[self.config.float_type]
        scale = np.abs(expected[finite]).max(initial=0)
        np.testing.assert_allclose(found[finite], expected[finite], atol=precision * scale, rtol=0)
        return found


def call_of(config: SamplingConfig, dtype: str = "f16", **fields) -> TiledCall:
    config = dataclasses.replace(config, float_type=DTYPES[dtype], location_type=f32)
    queries = config.pixels if isinstance(config.geometry, Across) else fields.pop("queries", 35)
    return TiledCall("backward_value", config, queries=queries, **fields)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_queries_that_are_pixels(dtype, normalize, target):
    """As in the encoder of an attention; of three levels, of which one is a column."""
    config = dataclasses.replace(ATTENTION, normalize=normalize)
    call = call_of(config, dtype, target=target)
    assert call.tiled
    call.run(schedule=1)
    config = dataclasses.replace(config, levels=((16, 32), (32, 16)), points=(4, 3))
    assert call_of(config, dtype, target=target).run().never_executed == []


@pytest.mark.parametrize("channels", [16, 32, 48, 64])
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("geometry", ["window", "across"])
def test_channels(geometry, target, channels):
    """More than are multiplied at a time; two levels, so that gradients are read again."""
    config = {"window": WINDOW, "across": dataclasses.replace(ATTENTION, heads=1)}[geometry]
    config = dataclasses.replace(config, channels=channels)
    call_of(config, target=target, far=True).run(schedule=2)


@pytest.mark.parametrize("queries", [1, 5, 64, 71, 200])
@pytest.mark.parametrize("name", ["window", "v4", "no-center"])
def test_outputs(name, queries):
    """Of images in part, or of several: rows of queries are counted on."""
    config = wide(small(CONFIGS[f"{name}/f16"]))
    geometry = dataclasses.replace(config.geometry, out_size=(7, 11))
    config = dataclasses.replace(config, channels=16, geometry=geometry)
    call_of(config, queries=queries, far=True, strange=queries > 2).run()


@pytest.mark.parametrize("size", [(1, 1), (3, 40), (16, 16), (17, 15), (40, 60)])
@pytest.mark.parametrize("flow", [(0, 0), (40, 0), (-9, 17), (1e30, 0)])
def test_flows(size, flow):
    """Windows follow a tile's samples, and lie in the image, if that is as large."""
    geometry = dataclasses.replace(WINDOW.geometry, out_size=(12, 20))
    config = dataclasses.replace(WINDOW, heads=1, levels=(size,), geometry=geometry)
    call = call_of(config, queries=240, images=1)
    locations = call.operands["locations"] + FLOAT(flow)
    dataclasses.replace(call, replaced=(("locations", locations),)).assert_as_without_tiles()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_gradients_that_are_not_finite(dtype, value):
    """They reach the pixels that their query reads, and no others."""
    call = call_of(WINDOW, dtype, far=True)
    grads = call.operands["grad_y"].copy()
    grads[0, 3, 1, 5] = grads[1, 30, 2, 15] = value
    found = dataclasses.replace(call, replaced=(("grad_y", grads),)).assert_as_without_tiles()
    assert 0 < np.isnan(found).sum() + np.isinf(found).sum() < 200


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_that_factors_do_not_hold(dtype):
    """Small, large, zero, infinite and NaN; of small ones alone nothing is lost."""
    call = dataclasses.replace(call_of(WINDOW, dtype), strange=False)
    config = dataclasses.replace(call.config, weight_type=f32)
    weights = call.operands["weights"].copy()
    for i, weight in enumerate([0.0, 2.0**-30, 2.0**14, np.inf, np.nan, 2.0**120]):
        weights[:, i::20] = weight
    call = dataclasses.replace(call, config=config)
    dataclasses.replace(call, replaced=(("weights", weights),)).assert_as_without_tiles()
    for factor in (2.0**-18, 2.0**-24, 2.0**-110):
        weights = call.operands["weights"] * factor
        dataclasses.replace(call, replaced=(("weights", weights),)).assert_as_without_tiles()


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_schedule_and_no_race(dtype):
    call = call_of(WINDOW, dtype, far=True)
    for seed in (1, 2, 3):
        call.run(schedule=seed)


@pytest.mark.parametrize("channels", [16, 32, 48])
def test_lost_synchronisation_is_noticed(channels):
    call = dataclasses.replace(ATTENTION, channels=channels, heads=1)
    call = call_of(call, strange=False)
    broken = [mutant.text for mutant in without_synchronisation(call.text)]
    assert len(broken) >= 6
    for text in broken:
        with pytest.raises((RaceError, UninitializedError)):
            call.run(text)


def test_no_images():
    (found,) = call_of(WINDOW, images=0, strange=False).outcome().results.values()
    assert found.shape == (0, 26 * 28, 4, 16)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("scale", "most"), [(0.25, 2.0), (2.0, 3.7)])
def test_additions(target, scale, most):
    """To an element of the image: of local offsets 2 at most, where units have 36."""
    window = Window((56, 56))
    config = SamplingConfig(1, 16, ((56, 56),), (9,), window)
    call = call_of(config, queries=56 * 56, images=1, target=target, strange=False)
    offsets = scale * np.random.default_rng(0).standard_normal(call.operands["locations"].shape)
    weights = 0.5 + np.random.default_rng(1).random(call.operands["weights"].shape)
    call = dataclasses.replace(call, replaced=(("locations", offsets), ("weights", weights)))

    def additions(**options) -> float:
        report = call.outcome(step_limit=5_000_000, **options).report
        assert report is not None
        lines = options["text"].splitlines()
        added = sum(
            count * (4 if ".v4" in lines[line - 1] else 1)
            for line, count in report.executed.items()
            if "red.global" in lines[line - 1]
        )
        return added / (config.pixels * config.channels)

    units = without_tiles(call.plan)
    of_units = call.definition.write(call.config, target, call.sizes, plan=units).text
    assert additions(text=call.text) <= most
    assert 30 < additions(text=of_units, plan=units) <= 36


def test_types():
    """Weights and coordinates in types of their own; none at all; packed."""
    for location_type, weight_type in ((f16, f32), (bf16, f16), (f32, bf16)):
        config = dataclasses.replace(WINDOW, location_type=location_type, weight_type=weight_type)
        SamplingCall("backward_value", config, far=True).run()
    config = dataclasses.replace(WINDOW, use_weights=False)
    SamplingCall("backward_value", config, far=True).run()
    config = dataclasses.replace(config, packed=True)
    SamplingCall("backward_value", config, far=True).run()
