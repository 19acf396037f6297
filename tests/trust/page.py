"""docs/trust.md: what is proven of each kernel, as tables."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpu_suite.tables import table
from support.paths import DOCS
from support.places import PRECISIONS

from trust import details
from trust.cells import (
    LABELS,
    NONE,
    STALE,
    bold,
    cell,
    launched,
    nearest,
    noticed,
    proven,
    spilled,
    total,
)
from trust.evidence import Evidence, Fact, family_kernels
from trust.jobs import JOBS
from trust.suites import SUITES
from trust.texts import FAMILIES, TARGETS

__all__ = ["PAGE", "render"]

PAGE = DOCS / "trust.md"
TITLES = {
    "deform_conv": "Deformable convolution",
    "sampling": "Sampling operators",
    "conv": "Convolution",
    "gemm": "Memory-bound matrix products",
}

INTRODUCTION = """\
# Trust

<!-- Written by `python tests/trust`: do not edit. -->

{hardware}
What there is instead: every kernel is PTX text, and the proofs below judge this text.

- `ptxas`, NVIDIA's own assembler, makes machine code of it, and says what that costs.
- An [emulator](ptx.md#run-it-without-a-gpu) runs it, every thread of every block. It stops at any
  race, any access out of bounds, and any byte of a result that is not written.
- Results are compared with float64.
- One instruction after another is broken, to see whether the tests notice.
- A verifier that others have written proves small launches free of races in every order of warps.

**What this does not show**: that a GPU does in everything what the emulator does; how fast a kernel
is ([Performance](performance.md)); and anything of configurations and sizes that did not run.

{wrong}{glance}
Every figure on this page comes from the output of the proofs, as
[evidence/trust.json](evidence/trust.json) has it. A proof is about a kernel's text for one
architecture of GPUs. Where the text of any named configuration has changed since, the page says
*{stale}*.

```sh
python tests/trust              # the proofs of what has changed, and this page
python tests/trust --afresh     # all of them
```
"""

COLUMNS = """\
## How to read the tables

- **registers**: of a thread, as `ptxas` assigns them: the fewest and the most, in all
  configurations of the kernel that were assembled.
- **spilled**: bytes of registers that had to be moved to memory, in how many texts together.
- **launches**: of the kernel's own text in the emulator, which looked for races, in tests that
  passed; in brackets, how many of them had their warps in a random order.
- **mutants**: copies of the text with one instruction changed. It says how many of a sample a test
  noticed, of those that are another program. The rest survived: for each a reason is written down
  why no result shows it, and checked. Those of some kernels are studied, for sm_80.
- **any order**: small launches that the verifier, sentryward, has proven free of races in every
  order of warps. *No barriers*: threads of a block never wait for each other. *Emulator only*:
  they do, and only the emulator has looked for races, in the orders that it ran. *Without one
  barrier*, in the details, is the same launch with a barrier, wait or commit deleted: the verifier
  has to notice it, unless so small a launch does not need it, and the emulator has to agree.
- **error**: the largest relative error (Frobenius norm, against float64), in percent of what is
  allowed, and in which precision. [Details](#details) has all of them.
- **on a GPU**: whether all tests of the family have passed on one, as the reports in
  `benchmarks/results` say.
- **proven**: the date of the oldest of these proofs. *Not run*: there is no such proof.

Allowed are {allowed}.
"""


def render(recorded: Mapping[str, Any], hardware: Mapping[str, tuple[str, str]]) -> str:
    """The page.

    Args:
      recorded: what `docs/evidence/trust.json` has.
      hardware: the families whose tests have passed on a GPU, as `trust.evidence.hardware` says.
    """
    evidence = Evidence(recorded)
    wrong = list(evidence.problems())
    listed = [f'!!! failure "Something is wrong"\n{chr(10).join(f"    - {w}" for w in wrong)}\n\n']
    allowed = "; ".join(f"{LABELS[n]} {bound:.0e}" for n, (_, _, bound) in PRECISIONS.items())
    lines = [
        INTRODUCTION.format(
            hardware=_hardware(hardware),
            wrong=listed[0] if wrong else "",
            glance="\n".join(_glance(evidence, hardware)),
            stale=STALE,
        ),
        COLUMNS.format(allowed=allowed.replace("e-0", "e-")),
    ]
    for family in FAMILIES:
        lines += [f"## {TITLES[family]}", "", *_summary(evidence, family, hardware)]
    lines += ["## Tests of other projects", "", *_suites(evidence)]
    lines += ["## When each proof ran", "", *_runs(evidence)]
    lines += ["## Details", ""]
    for family in FAMILIES:
        lines += [f"### {TITLES[family]}: errors", "", *details.errors(evidence, family)]
        lines += [
            f"### {TITLES[family]}: launches by type",
            "",
            *details.launches(evidence, family),
        ]
        lines += [f"### {TITLES[family]}: mutants", "", *details.mutants(evidence, family)]
        lines += [f"### {TITLES[family]}: races", "", *details.races(evidence, family)]
    return "\n".join(lines).rstrip() + "\n"


def _hardware(hardware: Mapping[str, tuple[str, str]]) -> str:
    if not hardware:
        return "**No kernel of oxijax has run on a GPU yet.**"
    ran = ", ".join(f"{TITLES[f]} on {gpu} ({date})" for f, (date, gpu) in hardware.items())
    lacking = [TITLES[family] for family in FAMILIES if family not in hardware]
    return f"**All tests passed on a GPU:** {ran}." + (
        f" **Not run on a GPU yet:** {', '.join(lacking)}." if lacking else ""
    )


# ---- at a glance

KINDS = ("assembly", "launches", "mutants", "races", "errors")


def _glance(evidence: Evidence, hardware: Mapping[str, tuple[str, str]]) -> Iterator[str]:
    """A line for each family."""
    rows = []
    for family in FAMILIES:
        names = family_kernels(family)
        facts = {k: [f for name in names for f in evidence.facts(k, name)] for k in KINDS}
        texts = [text for name in names for text in evidence.texts.get(name, {}).values()]
        since = max((text["since"] for text in texts), default="9999")
        cells = _cells(facts, any(text["synchronised"] for text in texts))
        state = _on_gpu({"since": since}, hardware.get(family))
        rows.append([TITLES[family], len(names), *cells, state, _oldest(facts)])
    headings = ["family", "kernels", "spilled", "launches", "mutants", "any order", "error"]
    yield from table([*headings, "on a GPU", "proven"], rows)


def _summary(
    evidence: Evidence, family: str, hardware: Mapping[str, tuple[str, str]]
) -> Iterator[str]:
    """A line for each kernel and architecture."""
    rows = []
    for name in family_kernels(family):
        not_studied = "not studied" if f"mutants-{family}" in evidence.jobs else NONE
        if evidence.facts("mutants", name):
            not_studied = "for sm_80"
        for target in TARGETS:
            facts = {kind: evidence.facts(kind, name, target) for kind in KINDS}
            text = evidence.texts.get(name, {}).get(target, {})
            registers = cell(facts["assembly"], lambda v: "{} to {}".format(*v[0]["registers"]))
            cells = _cells(facts, bool(text.get("synchronised")), not_studied)
            state = _on_gpu(text, hardware.get(family))
            rows.append([f"`{name}`", target, registers, *cells, state, _oldest(facts)])
    headings = ["kernel", "GPU", "registers", "spilled", "launches", "mutants", "any order"]
    yield from table([*headings, "error", "on a GPU", "proven"], rows)


def _cells(
    facts: Mapping[str, Sequence[Fact]], synchronised: bool, not_studied: str = NONE
) -> Iterator[str]:
    yield cell(facts["assembly"], spilled)
    yield cell(facts["launches"], launched)
    yield cell(facts["mutants"], noticed, not_studied)
    whole = [fact for fact in facts["races"] if fact.value["whole"]]
    yield cell(whole, proven, "emulator only" if synchronised else "no barriers")
    yield cell(facts["errors"], nearest)


def _oldest(facts: Mapping[str, Sequence[Fact]]) -> str:
    """The date of the oldest proof that is not stale, and whether some are."""
    every = [fact for of in facts.values() for fact in of]
    dates = [fact.date for fact in every if not fact.stale]
    if not dates:
        return STALE if every else NONE
    return min(dates) + (f"; some {STALE}" if len(dates) < len(every) else "")


def _on_gpu(text: Mapping[str, Any], ran: tuple[str, str] | None) -> str:
    if ran is None:
        return "not yet"
    date, gpu = ran
    return f"{gpu}, {date}" if date >= text.get("since", "9999") else STALE


# ---- other tables


def _suites(evidence: Evidence) -> Iterator[str]:
    yield "What other projects test their operators with, or what their code has computed."
    yield "Tests *on kernels* launched them in the emulator; the others run XLA's program."
    yield ""
    rows = []
    for suite in SUITES:
        facts = [fact for fact in evidence.facts("suites") if fact.value["suite"] == suite]
        if not facts:
            rows.append(
                [suite, "not there" if "suites" in evidence.jobs else "has not run", *[""] * 3]
            )
            continue
        values = [fact.value for fact in facts]
        cases = {case for value in values for case in value["cases"]}
        state = STALE if any(f.stale for f in facts) else min(f.date for f in facts)
        numbers = [len(cases), total(values, "passed"), total(values, "on_kernels")]
        rows.append([suite, *numbers, state])
    yield from table(["suite", "cases", "tests passed", "on kernels", "proven"], rows)


def _runs(evidence: Evidence) -> Iterator[str]:
    yield "Where all of them take long, a part of the tests ran, chosen by their names, or of the"
    yield "configurations. Of a test that was skipped nothing is counted."
    yield ""
    rows = []
    for name in JOBS:
        job = evidence.jobs.get(name)
        if job is None:
            rows.append([name, "has not run", "", "", "", "", ""])
            continue
        tests, failed = job["tests"], len(job["tests"]["failed"])
        part = "all" if job["parts"] == 1 else f"one in {job['parts']}"
        counts = tests["passed"], tests["skipped"], bold(failed, failed)
        rows.append([name, job["date"], part, *counts, f"{job['seconds']} s"])
    yield from table(["proofs", "date", "part", "passed", "skipped", "failed", "took"], rows)
    groups = collections.defaultdict(list)
    for name, job in evidence.jobs.items():
        groups[", ".join(f"{k} {v}" for k, v in job["versions"].items())].append(name)
    for versions, names in groups.items():
        yield f"With {versions}: {', '.join(names) if len(groups) > 1 else 'all'}."
        yield ""
    yield "What runs each alone:"
    yield ""
    yield "```sh"
    yield from (job["command"] for job in evidence.jobs.values())
    yield "```"
    yield ""
