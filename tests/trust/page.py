"""docs/trust.md: what is proven of each kernel, as tables."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from gpu_suite.tables import table
from support.paths import DOCS
from support.places import PRECISIONS

from trust.evidence import Evidence, Fact, facts, noticed_of, problems, survived_of
from trust.jobs import JOBS
from trust.kernels import FAMILIES, TARGETS, kernels_of
from trust.suites import SUITES

__all__ = ["PAGE", "render"]

PAGE = DOCS / "trust.md"
NONE = "not run"
TITLES = {
    "deform_conv": "Deformable convolution",
    "sampling": "Sampling operators",
    "conv": "Convolution",
    "gemm": "Memory-bound matrix products",
}
LABELS = {
    "float64": "f64",
    "exact": 'f32, `precision="highest"`',
    "tf32": "f32 as TF32",
    "bfloat16": "bf16",
    "float16": "f16",
}
Hardware = Mapping[str, tuple[str, str]]  # family -> the date on which its tests passed, the GPU

INTRODUCTION = """\
# Trust

<!-- Written by `python tests/trust`: do not edit. -->

{hardware}
Every kernel is PTX text, and the proofs below judge this text without a GPU.

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
architecture of GPUs. `pytest` fails where the sources of a proof have changed since it ran. Then
this proves again whatever has another text, or is checked in another way:

