"""The pages of figures say what the committed results say, and nothing that has no provenance."""

import copy
import json
import re
import shutil

import evidence
import measure_cpu
import pytest
from evidence_pages.charts import Chart, Interval, digest_of
from evidence_pages.gpu_page import gpu_page
from evidence_pages.readings import load, newest, newest_of_gpus
from evidence_pages.wording import number
from support.paths import ROOT

PAGES = evidence.pages(evidence.RESULTS)
CPU = newest(evidence.RESULTS)["cpu"]


@pytest.fixture
def folder(tmp_path):
    """A copy of the committed results."""
    return shutil.copytree(evidence.RESULTS, tmp_path / "results")


def change(folder, kind, *keys, to):
    """Sets one value in the newest result of a kind; its path is a list of keys."""
    file = folder / newest(folder)[kind].name
    content = place = json.loads(file.read_text())
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = to
    file.write_text(json.dumps(content))


class TestCommitted:
    def test_pages_are_the_rendering_of_the_results(self):
        assert {path.name for path in evidence.PAGES.glob("*.md")} == set(PAGES)
        for name, page in PAGES.items():
            again = "run `python benchmarks/evidence.py`"
            assert (evidence.PAGES / name).read_text() == page.text, again

    def test_pictures_show_the_results(self):
        charts = {name: chart for page in PAGES.values() for name, chart in page.charts.items()}
        assert {path.name for path in evidence.PAGES.glob("*.svg")} == set(charts)
        for name, chart in charts.items():
            path = evidence.PAGES / name
            assert digest_of(path) == chart.digest, "run `python benchmarks/evidence.py`"
            assert path.stat().st_size < 100_000

    @pytest.mark.parametrize("name", PAGES)
    def test_what_a_page_points_to(self, name):
        text = PAGES[name].text
        links = re.findall(r"\]\(([^)#:]+)[)#]", text)
        assert set(PAGES[name].charts) <= set(links)
        paths = [evidence.PAGES / link for link in links]
        paths += [evidence.ROOT / path for path in re.findall(r"`(benchmarks/results/\S+)`", text)]
        assert [path for path in paths if not path.exists()] == []


def test_the_command_draws_what_has_changed(monkeypatch, tmp_path, folder):
    drawn = []
    monkeypatch.setattr(Chart, "draw", lambda chart, path: drawn.append(path.name))
    out = shutil.copytree(evidence.PAGES, tmp_path / "pages")
    (out / "gpu-of-long-ago.svg").write_text("<svg/>")
    options = ["--results", str(folder), "--out", str(out)]
    assert evidence.main(options) == 0
    assert drawn == []
    assert {path.name for path in out.iterdir()} == {p.name for p in evidence.PAGES.iterdir()}
    change(folder, "cpu", "launch", "native_us", to=4321.0)
    content = json.loads((folder / CPU.name).read_text())
    content["launch"].pop("spread", None)
    (folder / CPU.name).write_text(json.dumps(content))
    assert evidence.main(options) == 0
    assert drawn == ["launch.svg"]
    assert "4,321" in (out / "launch.md").read_text()


# The kind of a result, the path of a figure in it, its page, what that says then, and the picture
# that shows the figure, if one does.
CHANGES = {
    "layer": ("cpu", ("layers", "R50-c4", "forward_ms"), "cpu.md", "| R50-c4 | 4,321 |", None),
    "ratio": ("cpu", ("layers", "R50-c4", "forward_ratio"), "cpu.md", "| 4,321 |", "cpu-xla.svg"),
    "torchvision": (
        "cpu", ("torchvision", "layers", "R50-c4", "forward_backward_ratio"), "cpu.md", "| 4,321 |",
        "cpu-torchvision.svg",
    ),
    "image": ("cpu", ("image_sizes", "112x112", "forward_growth"), "cpu.md", "| 4,321 |", None),
    "launch": (
        "cpu", ("launch", "ctypes_us"), "launch.md", "| handler in Python, idle | 4,321 |",
        "launch.svg",
    ),
    "sampling": (
        "sampling-cpu", ("layers", "InternImage-T, stage 3", "forward", "plain", "ms"),
        "sampling.md", "| 4,321 |", "sampling.svg",
    ),
    "peers": (
        "peers-cpu", ("layers", "grid_sample, 512 x 512 x 3", "ONNX Runtime", "forward", "ms"),
        "peers.md", "| 4,321 |", None,
    ),
    "basicvsr": (
        "basicvsr-pp-beside-pytorch", ("median_seconds", "forward", "torch_s"), "models.md",
        "| 4,321 |", "models-basicvsr.svg",
    ),
    "alignment": ("basicvsr-alignment", ("psnr_db", "aligned"), "models.md", "| 4321.0 |", None),
    "digits": ("detect-digits", ("detectors", 0, "AP"), "models.md", "| 4321.000 |", None),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "keys", "page", "said", "picture"), CHANGES.values(), ids=CHANGES)
