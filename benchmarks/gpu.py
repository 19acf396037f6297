"""The GPU suite: correctness, memory checks and times on a real GPU, in one command.

    python benchmarks/gpu.py --out DIR

runs from a bare checkout, without network. Each section is a process of its own, so that one that
fails, or loses its GPU, does not stop the rest; what it has measured by then is kept. README.md in
this folder says what is measured, and how.

Exit status: 0 if all was done and right, 1 if anything failed, 3 if only time was lacking.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

from gpu_suite.device_tests import FILES  # noqa: E402
from gpu_suite.handler import build_handler  # noqa: E402
from gpu_suite.merge import merged  # noqa: E402
from gpu_suite.plan import SECTIONS, plan_page, seconds_for  # noqa: E402
from gpu_suite.processes import end_group  # noqa: E402
from gpu_suite.recorder import Mode  # noqa: E402
from gpu_suite.report import markdown, ratios, stem  # noqa: E402
from gpu_suite.report_against_xla import against_xla  # noqa: E402

_TAIL = 6000  # characters of a section's output that are kept


def main() -> int:
    parser = argparse.ArgumentParser(description="Correctness, memory checks and times on a GPU.")
    parser.add_argument("--out", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--budget", type=float, default=480, metavar="SECONDS", help="in all")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--dry-run", action="store_true", help="in the emulator, with tiny layers")
    modes.add_argument("--rehearse", action="store_true", help="on the GPU, with tiny layers")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument(
        "--plant", action="store_true", help="add a section that crashes, to see that reported"
    )
    parser.add_argument(
        "--merge", nargs="+", type=pathlib.Path, metavar="FILE", help="reports of earlier runs"
    )
    parser.add_argument(
        "--plan", action="store_true", help="print what would run and how long it should take"
    )
    parser.add_argument(
        "--compile-seconds", type=float, metavar="S", help="of a rehearsal: added to each program"
    )
    args = parser.parse_args()
    if args.plan:
        print(plan_page(FILES), end="")
        return 0
    if args.out is None:
        parser.error("--out DIR is missing")
    if args.compile_seconds is not None:
        os.environ["OXIJAX_SUITE_COMPILE_SECONDS"] = str(args.compile_seconds)
    args.out.mkdir(parents=True, exist_ok=True)
    mode = Mode.DRY_RUN if args.dry_run else Mode.REHEARSE if args.rehearse else Mode.MEASURE
    suite = _Suite(args.out, time.monotonic() + args.budget, mode)
    if args.merge:
        suite.report = merged([json.loads(file.read_text()) for file in args.merge])
        return suite.finish()
    suite.build_handler()
    names = list(args.sections)
    if args.plant:
        names.insert(1, "planted")
    for i, name in enumerate(names):
        suite.run(name, names[i + 1 :])
    return suite.finish()


class _Suite:
    """Runs the sections, and keeps the report in gpu-results.json."""

    def __init__(self, out: pathlib.Path, end: float, mode: Mode):
        self.out, self.end, self.mode = out, end, mode
        self.report: dict[str, Any] = {
            "date": time.strftime("%Y-%m-%d"),
            "mode": mode.value,
            "layers": [],
            "sections": {},
        }

    def build_handler(self) -> None:
        """Compiles the launch handler into the checkout, if it is not there or out of date."""
        began = time.monotonic()
        results, failures = build_handler()
        self._add("build", began, self.end - began, "failed" if failures else "done")
        self.report["sections"]["build"].update(results=results, failures=failures)
        self._save()

    def run(self, name: str, to_come: list[str]) -> None:
        """Runs a section in a process of its own, and takes over what it finds as it finds it."""
        began = time.monotonic()
        limit = seconds_for(name, max(0.0, self.end - began), to_come)
        self._add(name, began, limit, "running")
        with tempfile.TemporaryDirectory() as folder:
            findings = pathlib.Path(folder) / "findings.json"
            log = pathlib.Path(folder) / "log.txt"
            with log.open("w") as out:
                process = subprocess.Popen(
                    self._command(name, findings, limit), cwd=ROOT, env=self._environment(folder),
                    stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            forced = False
            while process.poll() is None:
                time.sleep(0.2)
                forced = forced or time.monotonic() - began > limit
                if forced:
                    end_group(process.pid)
                self._take(name, began, findings)
            self._take(name, began, findings)
            for group in self.report["sections"][name].pop("process_groups", []):
                end_group(group)
            self._close(name, process.wait(), forced, log.read_text(errors="replace")[-_TAIL:])

    def finish(self) -> int:
        """Writes the files with the telling names, and prints the page; the exit status."""
        self._save()
        page, name = markdown(self.report), stem(self.report)
        brief = json.loads(json.dumps(self.report))
        for section in ("smoke", "tests"):
            brief["sections"].get(section, {}).get("results", {}).pop("tests", None)
        for section in brief["sections"].values():
            _drop(section, ("output_tail", "log_tail"))
        (self.out / f"{name}.json").write_text(_as_json(brief))
        (self.out / f"{name}.md").write_text(page)
        print(page)
        sections = self.report["sections"].values()
        if any(section["failures"] for section in sections):
            return 1
        return 3 if any(section["cut"] for section in sections) else 0

    def _command(self, name: str, findings: pathlib.Path, limit: float) -> list[str]:
        seconds = limit - min(10.0, 0.2 * limit)  # then the section ends by itself
        command = [sys.executable, "-m", "gpu_suite", name, "--out", str(findings)]
        return [*command, "--seconds", f"{seconds:.1f}", "--mode", self.mode.value]

    def _environment(self, folder: str) -> dict[str, str]:
        paths = [str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",
            # Kernels are tested and timed as they are by themselves, whoever has tuned here.
            "OXIJAX_TUNING_DIR": folder,
            # Named, so that without CUDA JAX raises and does not take the CPU instead.
            "JAX_PLATFORMS": "cpu" if self.mode.emulated else "cuda,cpu",
        }

    def _add(self, name: str, began: float, limit: float, status: str) -> None:
        self.report["sections"][name] = {
            "status": status,
            "seconds": time.monotonic() - began,
            "limit_s": limit,
            "results": {},
            "failures": [],
            "cut": [],
        }

    def _take(self, name: str, began: float, findings: pathlib.Path) -> None:
        section = self.report["sections"][name]
        section["seconds"] = time.monotonic() - began
        if not findings.is_file():
            return
        found = json.loads(findings.read_text())
        changed = any(section.get(key) != value for key, value in found.items())
        section.update(found)
        if changed:
            self._save()

    def _close(self, name: str, status: int, forced: bool, log: str) -> None:
        section = self.report["sections"][name]
        finished = section.pop("finished", False)
        why = ""
        if forced:
            why = f"did not end by itself, and was ended after {section['seconds']:.0f} s"
        elif status < 0:
            why = f"crashed: {signal.Signals(-status).name}"
        elif status or not finished:
            why = f"ended with exit status {status}"
        if why:
            section["failures"].append({"what": name, "why": why})
        section["status"] = why or ("failed" if section["failures"] else "done")
        section["output_tail"] = log
        print(f"{name}: {section['status']}, {section['seconds']:.0f} s", flush=True)
        self._save()

    def _save(self) -> None:
        for section in self.report["sections"].values():
            self.report["layers"] = section["results"].get("layers", self.report["layers"])
        self.report["ratios"] = ratios(self.report)
        self.report["against_xla"] = against_xla(self.report)
        file = self.out / "gpu-results.json"
        part = file.with_suffix(".part")
        part.write_text(_as_json(self.report))
        os.replace(part, file)


def _as_json(report: dict[str, Any]) -> str:
    """The report as text, in which the checkout is "." wherever it lies."""
    return json.dumps(report, indent=1).replace(str(ROOT), ".") + "\n"


def _drop(place: Any, keys: tuple[str, ...]) -> None:
    """Removes keys from a dictionary and all that are in it."""
    if isinstance(place, dict):
        for key in keys:
            place.pop(key, None)
        for value in place.values():
            _drop(value, keys)


if __name__ == "__main__":
    sys.exit(main())
