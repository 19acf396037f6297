"""`oxijax.roofline`, and the command that prints and draws it."""

import dataclasses
import itertools
import json
import re
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest
from support.fake_cuda import FakeCuda, Gpu
from support.paths import DOCS

import oxijax
import oxijax._cli
from oxijax.__main__ import main
from oxijax._core.gpu.data_sheets import default_data_sheet
from oxijax._gemm.roofline import DOT_GENERAL, auto_strategy
from oxijax.testing import emulate_gpu
from ptx.devices import DATA_SHEETS, data_sheet

STRATEGIES = ("shallow_k", "cache_persistent", "warp_parallel")


def has_gpu(monkeypatch, kind: str) -> None:
    """Makes JAX say that it uses a GPU."""
    gpu = SimpleNamespace(platform="gpu", device_kind=kind)
    monkeypatch.setattr(jax, "devices", lambda backend=None: [gpu])


# ---- the analysis


@pytest.mark.quick
def test_bound_by_memory():
    result = oxijax.roofline(4096, 2048, 8, dtype=jnp.bfloat16, device="H200")
    assert (result.m, result.n, result.k, result.batch) == (4096, 2048, 8, 1)
    assert (result.dtype, result.device, result.unit) == ("bfloat16", "H200", "bf16 tensor cores")
    assert result.flops == 2 * 4096 * 2048 * 8
    assert result.bytes == 2 * (4096 * 8 + 8 * 2048 + 4096 * 2048)
    assert result.intensity == result.flops / result.bytes
    assert (result.peak_tflops, result.peak_bandwidth_tbps) == (989.5, 4.8)
    assert result.balance_point == 989.5 / 4.8
    assert result.bound == "memory"
    assert result.attainable_us == pytest.approx(result.bytes / 4.8e12 * 1e6)
    assert result.attainable_tflops == pytest.approx(4.8 * result.intensity)
    assert result.strategy == "shallow_k"


def test_bound_by_arithmetic():
    result = oxijax.roofline(4096, 4096, 4096, dtype="float16", device="sm_80")
    assert result.bound == "compute"
    assert result.attainable_tflops == result.peak_tflops == 312
    assert result.attainable_us == pytest.approx(2 * 4096**3 / 312e12 * 1e6)
    assert result.strategy == DOT_GENERAL == "dot_general"


@pytest.mark.parametrize(
    ("dtype", "precision", "unit", "tflops"),
    [
        ("float16", None, "f16 tensor cores", 312),
        ("bfloat16", "highest", "bf16 tensor cores", 312),
        ("float32", None, "TF32 tensor cores", 156),
        ("float32", "high", "TF32 tensor cores", 156),
        ("float32", jax.lax.Precision.HIGHEST, "f32 CUDA cores", 19.5),
        ("float64", None, "f64 tensor cores", 19.5),
    ],
)
def test_dtype_and_precision_say_what_multiplies(dtype, precision, unit, tflops):
    result = oxijax.roofline(64, 64, 64, dtype=dtype, device="A100", precision=precision)
    assert (result.unit, result.peak_tflops) == (unit, tflops)
    assert result.bytes == 3 * 64 * 64 * np.dtype(jnp.dtype(dtype)).itemsize


def test_default_precision_is_jaxs():
    with jax.default_matmul_precision("highest"):
        assert oxijax.roofline(8, 8, 8, dtype="float32", device="A100").peak_tflops == 19.5


def test_exact_products_need_fewer_operations_to_be_bound_by_them():
    tf32, exact = (
        oxijax.roofline(1024, 1024, 64, dtype="float32", device="H200", precision=precision)
        for precision in (None, "highest")
    )
    assert tf32.bound == "memory"
    assert (exact.bound, exact.strategy) == ("compute", "dot_general")


def test_batch_and_beta():
    def moved(**options):
        return oxijax.roofline(3, 5, 7, dtype="float32", device="H200", **options).bytes

    assert moved() == 4 * (21 + 35 + 15)
    assert moved(batch=6) == 6 * moved()
    assert moved(beta=0.0) == moved()
    assert moved(beta=-0.5) == moved() + 4 * 15


@pytest.mark.parametrize("k", [8, 100, 20_000])
def test_auto_takes_a_kernel_for_what_memory_bounds(k):
    result = oxijax.roofline(8192, 16, k, dtype="bfloat16", device="H200")
    assert result.bound == "memory"
    assert result.strategy in STRATEGIES
    sheet = data_sheet("H200")
    assert result.strategy == auto_strategy(8192, 16, k, dtype="bfloat16", sheet=sheet)