def test_another_figure_makes_another_page(folder, kind, keys, page, said, picture):
    file = folder / newest(folder)[kind].name
    content = json.loads(file.read_text())
    for place in dictionaries(content):  # the figure itself is on the page where there is no spread
        place.pop("spread", None)
        place.pop("time_ratio", None)
    file.write_text(json.dumps(content))
    before = evidence.pages(folder)[page]
    change(folder, kind, *keys, to=4321.0)
    after = evidence.pages(folder)[page]
    assert said in after.text
    assert said not in before.text
    changed = {name for name, chart in after.charts.items() if chart != before.charts[name]}
    assert changed == ({picture} if picture else set())


def dictionaries(place):
    """A dictionary and all that are in it."""
    if isinstance(place, dict):
        yield place
        for value in place.values():
            yield from dictionaries(value)


def test_the_newest_result_counts(folder):
    older = folder / "2020-01-01-cpu-2-cores-jax-0.10.2.json"
    older.write_text(json.dumps({**CPU.content, "date": "2020-01-01"}))
    assert newest(folder)["cpu"].name == CPU.name
    newer = folder / "2090-01-01-cpu-2-cores-jax-0.10.2.json"
    newer.write_text(json.dumps({**CPU.content, "date": "2090-01-01"}))
    assert "- **Measured** on 2090-01-01, " in evidence.pages(folder)["cpu.md"].text


def test_spread(folder):
    quartiles = {"lower_quartile": 1.25, "median": 1.5, "upper_quartile": 2.25}
    content = copy.deepcopy({**CPU.content, "date": "2090-01-01"})
    for layers in (content["layers"], content["torchvision"]["layers"]):
        for layer in layers.values():
            keys = [key for key in layer if key.endswith(("_ms", "_ratio"))]
            layer.update(rounds=7, spread=dict.fromkeys(keys, quartiles))
    (folder / "2090-01-01-cpu-2-cores.json").write_text(json.dumps(content))
    page = evidence.pages(folder)["cpu.md"]
    cells = " | ".join(["1.50 (1.25 to 2.25)"] * 3)
    assert page.text.count(f"| R50-c5 | {cells} |") == 4
    assert "| XLA's plain convolution | 1.50 | 1.50 |" in page.text
    assert "There were 7 to 7 rounds" in page.text
    assert "no error bars" not in page.text
    assert page.charts["cpu-xla.svg"].series["forward"][0] == Interval(1.5, 1.25, 2.25)


WRONG = {
    "no date": ("date", None, "date must be an ISO 8601 date, got None"),
    "not a date": ("date", "yesterday", "date must be an ISO 8601 date, got 'yesterday'"),
    "no machine": ("machine", None, "machine must have a number of cores, got None"),
    "no cores": ("machine", {"cores": 0}, "machine must have a number of cores"),
    "no versions": ("versions", None, "versions must name jax, got None"),
    "not JAX's": ("versions", {"python": "3.11"}, "versions must name jax"),
}


