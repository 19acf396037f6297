"""Section info: what is installed, the GPU and its clocks, how fast it copies and multiplies."""

import importlib.metadata
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from gpu_suite.layers import DTYPES
from gpu_suite.recorder import Recorder
from gpu_suite.timing import chain, time_chain

__all__ = ["run"]

_PACKAGES = ("jax", "jaxlib", "torch", "torchvision", "cuda-bindings", "numpy")
_COPY_BYTES = 2 * 2**30  # many times any L2
_PRODUCT_SIZE = 8192  # that keeps all of a GPU busy for milliseconds


def run(recorder: Recorder) -> None:
    recorder.put("versions", value={name: _version(name) for name in _PACKAGES})
    tiny = recorder.mode.tiny
    if recorder.mode.emulated:
        recorder.put("copy", value={"not_measured": "dry run"})
    else:  # before all else: other sections' times are judged by it
        recorder.put("nvidia_smi", "idle", value=_clocks())
        try:
            recorder.put("copy", value=_copy_bandwidth(2**20 if tiny else _COPY_BYTES))
        finally:
            recorder.put("nvidia_smi", "after_the_copy", value=_clocks())
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "info.json"
        command = [sys.executable, "-m", "oxijax", "info", "--json", str(file)]
        environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        if done.returncode:
            recorder.fail("python -m oxijax info", (done.stdout + done.stderr)[-4000:])
        else:
            report = json.loads(file.read_text())
            recorder.put("oxijax", value=report)
            if not report["handler"]:
                recorder.fail("python -m oxijax info", "the launch handler is not built")
            if not recorder.mode.emulated and not report["cuda"]["gpus"]:
                recorder.fail("python -m oxijax info", "; ".join(report["missing"]))
    recorder.put("products", value=_product_rates(8 if tiny else _PRODUCT_SIZE, tiny))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _clocks() -> dict[str, str] | str:
    """Name, driver, clocks, power and temperature; or why they are not known."""
    wanted = [
        *("name", "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem"),
        *("power.draw", "power.limit", "temperature.gpu", "utilization.gpu", "memory.used"),
    ]
    program = shutil.which("nvidia-smi")
    if program is None:
        return "nvidia-smi is not on PATH"
    done = subprocess.run(
        [program, f"--query-gpu={','.join(wanted)}", "--format=csv,noheader", "--id=0"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    if done.returncode:
        return f"nvidia-smi failed: {done.stdout}{done.stderr}".strip()
    values = (value.strip() for value in done.stdout.strip().split(","))
    return dict(zip(wanted, values, strict=False))


def _copy_bandwidth(size: int) -> dict[str, Any]:
    """Bytes read and written per second by copies within the GPU's memory, timed with events."""
    from oxijax._core.gpu.driver import driver

    def call(function: str, *args: Any) -> Any:
        results = driver()._call(function, *args)
        return results[0] if results else None

    with driver()._primary_context(driver()._handles[0]):
        source, target = (call("cuMemAlloc", size) for _ in range(2))
        call("cuMemsetD32", source, 0x3F9E3779, size // 4)
        start, stop = call("cuEventCreate", 0), call("cuEventCreate", 0)
        stream, copies, rates = 0, 10, []
        for _ in range(8):
            call("cuEventRecord", start, stream)
            for _ in range(copies):
                call("cuMemcpyDtoDAsync", target, source, size, stream)
            call("cuEventRecord", stop, stream)
            call("cuEventSynchronize", stop)
            seconds = call("cuEventElapsedTime", start, stop) / 1e3
            rates.append(2 * size * copies / seconds)
        for memory in (source, target):
            call("cuMemFree", memory)
    rates = rates[1:]  # the first one warms up
    return {
        "bytes": size,
        "bytes_per_second": statistics.median(rates),
        "best_bytes_per_second": max(rates),
        "counts": "bytes read and bytes written",
    }


def _product_rates(size: int, tiny: bool) -> dict[str, Any]:
    """Operations per second of XLA's product of two large square matrices, in each dtype."""
    import jax

    found = {}
    for dtype in DTYPES:
        keys = jax.random.split(jax.random.key(0), 4)
        arrays = [jax.random.normal(key, (size, size)).astype(dtype) for key in keys]
        sets = [tuple(arrays[:2]), tuple(arrays[2:])]
        product = jax.jit(chain(lambda a, b: a @ b)).lower(*sets).compile()
        times = time_chain(product, sets, tiny)
        found[dtype] = {"size": size, "median_us": times["median_us"]}
        if not tiny:
            found[dtype]["flops_per_second"] = 2 * size**3 / (times["median_us"] / 1e6)
    return found