def test_of_an_unknown_gpu_auto_takes_only_what_memory_bounds_on_any():
    assert auto_strategy(4096, 4096, 4, dtype="bfloat16", sheet=None) in STRATEGIES
    assert auto_strategy(4096, 4096, 64, dtype="bfloat16", sheet=None) == DOT_GENERAL
    for sheet in DATA_SHEETS.values():
        assert auto_strategy(4096, 4096, 64, dtype="bfloat16", sheet=sheet) in STRATEGIES


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("m", "n", "k"), [(8192, 16, 8), (8192, 64, 100), (64, 64, 65_536), (4096, 4096, 4096)]
)
def test_gemm_takes_what_roofline_says(m, n, k, dtype):
    """By the program that a GPU would get; "sm_90" stands for an H200."""
    operands = [jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in ((m, k), (k, n))]
    with emulate_gpu("sm_90"):
        program = jax.jit(oxijax.gemm).lower(*operands).as_text()
    taken = re.findall(r"strategy\\22:\\22(\w+)", program)
    if not taken:
        assert "stablehlo.dot_general" in program
        taken = [DOT_GENERAL]
    result = oxijax.roofline(m, n, k, dtype=dtype, device="sm_90")
    assert taken == [result.strategy]


# ---- the GPU


def test_without_a_gpu_it_is_an_a100():
    assert oxijax.roofline(8, 8, 8, dtype="float32").device == "A100 80GB"


@pytest.mark.parametrize("name", DATA_SHEETS)
def test_the_gpu_that_jax_uses(monkeypatch, name):
    for kind in DATA_SHEETS[name].kinds:
        has_gpu(monkeypatch, kind)
        assert oxijax.roofline(8, 8, 8, dtype="float32").device == name
        assert default_data_sheet() is DATA_SHEETS[name]


L4 = Gpu(
    "NVIDIA L4", 89, 23 * 2**30, 99 * 1024,
    sms=58, clock_khz=2_040_000, memory_clock_khz=6_251_000, bus_width=192,
)  # fmt: skip


def test_of_a_gpu_without_data_sheet_the_driver_is_asked(monkeypatch):
    has_gpu(monkeypatch, L4.name)
    FakeCuda(monkeypatch, Gpu("another"), L4)
    result = oxijax.roofline(4096, 16, 512, dtype="bfloat16")
    assert result.device == L4.name
    assert result.peak_bandwidth_tbps == pytest.approx(0.3, rel=1e-3)  # NVIDIA's data sheet
    assert result.peak_tflops == pytest.approx(121 / 2, rel=0.01)  # as on a GeForce
    assert result.bound == "memory"
    assert result.strategy in STRATEGIES


def test_a_gpu_of_which_nothing_is_known(monkeypatch):
    has_gpu(monkeypatch, L4.name)
    FakeCuda(monkeypatch, dataclasses.replace(L4, memory_clock_khz=0))
    assert default_data_sheet() is None
    with pytest.raises(ValueError, match=r"device must be given, one of A100 40GB.*'NVIDIA L4'"):
        oxijax.roofline(8, 8, 8, dtype="float32")
    assert oxijax.roofline(8, 8, 8, dtype="float32", device="H200").device == "H200"


def test_a_data_sheet_of_ones_own():
    sheet = dataclasses.replace(data_sheet("H200"), name="half an H200", bandwidth=2.4)
    result = oxijax.roofline(8, 8, 8, dtype="float32", device=sheet)
    assert (result.device, result.peak_bandwidth_tbps) == ("half an H200", 2.4)