@pytest.mark.parametrize(("key", "value", "message"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("kind", ["cpu", "sampling-cpu", "detect-digits"])
def test_a_result_without_provenance_is_refused(folder, kind, key, value, message):
    change(folder, kind, key, to=value)
    with pytest.raises(ValueError, match=message):
        evidence.pages(folder)


def test_an_unknown_kind_is_refused(folder):
    (folder / "2026-01-01-abacus-cpu.json").write_text(json.dumps(CPU.content))
    with pytest.raises(ValueError, match="the name must be DATE-KIND-"):
        evidence.pages(folder)


def times(us):
    return {"median_us": us, "min_us": 0.9 * us, "max_us": 1.2 * us}


def gpu_report(**changes):
    """A report of the GPU suite, whose times are made up."""
    layers = ("R50-c3", "R50-c4")
    work = {"flops": 1e9, "bytes": 1e9}
    conv = {"forward": {**times(50.0), **work}, "xla_forward": times(25.0)}
    section = {"status": "done", "seconds": 1.0, "limit_s": 9.0, "failures": [], "cut": []}
    found = {
        "info": {
            "versions": {"jax": "0.10.2", "torch": None},
            "nvidia_smi": {"idle": {"name": "NVIDIA H100", "driver_version": "580.1"}},
            "copy": {"bytes_per_second": 3e12},
            "products": {"float16": {"flops_per_second": 8e14}},
        },
        "tests": {"counts": {"passed": 71}},
        "times-oxijax": {"times": {n: {"float16": {"forward": times(100.0)}} for n in layers}},
        "times-torch": {"times": {n: {"float16": {"forward": times(400.0)}} for n in layers}},
        "times-conv": {
            "times": {"conv1": {"float16": conv}}, "compared_layers": ["conv1"], "small_layers": [],
        },
        "times-peers": {
            "times": {"encoder": {"float16": {"forward": times(10.0)}}},
            "peers": {
                "one": {"encoder": {"float16": {"forward": times(40.0)}}},
                "two": {"not_measured": "it is not there"},
            },
        },
    }  # fmt: skip
    sections = {name: {**section, "results": results} for name, results in found.items()}
    sections["tests"]["failures"] = [{"what": "test_one", "why": "it is wrong"}]
    report = {"date": "2026-11-30", "mode": "measure", "layers": list(layers)}
    return {**report, "sections": sections, **changes}


class TestGpu:
    @pytest.fixture
    def folder(self, folder):
        """The committed results but those of GPUs."""
        while readings := newest_of_gpus(folder):
            for reading in readings.values():
                (folder / reading.name).unlink()
        return folder

    def test_nothing_is_measured(self):
        page = gpu_page({})
        assert "**Nothing is measured on a GPU yet**" in page.text
        assert "python benchmarks/gpu.py --out DIR" in page.text
        assert not page.charts

    def test_a_report(self, folder):
        (folder / "2026-11-30-h100-jax-0.10.2.json").write_text(json.dumps(gpu_report()))
        page = evidence.pages(folder)["gpu.md"]
        assert "Nothing is measured" not in page.text
        for said in (
            "on 2026-11-30, on this machine: NVIDIA H100.",
            "Versions: jax 0.10.2, driver 580.1.",
            "Tests on this GPU: 71 passed.",
            "Failed: tests: test_one (it is wrong).",
            # Fastest over slowest: 90 over 480, and 120 over 360.
            "| R50-c3 | float16 | 100 (90.0 to 120) | 400 (360 to 480) | 0.250 (0.188 to 0.333) |",
            "| geometric mean | float16 |  |  | 0.250 |",
            "| conv | float16 | forward | memory-bound or small | 1 | 2.00 |",
            "| encoder | float16 | one | 10.0 | 40.0 | 0.250 |",
        ):
            assert said in page.text
        assert "forward + backward, measured" not in page.text  # no time of it
        (chart,) = page.charts.values()
        assert chart.rows == ["R50-c3, float16", "R50-c4, float16"]
        assert chart.series["forward + backward"] == [None, None]

    def test_a_report_without_torchvision(self, folder):
        report = gpu_report()
        del report["sections"]["times-torch"]
        report["sections"]["tests"]["cut"] = [{"what": f"layer {i}"} for i in range(23)]
        (folder / "2026-11-30-h100-jax-0.10.2.json").write_text(json.dumps(report))
        page = evidence.pages(folder)["gpu.md"]
        assert "Not measured beside torchvision" in page.text
        assert "Left out for lack of time: tests: layer 0; " in page.text
        assert "layer 19 and 3 more." in page.text
        assert not page.charts

    def test_the_newest_of_each_gpu(self, folder):
        for day, name in ((1, "NVIDIA H100"), (2, "NVIDIA H100"), (3, "NVIDIA A100")):
            report = gpu_report(date=f"2026-12-0{day}")
            smi = report["sections"]["info"]["results"]["nvidia_smi"]
            smi["idle"] = {"name": name}
            (folder / f"2026-12-0{day}-gpu.json").write_text(json.dumps(report))
        found = {gpu: reading.date for gpu, reading in newest_of_gpus(folder).items()}
        assert found == {"NVIDIA H100": "2026-12-02", "NVIDIA A100": "2026-12-03"}

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"mode": "dry-run"}, "mode must be 'measure', got 'dry-run'"),
            ({"sections": {}}, "machine must be what nvidia-smi says of the GPU, got None"),
            ({"date": ""}, "date must be"),
        ],
    )
    def test_refused(self, tmp_path, changes, message):
        file = tmp_path / "2026-11-30-h100.json"
        file.write_text(json.dumps(gpu_report(**changes)))
        with pytest.raises(ValueError, match=message):
            load(file)


