"""Runs the proofs whose sources have changed, and writes docs/trust.md from what they show."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]

from trust import jobs, page  # noqa: E402
from trust.evidence import EVIDENCE, Evidence, as_text, hardware, problems  # noqa: E402
from trust.kernels import FAMILIES  # noqa: E402
from trust.sources import Sources  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python tests/trust", description=__doc__)
    parser.add_argument("--family", action="append", choices=FAMILIES, help="default: all")
    parser.add_argument("--job", action="append", choices=jobs.JOBS, help="default: all")
    parser.add_argument("--all", action="store_true", help="also what is not stale")
    parser.add_argument("--page", action="store_true", help="prove nothing, write the page")
    parser.add_argument(
        "--share", metavar="TEXT", help="prove the share that a text draws, and write nothing"
    )
    args = parser.parse_args(arguments)
    if args.share is not None:
        return jobs.prove_share(args.share)
    evidence: Evidence = {"texts": {}, "jobs": {}}
    if EVIDENCE.exists():
        evidence = json.loads(EVIDENCE.read_text())
    if not args.page:
        chosen = [
            name
            for name, job in jobs.JOBS.items()
            if job.family in (args.family or FAMILIES) and name in (args.job or jobs.JOBS)
        ]
        prove(evidence, chosen, args.all)
    known = evidence["jobs"]
    evidence["jobs"] = {name: known[name] for name in jobs.JOBS if name in known}
    write(evidence)
    wrong = list(problems(evidence))
    for problem in wrong:
        print(f"WRONG: {problem}")
    return 1 if wrong else 0


def prove(evidence: Evidence, chosen: Sequence[str], everything: bool) -> None:
    """Runs those of some jobs that are stale, or all of them, and writes what each has shown."""
    start, sources = time.monotonic(), Sources()
    say = lambda what: print(f"{time.monotonic() - start:6.0f} s  {what}", flush=True)  # noqa: E731
    stale = [n for n in chosen if everything or jobs.why_stale(evidence, n, sources)]
    say(f"{len(stale)} of {len(chosen)} proofs have to be looked at")
    for family in dict.fromkeys(jobs.JOBS[name].family for name in stale):
        if changed := jobs.write_texts(evidence, family, sources):
            say(f"{family}: texts of {', '.join(changed)} have changed")
        else:
            say(f"{family}: texts unchanged")
    for number, name in enumerate(stale, 1):
        why = jobs.why_stale(evidence, name, sources) or ("asked for" if everything else "")
        say(f"[{number}/{len(stale)}] {name}: {why or 'nothing to prove'}")
        if why:
            evidence["jobs"][name] = jobs.run(name, evidence, sources)
            write(evidence)  # what was found is kept if this run is ended
            say(f"{name}: done")


def write(evidence: Evidence) -> None:
    EVIDENCE.write_text(as_text(evidence))
    page.PAGE.write_text(page.render(evidence, hardware()))


if __name__ == "__main__":
    sys.exit(main())