@pytest.mark.parametrize(
    ("sizes", "options", "error", "message"),
    [
        ((0, 1, 1), {}, ValueError, "m must be positive, got 0"),
        ((1, -1, 1), {}, ValueError, "n must be positive, got -1"),
        ((1, 1, 0), {}, ValueError, "k must be positive, got 0"),
        ((1, 1, 1.0), {}, TypeError, "k must be an int, got 1.0"),
        ((1, 1, 1), {"batch": 0}, ValueError, "batch must be positive, got 0"),
        ((1, 1, 1), {"dtype": "int8"}, TypeError, "dtype must be one of float16, bfloat16, float"),
        ((1, 1, 1), {"dtype": None}, TypeError, "float64, got None"),
        ((1, 1, 1), {"dtype": "half a float"}, TypeError, "float64, got 'half a float'"),
        ((1, 1, 1), {"device": "V100"}, ValueError, "device must be one of A100 40GB"),
        ((1, 1, 1), {"device": 80}, TypeError, "device must be a name, a ptx.devices.DataSheet or"),
        ((1, 1, 1), {"precision": "most"}, ValueError, "precision must be None, a jax.lax.Precis"),
    ],
)
def test_errors(sizes, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        oxijax.roofline(*sizes, **{"dtype": "float32", **options})


# ---- python -m oxijax roofline


def value_of(label: str, printed: str) -> str:
    """What stands beside a label."""
    (line,) = [line for line in printed.splitlines() if line.startswith(f"{label}  ")]
    return line.removeprefix(label).strip()


def test_command(tmp_path, capsys):
    picture, file = tmp_path / "roofline.PNG", tmp_path / "roofline.json"
    arguments = ["4096", "4096", "8", "--device", "H200", "--output", str(picture)]
    assert main(["roofline", *arguments, "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert value_of("product", printed) == "[4096, 8] @ [8, 4096], bfloat16"
    assert value_of("GPU", printed) == "H200: 989.5 TFLOP/s (bf16 tensor cores), 4.8 TB/s"
    assert value_of("source", printed) == data_sheet("H200").source
    assert value_of("operations", printed) == "268.4 MFLOP"
    assert value_of("bytes", printed) == "33.69 MB, if everything is moved once"
    assert value_of("intensity", printed) == "7.969 FLOP/byte"
    assert value_of("balance point", printed) == "206.1 FLOP/byte"
    assert value_of("bound", printed) == "memory"
    assert value_of("at best", printed) == "7.018 µs, 38.25 TFLOP/s"
    assert value_of("strategy", printed) == "shallow_k"
    assert printed.endswith(f"Picture: {picture}\n")
    result = oxijax.roofline(4096, 4096, 8, dtype="bfloat16", device="H200")
    assert json.loads(file.read_text()) == dataclasses.asdict(result)
    height, width, _ = matplotlib.image.imread(picture).shape
    assert (height, width) == (960, 1440)


def test_options(tmp_path, capsys):
    file = tmp_path / "roofline.json"
    sizes = ["512", "256", "128", "--dtype", "f32", "--exact", "--batch", "6", "--beta", "0.5"]
    assert main(["roofline", *sizes, "--json", str(file)]) == 0
    options = {"dtype": "float32", "precision": "highest", "batch": 6, "beta": 0.5}
    result = oxijax.roofline(512, 256, 128, **options)
    assert json.loads(file.read_text()) == dataclasses.asdict(result)
    printed = capsys.readouterr().out
    assert value_of("product", printed) == "6 x [512, 128] @ [128, 256], float32"
    assert value_of("GPU", printed).startswith("A100 80GB: 19.5 TFLOP/s (f32 CUDA cores)")


def test_the_size_of_figures(capsys):
    """From a picosecond to an hour, and from a byte to petaflops."""
    assert main(["roofline", "1", "1", "1", "--device", "B200"]) == 0
    printed = capsys.readouterr().out
    assert value_of("operations", printed) == "2 FLOP"
    assert value_of("bytes", printed) == "6 B, if everything is moved once"
    assert value_of("at best", printed) == "0.75 ps, 2.667 TFLOP/s"
    assert main(["roofline", "1000000", "1000000", "40000", "--device", "B200"]) == 0
    printed = capsys.readouterr().out
    assert value_of("operations", printed) == "80 PFLOP"
    assert value_of("intensity", printed) == "37,037 FLOP/byte"
    assert value_of("at best", printed) == "35.56 s, 2,250 TFLOP/s"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["0", "1", "1"], "m must be positive, got 0"),
        (["1", "1", "1", "--batch", "0"], "batch must be positive, got 0"),
        (["1", "1", "1", "--device", "V100"], "device must be one of A100 40GB"),
        (["1", "1", "1", "--output", "picture.jpg"], "--output must be a .png file"),
        (["1", "1", "1", "--output", "nowhere/picture.png"], "in an existing folder"),
    ],
)
def test_command_errors(arguments, message, capsys):
    assert main(["roofline", *arguments]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("oxijax roofline: ")
    assert message in line
    assert captured.out == ""


@pytest.mark.parametrize("arguments", [["1", "1"], ["1", "1", "x"], ["1"] * 3 + ["--dtype=i8"]])
def test_unfit_arguments(arguments):
    with pytest.raises(SystemExit) as end:
        main(["roofline", *arguments])
    assert end.value.code == 2


def test_missing_extra(monkeypatch, capsys, tmp_path):
    monkeypatch.delitem(sys.modules, "oxijax._cli.roofline_picture", raising=False)
    monkeypatch.delattr(oxijax._cli, "roofline_picture", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["roofline", "8", "8", "8", "--output", str(tmp_path / "picture.png")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "matplotlib.figure" in line
    assert 'pip install "flax>=' in line


def test_without_a_picture_no_extra_is_needed():
    code = """if True:
        import sys
        sys.modules["matplotlib"] = None
        from oxijax.__main__ import main
        sys.exit(main(["roofline", "8", "8", "8", "--device", "H200"]))
    """
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "bound          memory\n" in ran.stdout


# ---- the picture


def drawn(monkeypatch, tmp_path, *sizes: int, **options):
    """The figure of a product, before it is drawn to a file."""
    from matplotlib.figure import Figure

    from oxijax._cli import roofline_picture

    figures = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))
    )
    result = oxijax.roofline(*sizes, **options)
    roofline_picture.draw(tmp_path / "picture.png", result)
    (figure,) = figures
    return figure, result


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((4096, 4096, 8), {"dtype": "bfloat16", "device": "H200"}),
        ((4096, 4096, 4096), {"dtype": "float32", "device": "A100"}),
        ((1, 1, 16384), {"dtype": "float64", "device": "H100", "batch": 8, "beta": 1.0}),
        ((4096, 4096, 200), {"dtype": "float32", "device": "B200"}),
        ((65536, 65536, 65536), {"dtype": "float32", "device": "RTX 4090", "precision": "highest"}),
    ],
)
def test_the_picture_tells_the_truth(monkeypatch, tmp_path, sizes, options):
    figure, result = drawn(monkeypatch, tmp_path, *sizes, **options)
    (axes,) = figure.axes
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert any(
        np.allclose(line.get_xydata(), [[result.intensity, result.attainable_tflops]])
        for line in axes.lines
    )
    flat = sorted(
        line.get_ydata()[0]
        for line in axes.lines
        if len(line.get_xdata()) == 2 and line.get_ydata()[0] == line.get_ydata()[1]
    )
    assert len(flat) == (1 if result.dtype == "bfloat16" else 2)
    assert result.peak_tflops in flat
    slopes = [
        line for line in axes.lines
        if np.allclose(line.get_ydata(), result.peak_bandwidth_tbps * np.asarray(line.get_xdata()))
        and len(line.get_xdata()) == 2
    ]  # fmt: skip
    assert any(line.get_xdata()[1] == result.balance_point for line in slopes)
    words = " ".join(text.get_text() for text in [*axes.texts, *figure.texts])
    for word in (result.device, result.dtype, result.unit, result.strategy, "balance point"):
        assert word in words