def test_a_picture_is_the_same_each_time(tmp_path):
    series = {"forward": [Interval(0.5, 0.4, 0.7), None], "both": [Interval(2.0), Interval(3.0)]}
    chart = Chart("title", "axis", ["one", "two"], series, log=True, reference=(1.0, "equal"))
    files = [tmp_path / name for name in ("first.svg", "second.svg")]
    for file in files:
        chart.draw(file)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert digest_of(files[0]) == chart.digest
    (tmp_path / "other.svg").write_text("<svg/>")
    assert digest_of(tmp_path / "other.svg") is None


@pytest.mark.parametrize(
    ("value", "said"),
    [
        *((0.0, "0"), (0.01234, "0.0123"), (1.0, "1.00"), (9.996, "10.00"), (54.25, "54.2")),
        *((952.4, "952"), (8801.2, "8,801"), (-0.05, "-0.0500")),
    ],
)
def test_number(value, said):
    assert number(value) == said


class TestMeasure:
    WRITES = "import json, sys; json.dump(json.loads(sys.argv[1]), open(sys.argv[-1], 'w'))"

    def command(self, monkeypatch, result):
        command = ["-c", self.WRITES, json.dumps(result)]
        monkeypatch.setitem(measure_cpu._COMMANDS, "detect-digits", lambda *_: command)

    def test_an_example_gets_its_provenance(self, monkeypatch, tmp_path):
        self.command(monkeypatch, {"jax": "0", "seconds": 5})
        file = measure_cpu.measure("detect-digits", tmp_path / "new", quick=True)
        reading = load(file)
        assert re.search(r"\d-detect-digits-\d+-cores-jax-\d", file.name)
        assert reading.content["seconds"] == 5
        assert {"oxijax", "jax", "jaxlib", "python"} == set(reading.versions)

    def test_what_is_refused_is_not_kept(self, monkeypatch, tmp_path):
        self.command(monkeypatch, {"versions": {"jax": "0"}})
        with pytest.raises(ValueError, match="date must be"):
            measure_cpu.measure("detect-digits", tmp_path, quick=True)
        assert not list(tmp_path.iterdir())

    def test_kinds_in_turn(self, monkeypatch, tmp_path):
        """Each waits until the load of the one before has faded."""
        loads, happened = iter([0.1, 2.0, 1.5, 0.9, 0.8, 9.0]), []
        monkeypatch.setattr(
            measure_cpu, "machine", lambda: {"cores": 2, "load_before": next(loads)}
        )
        monkeypatch.setattr(measure_cpu, "measure", lambda kind, *_: happened.append(kind))
        monkeypatch.setattr(measure_cpu.time, "sleep", lambda _: happened.append("waited"))
        kinds = ["detect-digits", "basicvsr-alignment", "detect-digits"]
        assert measure_cpu.main([*kinds, "--out", str(tmp_path)]) == 0
        assert happened == [kinds[0], "waited", "waited", kinds[1], kinds[2]]
        happened.clear()
        assert measure_cpu.main([kinds[0], "--out", str(tmp_path), "--busy"]) == 0
        assert happened == [kinds[0]]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["abacus"], "there is no kind abacus; there are cpu, "),
            (["--quick"], "--quick needs --out"),
            (["sampling-cpu"], "the machine is busy (load 9.0)"),
        ],
    )
    def test_refused(self, monkeypatch, capsys, options, message):
        busy = {"processor": "", "cores": 2, "load_before": 9.0}
        monkeypatch.setattr(measure_cpu, "machine", lambda: busy)
        with pytest.raises(SystemExit):
            measure_cpu.main(options)
        assert message in capsys.readouterr().err


