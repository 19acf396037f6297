"""The table of data sheets: its figures, and how a GPU is found in it."""

import dataclasses
import re

import pytest

from ptx.devices import DATA_SHEETS, Peak, data_sheet, estimate_data_sheet, find_data_sheet
from ptx.isa.dtypes import bf16, f16, f32, f64, u32
from ptx.isa.targets import TARGETS
from ptx.replay import MACHINES

SHEETS = list(DATA_SHEETS.values())
NAMES = list(DATA_SHEETS)


@pytest.mark.parametrize("sheet", SHEETS, ids=NAMES)
def test_figures(sheet):
    assert DATA_SHEETS[sheet.name] is sheet
    assert sheet.target in TARGETS
    for field in dataclasses.fields(sheet):
        value = getattr(sheet, field.name)
        if field.name not in ("name", "target", "source", "kinds") and value is not None:
            assert value > 0, field.name
    assert sheet.f16 == sheet.bf16  # analyze_intensity knows the width of halves alone
    assert sheet.f16 == pytest.approx(2 * sheet.tf32, rel=0.03)
    assert sheet.f16 >= sheet.tf32 >= sheet.f32 >= sheet.f64
    assert sheet.f64_tensor is None or sheet.f64_tensor >= sheet.f64
    assert re.match(r"NVIDIA .+ (datasheet|whitepaper|Technical Brief), ", sheet.source)
    assert sheet.kinds
    assert all(kind.startswith("NVIDIA ") for kind in sheet.kinds)


@pytest.mark.parametrize(
    ("name", "f16_tflops", "f32_tflops", "f64_tflops", "bandwidth"),
    [
        ("A100 40GB", 312, 19.5, 19.5, 1.555),
        ("A100 80GB", 312, 19.5, 19.5, 2.039),
        ("A100 80GB PCIe", 312, 19.5, 19.5, 1.935),
        ("H100 SXM", 989.4, 66.9, 66.9, 3.352),
        ("H200", 1979 / 2, 67, 67, 4.8),
        ("RTX 4090", 165.2, 82.6, 82.6 / 64, 1.008),
        ("B200", 4500 / 2, 80, 40, 8.0),
    ],
)
def test_dense_rates(name, f16_tflops, f32_tflops, f64_tflops, bandwidth):
    sheet = DATA_SHEETS[name]
    assert sheet.peak(f16).tflops == sheet.peak(bf16).tflops == f16_tflops
    assert sheet.peak(f32, exact=True).tflops == f32_tflops
    assert sheet.peak(f64).tflops == sheet.peak(f64, exact=True).tflops == f64_tflops
    assert sheet.bandwidth == bandwidth


@pytest.mark.parametrize("name", ["A100 40GB", "A100 80GB"])
def test_rates_are_those_of_an_sm_and_a_clock(name):
    """Of GPUs whose data sheet and simulated machine have the same clock."""
    sheet, machine = data_sheet(name), MACHINES[name]
    of_part = 2048 / 8  # multiplications of halves in a cycle: `mma.sync` reaches nearly as many
    assert sheet.f16 * 1e12 == pytest.approx(machine.sms * machine.clock * 8 * of_part, 0.01)
    assert machine.tensor_cycles == pytest.approx(1024 / of_part, rel=0.03)


def test_units():
    sheet = data_sheet("H100")
    assert sheet.peaks(f16) == (Peak("f16 tensor cores", 989.4),)
    assert sheet.peaks(bf16) == (Peak("bf16 tensor cores", 989.4),)
    tf32, exact = Peak("TF32 tensor cores", 494.7), Peak("f32 CUDA cores", 66.9)
    assert sheet.peaks(f32) == (tf32, exact)
    assert (sheet.peak(f32), sheet.peak(f32, exact=True)) == (tf32, exact)
    assert sheet.peaks(f64) == (Peak("f64 tensor cores", 66.9), Peak("f64 CUDA cores", 33.5))
    assert data_sheet("RTX 4090").peaks(f64) == (Peak("f64 CUDA cores", 82.6 / 64),)


def test_other_types_have_no_rate():
    with pytest.raises(ValueError, match="dtype must be f16, bf16, f32 or f64, got u32"):
        data_sheet("H200").peaks(u32)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        *zip(NAMES, NAMES, strict=True),
        *((kind, sheet.name) for sheet in SHEETS for kind in sheet.kinds),
        *(("A100", "A100 80GB"), ("H100", "H100 SXM")),
        *(("sm_80", "A100 80GB"), ("sm_89", "RTX 4090"), ("sm_90", "H200")),
        *(("sm_90a", "H200"), ("sm_100", "B200")),
    ],
)
def test_lookups(device, name):
    assert data_sheet(device) is find_data_sheet(device) is DATA_SHEETS[name]


def test_a_target_stands_for_a_gpu_of_its_own():
    for target in TARGETS:
        sheet = find_data_sheet(target)
        assert sheet is None or TARGETS[sheet.target].sm == TARGETS[target].sm


def test_kinds_are_of_one_gpu():
    kinds = [kind for sheet in SHEETS for kind in sheet.kinds]
    assert len(kinds) == len(set(kinds))


@pytest.mark.parametrize("device", ["V100", "NVIDIA H200 NVL", "h200", "sm_75", ""])
def test_unknown_gpus(device):
    assert find_data_sheet(device) is None
    message = f"device must be one of {', '.join(NAMES)}, CUDA's name of one, or a target of one"
    with pytest.raises(ValueError, match=f"{re.escape(message)}, got {device!r}"):
        data_sheet(device)


ATTRIBUTES = {"sms": 100, "clock_khz": 1_000_000, "memory_clock_khz": 1_000_000, "bus_width": 4096}


def test_estimates_have_the_units_of_data_sheets():
    sheet = estimate_data_sheet("A GPU", 80, **ATTRIBUTES)
    assert (sheet.name, sheet.target, sheet.kinds) == ("A GPU", "sm_80", ("A GPU",))
    assert sheet.peak(f16).tflops == pytest.approx(204.8)
    assert sheet.peak(f64).unit == "f64 tensor cores"
    assert sheet.bandwidth == pytest.approx(1.024)


@pytest.mark.parametrize("target", [t for t in TARGETS.values() if not t.architecture_specific])
def test_every_target_can_be_estimated(target):
    sheet = estimate_data_sheet("A GPU", target.sm, **ATTRIBUTES)
    assert sheet.target == target.name
    assert sheet.f16 >= sheet.tf32 >= sheet.f32 > sheet.f64 > 0
    assert (sheet.f64_tensor is None) == (sheet.f64 < sheet.f32 / 4)


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_estimates_need_every_attribute(attribute):
    with pytest.raises(ValueError, match=f"{attribute} must be positive, got 0"):
        estimate_data_sheet("A GPU", 80, **{**ATTRIBUTES, attribute: 0})