@pytest.mark.spread(9)
@pytest.mark.parametrize("name", DATA_SHEETS)
@pytest.mark.parametrize("k", [1, 64, 300, 8192])
def test_all_words_can_be_read(monkeypatch, tmp_path, name, k):
    figure, _ = drawn(monkeypatch, tmp_path, 4096, 4096, k, dtype="float32", device=name)
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert not any(box.overlaps(other) for box, other in itertools.combinations(boxes, 2))
    for text in [*figure.axes[0].texts, *figure.texts]:
        box = text.get_window_extent()
        assert 0 <= box.x0 <= box.x1 <= figure.bbox.width, text.get_text()
        assert 0 <= box.y0 <= box.y1 <= figure.bbox.height, text.get_text()


# ---- docs/gemm.md


PAGE = (DOCS / "gemm.md").read_text()
SECTION = re.search(r"^## Roofline\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)


def blocks(language: str) -> list[str]:
    assert SECTION
    return re.findall(rf"^```{language}\n(.*?)^```", SECTION[1], re.M | re.S)


def test_the_pages_command_prints_what_it_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (command,), (_, shown) = blocks("sh"), blocks("text")
    program = "python -m oxijax "
    assert command.startswith(program)
    assert main(command.removeprefix(program).split()) == 0
    assert capsys.readouterr().out == shown
    assert (tmp_path / "roofline.png").is_file()


def test_the_pages_python_runs():
    (code,) = blocks("python")
    exec(code, {})


def test_the_pages_balance_is_that_of_an_h200():
    assert "206 operations in bf16" in PAGE
    assert "only from K = 230 on" in re.sub(r"\s+", " ", PAGE)
    for k, bound in ((229, "memory"), (230, "compute")):
        assert oxijax.roofline(4096, 4096, k, dtype="bfloat16", device="H200").bound == bound


def test_the_pages_table_is_that_of_the_data_sheets():
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines()]
    table = {row[0]: row[1:] for row in rows if row[0] in DATA_SHEETS}
    assert list(table) == list(DATA_SHEETS)
    for name, (halves, tf32, f32, f64_tensor, f64, memory, stands_for) in table.items():
        sheet = DATA_SHEETS[name]
        rates = (sheet.f16, sheet.tf32, sheet.f32, sheet.f64_tensor, sheet.f64, sheet.bandwidth)
        shown = (halves, tf32, f32, f64_tensor, f64, memory)
        assert shown == tuple("" if rate is None else f"{round(rate, 3):g}" for rate in rates)
        for other in filter(None, stands_for.split(", ")):
            assert data_sheet(other) is sheet