def cells(page: str, *first: str) -> list[str]:
    """The cells of a page's first row that begins with some."""
    begin = "| " + " | ".join(first) + " |"
    row = next(line for line in page.splitlines() if line.startswith(begin))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_readme_has_the_figures_of_the_pages():
    readme, pages = (ROOT / "README.md").read_text(), ROOT / "docs" / "evidence"
    page = (pages / "peers.md").read_text()
    for said, column in (
        (cells(readme, "`deform_conv` on a CPU, forward"), 3),
        (cells(readme, "`deform_conv` on a CPU, with gradients"), 4),
    ):
        assert said[3] == cells(page, "`deform_conv`", "torchvision")[column]
        assert (
            said[6].replace("no gradients", "-") == cells(page, "`deform_conv`", "OpenVINO")[column]
        )
    said = cells(readme, "error of `deform_conv`, float32, ResNet-50's stage 3")
    errors = page.partition("## Errors")[2]
    ours, theirs = cells(errors, "deform_conv, R50-c3")[1:]
    assert said[1] == ours
    assert f"torchvision {said[3]}, OpenVINO {said[6]}," in theirs
    means = r"([\d.]+) times as fast forward, and ([\d.]+) times with the backward pass"
    measured = re.search(means, (pages / "sampling.md").read_text())
    said = re.search(r"1/([\d.]+); 1/([\d.]+) \|", readme)
    assert measured
    assert said
    assert measured.groups() == said.groups()
    for operator in ("deform_conv", "grid_sample", "ms_deform_attn"):
        row = rf"^\| `{operator}` \| the fastest of a layer \| \d+ \| ([\d.]+) \| ([\d.]+) \|$"
        measured = re.search(row, page, re.M)
        said = re.search(rf"`{operator}` ([\d.]+)\s+forward, ([\d.]+) with gradients", readme)
        assert measured
        assert said
        assert measured.groups() == said.groups()
    gpu, _, h100 = (pages / "gpu.md").read_text().partition("## NVIDIA H100")
    for direction in ("forward", "with gradients"):
        said = cells(readme, f"`deform_conv` on an H200, {direction}, f16; f32")[3]
        measured = re.findall(
            r"^\| geometric mean \| float(?:16|32) \|  \|  \| ([\d.]+) \|$", gpu, re.M
        )
        assert said == "; ".join(measured[:2] if direction == "forward" else measured[2:4])
    said = cells(readme, "attention, DCNv4 on an H100, with gradients")
    for column, library in ((2, "deformops, Triton"), (5, "DCNv4, CUDA")):
        rows = [
            line.strip("|").split("|") for line in h100.splitlines() if f"| {library} |" in line
        ]
        ratios = sorted((row[-1].strip() for row in rows), key=float)
        assert said[column] == f"{ratios[0]} to {ratios[-1]}"
    assert "on an H200 1,355 of 1,355" in readme
    assert "1355 ran, 1355 passed" in gpu
