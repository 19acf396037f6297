"""Runs the proofs whose kernels have changed, and writes docs/trust.md from what they show."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]

from trust import jobs, page, texts  # noqa: E402
from trust.evidence import EVIDENCE, Evidence, as_text, hardware  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tests/trust", description=__doc__)
    parser.add_argument(
        "--family", action="append", choices=texts.FAMILIES, help="whose kernels; default: all"
    )
    parser.add_argument(
        "--afresh", action="store_true", help="run proofs again whose kernels have not changed"
    )
    parser.add_argument(
        "--texts",
        action="store_true",
        help="run no proof: only find out which kernels have changed since theirs, in 2 minutes",
    )
    parser.add_argument("--page", action="store_true", help="only write the page again")
    args = parser.parse_args(arguments)
    families = args.family or list(texts.FAMILIES)
    evidence: dict[str, Any] = {"texts": {}, "jobs": {}}
    if EVIDENCE.exists():
        evidence = json.loads(EVIDENCE.read_text())
    if args.page:
        return _finish(evidence)

    chosen = {name: job for name, job in jobs.JOBS.items() if {*job.families} & {*families}}
    about = {*families} if args.texts else {f for job in chosen.values() for f in job.families}
    start = time.monotonic()
    known = evidence["texts"]
    for name, kernel in texts.kernels().items():
        if texts.family_of(name) not in about:
            continue
        if [known.get(name, {}).get(target, {}).get("sources") for target in texts.TARGETS] == (
            [texts.sources()] * len(texts.TARGETS)
        ):
            continue  # what writes texts is what it was
        known[name] = {
            target: texts.texts_of(kernel, target, known.get(name, {}).get(target, {}))
            for target in texts.TARGETS
        }
        _say(start, f"texts of {name}")
    evidence["texts"] = {name: known[name] for name in texts.kernels() if name in known}
    for number, (name, job) in enumerate({} if args.texts else chosen.items(), 1):
        why = _why(evidence, name, job, args.afresh)
        _say(start, f"[{number}/{len(chosen)}] {name}: {why or 'nothing has changed'}")
        if why:
            keys = {k: {t: v["key"] for t, v in of.items()} for k, of in evidence["texts"].items()}
            evidence["jobs"][name] = jobs.run(job, keys)
            _write(evidence)  # what was found is kept if this run is ended
    known = evidence["jobs"]
    evidence["jobs"] = {name: known[name] for name in jobs.JOBS if name in known}
    return _finish(evidence)


def _finish(evidence: Mapping[str, Any]) -> int:
    """Writes both files, and prints what is wrong; the exit status."""
    _write(evidence)
    print(f"written: {EVIDENCE.relative_to(ROOT)}, {page.PAGE.relative_to(ROOT)}")
    wrong = list(Evidence(evidence).problems())
    for problem in wrong:
        print(f"WRONG: {problem}")
    return 1 if wrong else 0


def _why(evidence: Mapping[str, Any], name: str, job: jobs.Job, afresh: bool) -> str:
    """Why a job has to run; empty where it need not."""
    known = evidence["jobs"].get(name)
    if known is None:
        return "has not run yet"
    if known["tests"]["failed"]:
        return "has failed"
    if (known["command"], known["parts"]) != (job.command, job.parts):
        return "other proofs belong to it now"
    kernels = [k for k in texts.kernels() if texts.family_of(k) in job.families]
    changed = [
        f"{kernel} for {target}"
        for kernel in kernels
        for target, text in evidence["texts"][kernel].items()
        if known["keys"].get(kernel, {}).get(target) != text["key"]
    ]
    return f"{', '.join(changed)} changed" if changed else "is asked for" if afresh else ""


def _write(evidence: Mapping[str, Any]) -> None:
    EVIDENCE.parent.mkdir(exist_ok=True)
    EVIDENCE.write_text(as_text(evidence))
    page.PAGE.write_text(page.render(evidence, hardware()))


def _say(start: float, what: str) -> None:
    print(f"{time.monotonic() - start:6.0f} s  {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