```sh
python tests/trust          # the proofs of what has changed, and this page
python tests/trust --all    # all of them
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


def render(evidence: Evidence, hardware: Hardware) -> str:
    """The page.

    Args:
      evidence: what `docs/evidence/trust.json` has.
      hardware: the families whose tests have passed on a GPU, as `trust.evidence.hardware` says.
    """
    wrong = "".join(f"    - {problem}\n" for problem in problems(evidence))
    allowed = "; ".join(f"{LABELS[n]} {bound:.0e}" for n, (_, _, bound) in PRECISIONS.items())
    lines = [
        INTRODUCTION.format(
            hardware=_hardware(hardware),
            wrong=f'!!! failure "Something is wrong"\n{wrong}\n\n' if wrong else "",
            glance="\n".join(_glance(evidence, hardware)),
        ),
        COLUMNS.format(allowed=allowed.replace("e-0", "e-")),
    ]
    for family in FAMILIES:
        lines += [f"## {TITLES[family]}", "", *_summary(evidence, family, hardware)]
    lines += ["## Tests of other projects", "", *_suites(evidence)]
    lines += ["## When each proof ran", "", *_runs(evidence), "## Details", ""]
    for family in FAMILIES:
        for title, details in DETAILS.items():
            lines += [f"### {TITLES[family]}: {title}", "", *details(evidence, family)]
    return "\n".join(lines).rstrip() + "\n"


def _hardware(hardware: Hardware) -> str:
    if not hardware:
        return "**No kernel of oxijax has run on a GPU yet.**"
    ran = ", ".join(f"{TITLES[f]} on {gpu} ({date})" for f, (date, gpu) in hardware.items())
    lacking = [TITLES[family] for family in FAMILIES if family not in hardware]
    return f"**All tests passed on a GPU:** {ran}." + (
        f" **Not run on a GPU yet:** {', '.join(lacking)}." if lacking else ""
    )


# ---- cells


def _cell(found: list[Fact], show: Callable[[list[Fact]], str], otherwise: str = NONE) -> str:
    return show(found) if found else otherwise


def _total(found: Iterable[Fact], field: str) -> int:
    return sum(fact[field] for fact in found)


def _registers(found: list[Fact]) -> str:
    every = [count for fact in found for count in fact["registers"]]
    return f"{min(every)} to {max(every)}"


def _spilled(found: list[Fact]) -> str:
    return f"{_total(found, 'spills')} in {_total(found, 'assembled')}"


def _launched(found: list[Fact]) -> str:
    return f"{_total(found, 'launches')} ({_total(found, 'random')})"


def _noticed(found: list[Fact]) -> str:
    return f"{noticed_of(found)} of {noticed_of(found) + survived_of(found)}"


def _proven(found: list[Fact]) -> str:
    return f"{sum({*fact['verdicts']} == {'race_free'} for fact in found)} of {len(found)} proven"


def _share(fact: Fact) -> float:
    """An error, as a share of what is allowed."""
    return fact["error"] / PRECISIONS[fact["precision"]][2]


def _nearest(found: list[Fact]) -> str:
    """The largest error, as a share of what is allowed."""
    worst = max(found, key=_share)
    return f"{_share(worst):.0%} ({LABELS[worst['precision']].split(',')[0]})"


def _error(found: list[Fact]) -> str:
    return f"{max(fact['error'] for fact in found):.1e}"


# ---- the kernels

KINDS = ("assembly", "launches", "mutants", "races", "errors")
_HEADINGS = ("spilled", "launches", "mutants", "any order", "error", "on a GPU", "proven")


def _glance(evidence: Evidence, hardware: Hardware) -> Iterator[str]:
    """A line for each family."""
    rows = []
    for family in FAMILIES:
        names = kernels_of(family)
        found = {kind: [f for n in names for f in facts(evidence, kind, n)] for kind in KINDS}
        texts = [evidence["texts"].get(name, {}) for name in names]
        rows.append([TITLES[family], len(names), *_cells(found, texts, hardware.get(family))])
    yield from table(["family", "kernels", *_HEADINGS], rows)


def _summary(evidence: Evidence, family: str, hardware: Hardware) -> Iterator[str]:
    """A line for each kernel and architecture."""
    rows = []
    for name in kernels_of(family):
        not_studied = "not studied" if f"mutants-{family}" in evidence["jobs"] else NONE
        if facts(evidence, "mutants", name):
            not_studied = "for sm_80"
        for target in TARGETS:
            found = {kind: facts(evidence, kind, name, target=target) for kind in KINDS}
            texts = [evidence["texts"].get(name, {})]
            cells = _cells(found, texts, hardware.get(family), not_studied)
            rows.append([f"`{name}`", target, _cell(found["assembly"], _registers), *cells])
    yield from table(["kernel", "GPU", "registers", *_HEADINGS], rows)


def _cells(
    found: Mapping[str, list[Fact]],
    texts: Sequence[Mapping[str, Any]],
    ran: tuple[str, str] | None,
    not_studied: str = NONE,
) -> Iterator[str]:
    yield _cell(found["assembly"], _spilled)
    yield _cell(found["launches"], _launched)
    yield _cell(found["mutants"], _noticed, not_studied)
    synchronised = any(any(text.get("synchronised", {}).values()) for text in texts)
    whole = [fact for fact in found["races"] if fact["whole"]]
    yield _cell(whole, _proven, "emulator only" if synchronised else "no barriers")
    yield _cell(found["errors"], _nearest)
    since = max(text.get("since", "9999") for text in texts)
    on_gpu = f"{ran[1]}, {ran[0]}" if ran and ran[0] >= since else ""
    yield on_gpu or ("not since it changed" if ran else "not yet")
    yield min((fact["date"] for of in found.values() for fact in of), default=NONE)


# ---- details


def _errors(evidence: Evidence, family: str) -> Iterator[str]:
    rows = []
    for name in kernels_of(family):
        for precision, (_, _, tolerance) in PRECISIONS.items():
            if found := facts(evidence, "errors", name, precision=precision):
                labels = [f"`{name}`", LABELS[precision], _total(found, "results")]
                rows.append([*labels, *_by_target(found, _error), f"{tolerance:.0e}"])
    yield from table(["kernel", "precision", "results", *TARGETS, "allowed"], rows)


def _launches(evidence: Evidence, family: str) -> Iterator[str]:
    rows = [
        [f"`{name}`", dtype, *_by_target(found, _launched)]
        for name in kernels_of(family)
        for dtype in ("f16", "bf16", "f32", "f64")
        if (found := facts(evidence, "launches", name, dtype=dtype))
    ]
    yield from table(["kernel", "type", *TARGETS], rows)


def _by_target(found: list[Fact], show: Callable[[list[Fact]], str]) -> Iterator[str]:
    for target in TARGETS:
        yield _cell([fact for fact in found if fact["target"] == target], show, "")


def _mutants(evidence: Evidence, family: str) -> Iterator[str]:
    rows, reasons = [], collections.Counter()
    for fact in (f for name in kernels_of(family) for f in facts(evidence, "mutants", name)):
        apart = [fact["same"], fact["rejected"], survived_of([fact])]
        numbers = [fact["mutants"], fact["tried"], noticed_of([fact]), *apart]
        rows.append([f"`{fact['name']}`", fact["probe"], *numbers, fact["date"]])
        reasons.update(fact["survivors"])
    headings = ["mutants", "tried", "noticed", "same machine code", "rejected by ptxas", "survived"]
    yield from table(["kernel", "layer", *headings, "proven"], rows)
    if reasons:
        yield "Why they survived:"
        yield ""
        yield from (f"- {why} ({count})" for why, count in reasons.most_common())
        yield ""


def _races(evidence: Evidence, family: str) -> Iterator[str]:
    rows = []
    for name in kernels_of(family):
        found = facts(evidence, "races", name)
        if not found:
            texts = evidence["texts"].get(name, {"configurations": 0, "synchronised": {}})
            count, of = sum(texts["synchronised"].values()), texts["configurations"] * len(TARGETS)
            why = f"not asked: {count} of {of} texts have barriers"
            rows.append([f"`{name}`", "", why, "", ""])
        for case in sorted({fact["case"] for fact in found}):
            of = [fact for fact in found if fact["case"] == case]
            whole = _cell([fact for fact in of if fact["whole"]], _verdict)
            broken = _cell([fact for fact in of if not fact["whole"]], _without, "")
            rows.append([f"`{name}`", case, whole, broken, min(fact["date"] for fact in of)])
    yield from table(["kernel", "launch", "verdict", "without one barrier", "proven"], rows)


def _verdict(found: list[Fact]) -> str:
    return ", ".join(found[0]["verdicts"]).replace("_", " ")


def _without(found: list[Fact]) -> str:
    """What the verifier says of a kernel without one of its barriers, waits and commits each."""
    counts = sum((collections.Counter(f["verdicts"]) for f in found), collections.Counter())
    needless = counts["race_free"]
    return f"{counts.total() - needless} noticed, {needless} needless"


DETAILS = {
    "errors": _errors,
    "launches by type": _launches,
    "mutants": _mutants,
    "races": _races,
}


# ---- other tables


def _suites(evidence: Evidence) -> Iterator[str]:
    yield "What other projects test their operators with, or what their code has computed."
    yield "Tests *on kernels* launched them in the emulator; the others run XLA's program."
    yield ""
    rows = []
    for suite in SUITES:
        found = facts(evidence, "suites", suite=suite)
        cases = {case for fact in found for case in fact["cases"]}
        numbers = [len(cases), _total(found, "passed"), _total(found, "on_kernels")]
        date = min((fact["date"] for fact in found), default="")
        rows.append([suite, *numbers, date] if found else [suite, NONE, "", "", ""])
    yield from table(["suite", "cases", "tests passed", "on kernels", "proven"], rows)


def _runs(evidence: Evidence) -> Iterator[str]:
    yield "Of a test that was skipped nothing is counted. All cores share what a proof takes."
    yield ""
    rows = []
    for name in JOBS:
        if job := evidence["jobs"].get(name):
            tests, failed = job["tests"], len(job["tests"]["failed"])
            counts = tests["passed"], tests["skipped"], f"**{failed}**" if failed else 0
            rows.append([name, job["date"], *counts, f"{job['seconds']} s"])
        else:
            rows.append([name, "has not run", "", "", "", ""])
    yield from table(["proofs", "date", "passed", "skipped", "failed", "tests took"], rows)
    groups = collections.defaultdict(list)
    for name, job in evidence["jobs"].items():
        groups[", ".join(f"{k} {v}" for k, v in job["versions"].items())].append(name)
    for versions, names in groups.items():
        yield f"With {versions}: {', '.join(names) if len(groups) > 1 else 'all'}."
        yield ""
    yield "What runs each alone:"
    yield ""
    yield "```sh"
    yield from (job["command"] for job in evidence["jobs"].values())
    yield "```"
    yield ""
