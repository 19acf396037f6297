"""List what is installed, which GPUs there are, and what is missing for kernels to run on them.

Ends with exit code 0 whatever is missing.
"""

import argparse
import collections
import dataclasses
import importlib.metadata
import pathlib
import platform
from collections.abc import Iterator
from typing import Any

import jax
import jax.extend.backend
import numpy as np

import oxijax
from oxijax._cli import print_labelled, tool_message
from oxijax._cli.arguments import add_json_argument, write_json
from oxijax._core import launch as _launch
from oxijax._core.gpu import driver as _driver
from ptx.isa.assembler import ToolNotFoundError, find_ptxas, ptxas_version
from ptx.isa.sass import find_nvdisasm

__all__ = ["add_arguments", "collect", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_json_argument(parser)


def run(args: argparse.Namespace) -> int:
    report = collect()
    print_labelled(_lines(report))
    print()
    print("missing" if report["missing"] else "Nothing is missing.")
    for line in report["missing"]:
        print(f"- {line}")
    write_json(args, report)
    return 0


def collect() -> dict[str, Any]:
    """All that the command prints, as JSON can hold it; None where something is not there."""
    missing: list[str] = []
    cuda = _cuda(missing)
    return {
        "versions": {
            "oxijax": oxijax.__version__,
            "python": platform.python_version(),
            "jax": jax.__version__,
            **{package: _version(package) for package in ("jaxlib", "numpy", "ml_dtypes")},
        },
        "package": str(pathlib.Path(oxijax.__file__).parent),
        "platform": platform.platform(),
        "handler": _handler(missing),
        "jax": _jax(missing, gpus=len(cuda["gpus"])),
        "cuda": cuda,
        "deform_conv": _deform_conv(),
        "ptxas": _ptxas(missing),
        "nvdisasm": _nvdisasm(missing),
        "missing": missing,
    }


def _handler(missing: list[str]) -> str | None:
    try:
        return str(_launch.find_handler())
    except _launch.HandlerMissingError as error:
        missing.append(_one_line(error))
        return None


def _jax(missing: list[str], gpus: int) -> dict[str, Any]:
    """JAX's backends: the kinds of their devices and how many there are of each."""
    backends: dict[str, dict[str, int]] = {}
    try:
        for name, backend in jax.extend.backend.backends().items():
            kinds = sorted(device.device_kind for device in backend.devices())
            backends[name] = dict(collections.Counter(kinds))
        default = jax.default_backend()
    except Exception as error:  # a backend may fail as it likes; the command goes on
        wanted = jax.config.jax_platforms or "those it finds"  # pyright: ignore[reportAttributeAccessIssue]
        missing.append(
            f"JAX cannot start its backends ({wanted}): {_one_line(error)}. Unset JAX_PLATFORMS; "
            f"for a GPU {_driver.install_command()}"
        )
        return {"backends": backends, "default": None}
    if gpus and "cuda" not in backends:
        missing.append(
            "JAX does not use the GPU: it has no CUDA backend, or JAX_PLATFORMS leaves it out: "
            f"{_driver.install_command()}"
        )
    return {"backends": backends, "default": default}


def _deform_conv() -> str:
    """What a layer takes on JAX's default device: kernels or XLA's program, and why."""
    shapes = (1, 32, 32, 16), (1, 32, 32, 18), (3, 3, 16, 16)
    arrays = (jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes)
    try:
        (call,) = oxijax.resolve(oxijax.deform_conv, *arrays)
    except Exception as error:  # of the backend, the driver or the handler, as above
        return f"nothing: {_one_line(error)}"
    if call.implementation == "ptx":
        return f"kernels, on {call.kernels[0].gpu}"
    return f"XLA's program, since {call.reason}"


def _cuda(missing: list[str]) -> dict[str, Any]:
    report: dict[str, Any] = {
        "cuda_python": _version("cuda-python") or _version("cuda-bindings"),
        "driver": None,
        "gpus": [],
    }
    try:
        driver = _driver.driver()
    except _driver.DriverError as error:
        missing.append(f"only for NVIDIA GPUs: {_one_line(error)}")
        return report
    report["driver"] = _dotted(driver.version)
    for device in driver.devices:
        gpu = {**dataclasses.asdict(device), "target": None, "ptx": None}
        try:
            target = driver.target(device.ordinal)
        except _driver.DriverError as error:
            missing.append(_one_line(error))
        else:
            gpu.update(target=target.name, ptx=_dotted(target.lowest_ptx))
        report["gpus"].append(gpu)
    return report


def _ptxas(missing: list[str]) -> dict[str, str] | None:
    try:
        return {"path": str(find_ptxas()), "version": ptxas_version()}
    except ToolNotFoundError as error:
        missing.append(f"only for python -m oxijax check: {tool_message(error)}")
    except Exception as error:  # one that does not run, or says nothing of its version
        missing.append(f"only for python -m oxijax check: ptxas fails: {_one_line(error)}")
    return None


def _nvdisasm(missing: list[str]) -> str | None:
    try:
        return str(find_nvdisasm())
    except ToolNotFoundError as error:
        missing.append(
            f"only for the order in which oxijax.tune tries plans: {tool_message(error)}"
        )
    return None


def _lines(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The report as (label, text) lines."""
    for name, version in report["versions"].items():
        yield name, version or "missing"
    yield "imported from", report["package"]
    yield "platform", report["platform"]
    yield "launch handler", report["handler"] or "missing"
    for name, kinds in report["jax"]["backends"].items():
        default = ", the default" if name == report["jax"]["default"] else ""
        devices = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
        yield f"JAX on {name}", (devices or "no devices") + default
    yield "deform_conv takes", report["deform_conv"]
    cuda = report["cuda"]
    yield "cuda-python", cuda["cuda_python"] or "missing"
    yield "CUDA driver", f"CUDA {cuda['driver']}" if cuda["driver"] else "not usable"
    for gpu in cuda["gpus"]:
        runs = f"runs PTX {gpu['ptx']} for {gpu['target']}" if gpu["target"] else "not supported"
        memory = f"{gpu['memory'] / 2**30:.1f} GiB"
        yield f"GPU {gpu['ordinal']}", f"{gpu['name']}, sm_{gpu['sm']}, {memory}, {runs}"
    ptxas = report["ptxas"]
    yield "ptxas", f"{ptxas['version']}, {ptxas['path']}" if ptxas else "missing"
    yield "nvdisasm", report["nvdisasm"] or "missing"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _dotted(version: tuple[int, int]) -> str:
    return "{}.{}".format(*version)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
