"""`python -m oxijax info`: what it says of machines with a GPU, without one, and in between."""

import importlib.metadata
import json
import os
import pathlib
import platform
import sys

import jax
import jax.extend.backend
import pytest
from support.fake_cuda import FakeCuda, Gpu
from support.paths import ROOT
from support.processes import python

import oxijax
from oxijax.__main__ import main
from oxijax._cli import info
from oxijax._core import launch as _launch
from oxijax._core.gpu import driver as _driver
from ptx.isa.assembler import ToolNotFoundError, ptxas_version


@pytest.fixture
def run(tmp_path, capsys):
    """Runs the command; what it prints, as lines, and the JSON that it writes."""

    def run():
        file = tmp_path / "info.json"
        assert main(["info", "--json", str(file)]) == 0
        return capsys.readouterr().out.splitlines(), json.loads(file.read_text())

    return run


@pytest.fixture
def no_cuda_python(monkeypatch):
    monkeypatch.setattr(_driver, "_opened", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)


def value_of(label: str, lines: list[str]) -> str:
    """What stands beside a label."""
    (line,) = [line for line in lines if line.startswith(f"{label}  ")]
    return line.removeprefix(label).strip()


@pytest.mark.quick
def test_one_gpu(run, monkeypatch):
    fake = FakeCuda(monkeypatch, Gpu("Fake L4", 89, 23 * 2**30, 99 * 1024, 100 * 1024))
    lines, report = run()
    assert value_of("oxijax", lines) == report["versions"]["oxijax"] == oxijax.__version__
    assert value_of("python", lines) == platform.python_version()
    assert value_of("jax", lines) == jax.__version__
    for package in ("jaxlib", "numpy", "ml_dtypes"):
        version = importlib.metadata.version(package)
        assert value_of(package, lines) == report["versions"][package] == version
    folder = str(pathlib.Path(oxijax.__file__).parent)
    assert value_of("imported from", lines) == report["package"] == folder
    assert value_of("platform", lines) == report["platform"] == platform.platform()

    assert value_of("CUDA driver", lines) == "CUDA 12.8"
    assert value_of("GPU 0", lines) == "Fake L4, sm_89, 23.0 GiB, runs PTX 7.8 for sm_89"
    assert report["cuda"]["driver"] == "12.8"
    assert report["cuda"]["gpus"] == [
        {
            "ordinal": 0,
            "name": "Fake L4",
            "sm": 89,
            "memory": 23 * 2**30,
            "shared_per_block": 99 * 1024,
            "shared_per_sm": 100 * 1024,
            "reserved_shared": 1024,
            "sms": 132,
            "clock_khz": 1_980_000,
            "memory_clock_khz": 2_619_000,
            "bus_width": 5120,
            "target": "sm_89",
            "ptx": "7.8",
        }
    ]
    fake.assert_balanced()

    count = len(jax.devices("cpu"))
    assert value_of("JAX on cpu", lines) == f"{count} x cpu, the default"
    assert report["jax"] == {"backends": {"cpu": {"cpu": count}}, "default": "cpu"}
    (missing,) = [line for line in report["missing"] if "JAX does not use the GPU" in line]
    assert 'pip install "jax[cuda13]>=' in missing
    assert f"- {missing}" in lines


def test_columns(run, monkeypatch):
    FakeCuda(monkeypatch)
    lines, _ = run()
    rows = lines[: lines.index("")]
    width = max(len(row.partition("  ")[0]) for row in rows) + 2
    assert len(rows) >= 12
    assert all(row[width - 1] == " " != row[width] for row in rows)


def test_no_driver(run, no_cuda_python):
    lines, report = run()
    assert value_of("CUDA driver", lines) == "not usable"
    assert not [line for line in lines if line.startswith("GPU")]
    assert (report["cuda"]["driver"], report["cuda"]["gpus"]) == (None, [])
    (missing,) = [line for line in report["missing"] if "cuda.bindings.driver" in line]
    assert 'pip install "jax[cuda13]>=' in missing
    assert not [line for line in report["missing"] if "JAX does not use the GPU" in line]


