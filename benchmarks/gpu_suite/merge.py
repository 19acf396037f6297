"""Several runs of the GPU suite as one report: a run need not have time for all sections."""

import copy
from collections.abc import Sequence
from typing import Any

from gpu_suite.recorder import Mode
from gpu_suite.tables import results

__all__ = ["merged"]


def merged(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The last run of each section, with its date, and the last run's date for all.

    Raises:
      ValueError: A report is of a rehearsal, none says on which GPU or with which versions, or one
        says another GPU or other versions than another.
    """
    whole: dict[str, Any] = {"mode": Mode.MEASURE.value, "layers": [], "sections": {}}
    for report in reports:
        if report["mode"] != whole["mode"]:
            raise ValueError(f"reports must have the mode 'measure', got {report['mode']!r}")
        whole["date"] = report["date"]
        whole["layers"] = report["layers"] or whole["layers"]
        dated = {name: {"date": report["date"], **s} for name, s in report["sections"].items()}
        whole["sections"] |= copy.deepcopy(dated)
    for name, found in (
        ("GPUs", {gpu for report in reports for gpu in _gpus(report)}),
        ("versions", {str(v) for r in reports if (v := results(r, "info").get("versions"))}),
    ):
        if len(found) != 1:
            raise ValueError(f"reports must have the same {name}, got {sorted(found)}")
    return whole


def _gpus(report: dict[str, Any]) -> set[str]:
    """The names that sections give the GPU that they ran on."""
    found = {
        section["results"]["device"]
        for section in report["sections"].values()
        if "device" in section["results"]
    }
    smi = results(report, "info").get("nvidia_smi", {}).get("idle", {})
    return found | ({smi["name"]} if "name" in smi else set())
