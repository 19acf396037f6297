"""Result files: which kinds there are, what each has to say of itself, and which is the newest."""

import dataclasses
import json
import pathlib
import re
from typing import Any

__all__ = ["KINDS", "Reading", "load", "newest", "newest_of_gpus"]

# What follows the date in a file's name. A report of the GPU suite is named after its GPU.
KINDS = (
    *("cpu", "sampling-cpu", "basicvsr-pp-beside-pytorch", "basicvsr-alignment", "detect-digits"),
    *("keras-sampling", "keras-training", "peers-cpu"),
)


@dataclasses.dataclass(frozen=True)
class Reading:
    """A result file that says when, where and with what it was measured.

    Attributes:
      name: the file's name.
      kind: one of `KINDS`, or "gpu".
      date: when it was measured; ISO 8601, the day at least.
      machine: what it was measured on, in words.
      versions: the versions of JAX, and of all else that the file names.
      content: all of the file.
    """

    name: str
    kind: str
    date: str
    machine: str
    versions: dict[str, str]
    content: dict[str, Any]


def load(path: pathlib.Path) -> Reading:
    """Reads a result file.

    Args:
      path: named DATE-KIND-*.json, or a report of the GPU suite.

    Raises:
      ValueError: The kind is unknown, or the file lacks its date, machine or versions, or is a
        rehearsal of the GPU suite, whose times mean nothing.
    """
    content = json.loads(path.read_text())
    date = content.get("date")
    if not isinstance(date, str) or not re.match(r"\d{4}-\d\d-\d\d", date):
        raise ValueError(f"{path.name}: date must be an ISO 8601 date, got {date!r}")
    if "sections" in content:
        kind, machine, versions = "gpu", _gpu(path.name, content), _gpu_versions(content)
    else:
        kind, machine = _kind(path.name), _cpu(path.name, content.get("machine"))
        versions = content.get("versions")
    if not isinstance(versions, dict) or not versions.get("jax"):
        raise ValueError(f"{path.name}: versions must name jax, got {versions!r}")
    known = {name: version for name, version in versions.items() if version}
    return Reading(path.name, kind, date, machine, known, content)


def newest(folder: pathlib.Path) -> dict[str, Reading]:
    """The newest result of each kind that a folder has, but for those of GPUs."""
    return {reading.kind: reading for reading in _all(folder) if reading.kind != "gpu"}


def newest_of_gpus(folder: pathlib.Path) -> dict[str, Reading]:
    """The newest report of each GPU, by the GPU's name."""
    return {reading.machine: reading for reading in _all(folder) if reading.kind == "gpu"}


def _all(folder: pathlib.Path) -> list[Reading]:
    """All results of a folder, the oldest first."""
    readings = [load(path) for path in sorted(folder.glob("*.json"))]
    return sorted(readings, key=lambda reading: (reading.date, reading.name))


def _kind(name: str) -> str:
    for kind in KINDS:
        if re.match(rf"\d{{4}}-\d\d-\d\d-{kind}-", name):
            return kind
    raise ValueError(f"{name}: the name must be DATE-KIND-*.json with a kind of {', '.join(KINDS)}")


def _cpu(name: str, machine: Any) -> str:
    cores = machine.get("cores") if isinstance(machine, dict) else None
    if not isinstance(cores, int) or cores < 1:
        raise ValueError(f"{name}: machine must have a number of cores, got {machine!r}")
    words = [machine.get("processor") or "processor not recorded"]
    words.append(f"{cores} core{'s' if cores > 1 else ''}")
    if (load := machine.get("load_before")) is not None:
        words.append(f"load {load:.1f} before the run")
    if machine.get("shared"):
        words.append("shared with other work")
    return ", ".join(words)


def _gpu(name: str, report: dict[str, Any]) -> str:
    if report.get("mode") != "measure":
        raise ValueError(f"{name}: mode must be 'measure', got {report.get('mode')!r}")
    found = _info(report).get("nvidia_smi", {}).get("idle")
    if not isinstance(found, dict) or not found.get("name"):
        raise ValueError(f"{name}: machine must be what nvidia-smi says of the GPU, got {found!r}")
    return found["name"]


def _gpu_versions(report: dict[str, Any]) -> dict[str, str]:
    smi = _info(report).get("nvidia_smi", {}).get("idle", {})
    return {**_info(report).get("versions", {}), "driver": smi.get("driver_version", "")}


def _info(report: dict[str, Any]) -> dict[str, Any]:
    return report["sections"].get("info", {}).get("results", {})