def test_unsupported_gpu_beside_another(run, monkeypatch):
    FakeCuda(monkeypatch, Gpu("Fake V100", 70), Gpu("Fake B300", 103))
    lines, report = run()
    assert value_of("GPU 0", lines) == "Fake V100, sm_70, 80.0 GiB, not supported"
    assert value_of("GPU 1", lines) == "Fake B300, sm_103, 80.0 GiB, runs PTX 8.6 for sm_100"
    assert (report["cuda"]["gpus"][0]["target"], report["cuda"]["gpus"][0]["ptx"]) == (None, None)
    assert [line for line in report["missing"] if "Fake V100 of sm_70 is too old" in line]


def test_handler(run, monkeypatch, tmp_path, no_cuda_python):
    monkeypatch.setattr(_launch, "find_handler", lambda: tmp_path / "libhandler.so")
    lines, report = run()
    assert value_of("launch handler", lines) == report["handler"] == str(tmp_path / "libhandler.so")

    def find_handler():
        raise _launch.HandlerMissingError("there was no C compiler:\n  install gcc")

    monkeypatch.setattr(_launch, "find_handler", find_handler)
    lines, report = run()
    assert value_of("launch handler", lines) == "missing"
    assert report["handler"] is None
    assert "- there was no C compiler: install gcc" in lines


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("Unable to\n initialize"), "Unable to initialize"),
        (AssertionError(), "AssertionE"),
    ],
)
def test_failing_backend(error, words, run, monkeypatch, no_cuda_python):
    def backends():
        raise error

    monkeypatch.setattr(jax.extend.backend, "backends", backends)
    lines, report = run()
    assert report["jax"] == {"backends": {}, "default": None}
    (line,) = [line for line in lines if words in line]
    assert "JAX_PLATFORMS" in line
    assert "pip install" in line


def test_ptxas(run, monkeypatch, no_cuda_python):
    lines, report = run()
    assert report["ptxas"]["version"] == ptxas_version()
    assert value_of("ptxas", lines) == f"{ptxas_version()}, {report['ptxas']['path']}"

    def find_ptxas():
        raise ToolNotFoundError("no ptxas: pip install nvidia-cuda-nvcc")

    monkeypatch.setattr(info, "find_ptxas", find_ptxas)
    lines, report = run()
    assert value_of("ptxas", lines) == "missing"
    assert report["ptxas"] is None
    (line,) = [line for line in lines if line.startswith("- only for python -m oxijax check: ")]
    assert 'check: no ptxas: pip install "nvidia-cuda-nvcc>=' in line


def test_nothing_is_missing(run, monkeypatch):
    FakeCuda(monkeypatch)
    backends = jax.extend.backend.backends()
    monkeypatch.setattr(
        jax.extend.backend, "backends", lambda: {**backends, "cuda": backends["cpu"]}
    )
    lines, report = run()
    assert report["missing"] == []
    assert lines[-1] == "Nothing is missing."


# ---- JAX itself is missing


@pytest.fixture
def without_jax(tmp_path, monkeypatch):
    """Processes that are started find no JAX."""
    (tmp_path / "sitecustomize.py").write_text('import sys\nsys.modules["jax"] = None\n')
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")


@pytest.mark.quick
def test_no_jax(without_jax):
    status, printed = python("-m", "oxijax", "info")
    assert status == 1
    (line,) = printed.splitlines()
    assert line.startswith(f"oxijax needs JAX, which {sys.executable} cannot import (")
    assert '): pip install "jax>=' in line


def test_importing_oxijax_without_jax(without_jax):
    status, printed = python("-c", "import oxijax")
    assert status == 1
    last = printed.splitlines()[-1]
    assert last.startswith("ImportError: oxijax needs JAX, which ")
    assert '): pip install "jax>=' in last


def test_without_json(capsys, no_cuda_python):
    assert main(["info"]) == 0
    assert "\nmissing\n- " in capsys.readouterr().out
