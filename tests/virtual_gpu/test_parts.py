"""The parts of the virtual GPU that need no plugin: models, stubs, the assembler."""

import pathlib
import re
import subprocess

import pytest
from virtual_gpu import build, environment, launcher

from ptx.devices import DataSheet, data_sheet, estimate_data_sheet, find_data_sheet
from ptx.isa.targets import TARGETS

HERE = pathlib.Path(__file__).parent
INSTALLED = environment.current()


def models() -> dict[str, dict[str, str]]:
    """The models in models.c: their fields, as the source has them."""
    source = (build.SOURCES / "models.c").read_text()
    found = {}
    for fields in re.findall(r"\{(\.key = .*?)\},?\n", source, re.DOTALL):
        values = dict(re.findall(r"\.(\w+) = (\"[^\"]*\"|[^,]+)", fields))
        found[values["key"].strip('"')] = values
    return found


def test_the_models_are_those_of_the_command_line():
    assert sorted(models()) == sorted(launcher.GPUS)


def estimated(model: dict[str, str]) -> DataSheet:
    """What oxijax would take for the data sheet of a GPU that says this of itself."""
    return estimate_data_sheet(
        model["name"].strip('"'),
        int(model["major"]) * 10 + int(model["minor"]),
        sms=int(model["multiprocessors"]),
        clock_khz=int(model["clock_khz"]),
        memory_clock_khz=int(model["memory_clock_khz"]),
        bus_width=int(model["bus_width"]),
    )


@pytest.mark.parametrize("key", sorted({*launcher.GPUS} - {"l4"}))
def test_a_model_has_the_rates_of_its_data_sheet(key):
    guess = estimated(models()[key])
    sheet = data_sheet(guess.name)
    assert guess.target == sheet.target
    assert guess.bandwidth == pytest.approx(sheet.bandwidth, rel=0.03)
    # Data sheets have clocks under load, and drivers the highest.
    for rate in ("f16", "bf16", "tf32", "f32", "f64"):
        assert getattr(guess, rate) == pytest.approx(getattr(sheet, rate), rel=0.1), rate


def test_one_model_is_in_no_table():
    guess = estimated(models()["l4"])
    assert find_data_sheet(guess.name) is None
    assert guess.bandwidth == pytest.approx(0.3, rel=1e-3)  # NVIDIA L4 datasheet


@pytest.mark.parametrize("key", launcher.GPUS)
def test_a_model_has_the_limits_of_its_target(key):
    model = models()[key]
    target = TARGETS[f"sm_{model['major']}{model['minor']}"]
    kib = re.compile(r"(\d+) << 10")

    def shared(name: str) -> int:
        found = kib.fullmatch(model[name])
        assert found
        return int(found[1]) << 10

    assert shared("shared_per_block") == target.shared_per_block
    assert shared("shared_per_multiprocessor") == target.shared_per_sm
    assert int(model["threads_per_multiprocessor"]) == target.threads_per_sm
    assert int(model["blocks_per_multiprocessor"]) == target.blocks_per_sm


def test_stubs_are_for_what_the_plugin_names(tmp_path):
    plugin = tmp_path / "plugin.so"
    plugin.write_bytes(b"\0cuNewCall\0\1cublasNewCall\0cudaErrorNew\0other\0nvmlNewCall\0")
    source = build.stub_source(INSTALLED.header, [plugin])
    stubs = re.findall(r"^STUB\((\w+), (\d+)\)$", source, re.MULTILINE)
    assert ("cuNewCall", "801") in stubs
    assert ("nvmlNewCall", "3") in stubs
    assert ("cuMemAlloc_v2", "801") in stubs  # of cuda.h; the real one takes its place
    assert not {"cudaErrorNew", "other", "cublasNewCall"} & {name for name, _ in stubs}
    assert '{"cuNewCall", (void *)cuNewCall},' in source
    assert '{700, "CUDA_ERROR_ILLEGAL_ADDRESS"},' in source


def test_the_assembler_hands_the_text_through(tmp_path):
    source, output = tmp_path / "in.ptx", tmp_path / "out.cubin"
    source.write_text(".version 8.0\n")
    assembler = str(HERE / "toolkit" / "ptxas")
    subprocess.run([assembler, "-arch=sm_90", str(source), "-o", str(output)], check=True)
    assert output.read_bytes() == b".version 8.0\n\0"
    said = subprocess.run(
        [assembler, "--version"], check=True, text=True, capture_output=True,
        env={"VIRTUAL_GPU_CUDA": "12090", "PATH": "/usr/bin:/bin"},
    ).stdout  # fmt: skip
    assert "release 12.9, V12.9" in said


def test_what_is_set_stays_but_for_the_virtual_gpu(tmp_path):
    options = launcher.parse(["--gpu", "a100", "--devices", "2", "--async", "7", "--", "true"])
    inherited = {"JAX_PLATFORMS": "cuda", "XLA_FLAGS": "--xla_own=1", "PATH": "/bin"}
    settings = launcher.variables(options, tmp_path, INSTALLED, inherited)
    assert settings["JAX_PLATFORMS"] == "cuda"
    assert settings["XLA_FLAGS"].endswith(" --xla_own=1")
    assert settings["PATH"].endswith(":/bin")
    assert settings["VIRTUAL_GPU_MODEL"] == "a100"
    assert (settings["VIRTUAL_GPU_DEVICES"], settings["VIRTUAL_GPU_ASYNC"]) == ("2", "7")


@pytest.mark.parametrize(
    "arguments", [["--devices", "0", "--", "true"], ["--gpu", "v100", "--", "true"], ["--strict"]]
)
def test_arguments_that_are_wrong(arguments):
    with pytest.raises(SystemExit):
        launcher.parse(arguments)
