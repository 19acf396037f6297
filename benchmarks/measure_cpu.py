"""Measures what docs/evidence says of a CPU, into benchmarks/results, and writes the pages again.

    python benchmarks/measure_cpu.py [KIND...]

It needs an idle machine, `pip install ".[demo]"` and what
`benchmarks/requirements-torchvision.txt` lists. Without a kind it measures deformable convolution,
the launch and the sampling operators, in about ten minutes on two cores. README.md in this folder
has the other kinds. A result is put in its place when its program has ended well.
"""

import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import evidence  # noqa: E402
from evidence_pages.readings import KINDS, load  # noqa: E402

from oxijax._cli.bench_rounds import machine, versions  # noqa: E402

__all__ = ["main"]

_DEFAULT = ("cpu", "sampling-cpu")
_NEEDED = {
    "cpu": ("torch", "torchvision", "rich"),
    "peers-cpu": ("torch", "torchvision", "onnx", "onnxruntime", "openvino"),
    "basicvsr-pp-beside-pytorch": ("torch", "torchvision", "flax"),
    "basicvsr-alignment": ("flax", "optax", "rich", "sklearn"),
    "detect-digits": ("flax", "optax", "rich", "sklearn"),
    "keras-sampling": ("keras", "keras_hub", "zeromodels"),
    "keras-training": ("keras", "optax", "rich", "sklearn", "zeromodels"),
}
_IDLE = 0.5  # processes for each core that want to run, at most
_FADES = 180  # seconds, after which the load is somebody else's, and the result says so


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; {' '.join(_DEFAULT)}")
    add("--out", type=pathlib.Path, default=evidence.RESULTS, help="folder; %(default)s")
    add("--busy", action="store_true", help="measure though the machine does other work")
    add("--quick", action="store_true", help="a round or two: to try this script, with --out")
    args = parser.parse_args(argv)
    kinds = args.kinds or _DEFAULT
    where, final = machine(), args.out.resolve() == evidence.RESULTS
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"there is no kind {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    if args.quick and final:
        parser.error("--quick needs --out: times of a round or two are no result")
    missing = {module for kind in kinds for module in ("matplotlib", *_NEEDED.get(kind, ()))}
    missing = sorted(name for name in missing if importlib.util.find_spec(name) is None)
    if missing:
        peers = "keras-clients" if kinds[0].startswith("keras") else "torchvision"
        peers = "peers" if "peers-cpu" in kinds else peers
        parser.error(
            f'{", ".join(missing)} must be installed: pip install ".[demo]" '
            f"-r benchmarks/requirements-{peers}.txt"
        )
    if not args.busy and _is_busy(where):
        parser.error(f"the machine is busy (load {where['load_before']:.1f}): wait, or pass --busy")
    for index, kind in enumerate(kinds):
        if index and not args.busy:
            _let_load_fade()
        print(f"{kind}: {measure(kind, args.out, args.quick)}", flush=True)
    return evidence.main([]) if final else 0


def measure(kind: str, out: pathlib.Path, quick: bool) -> pathlib.Path:
    """Runs the program of a kind and returns the file with its result."""
    where, now = machine(), datetime.datetime.now(datetime.UTC)
    name = f"{now:%Y-%m-%d}-{kind}-{where['cores']}-cores-jax-{versions()['jax']}.json"
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / name
        command = [sys.executable, *_COMMANDS[kind](folder, quick), "--json", str(file)]
        subprocess.run(command, cwd=ROOT, env=_environment(), check=True)
        found = json.loads(file.read_text())
        if "versions" not in found:  # an example, which knows nothing of results
            found.pop("jax")
            date = now.isoformat(timespec="seconds")
            found = {"date": date, "machine": where, "versions": versions(), **found}
            file.write_text(json.dumps(found, indent=1) + "\n")
        load(file)
        out.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(file.read_text())
    return out / name


def _is_busy(where: dict[str, Any]) -> bool:
    return (where["load_before"] or 0) > _IDLE * where["cores"]


def _let_load_fade() -> None:
    """Waits until a program that has ended is no longer in the load, a mean over a minute."""
    end = time.monotonic() + _FADES
    while _is_busy(machine()) and time.monotonic() < end:
        time.sleep(2)


def _environment() -> dict[str, str]:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "JAX_PLATFORMS": "cpu",
        "KERAS_BACKEND": "jax",
    }


def _example(name: str, quickly: tuple[str, str]) -> Callable[[str, bool], list[str]]:
    """The command of an example, whose picture goes nowhere, and its option to be quick."""

    def command(folder: str, quick: bool) -> list[str]:
        picture = ["--picture", str(pathlib.Path(folder) / "picture.png")]
        return [f"examples/{name}.py", *picture, *(quickly if quick else [])]

    return command


# Each gets a folder for pictures, and whether a round or two are enough.
_COMMANDS: dict[str, Callable[[str, bool], list[str]]] = {
    "cpu": lambda _, quick: ["-m", "oxijax", "bench", *(["--repeats", "2"] if quick else [])],
    "sampling-cpu": lambda _, quick: ["benchmarks/sampling.py", "--runs", "2" if quick else "9"],
    "peers-cpu": lambda _, quick: ["benchmarks/cpu_peers.py", "--runs", "2" if quick else "9"],
    "basicvsr-pp-beside-pytorch": lambda _, quick: [
        *("benchmarks/basicvsr_times.py", "--runs", "2" if quick else "7")
    ],
    "basicvsr-alignment": _example("basicvsr_pp", ("--seconds", "5")),
    "detect-digits": _example("detect_digits", ("--seconds", "5")),
    "keras-sampling": lambda _, quick: [
        *("benchmarks/keras_detectors.py", "--runs", "2" if quick else "15")
    ],
    "keras-training": _example("keras_detector", ("--steps", "3")),
}


if __name__ == "__main__":
    sys.exit(main())
