"""Times of whole kernels that were measured, beside the model's: what docs/modelled.md says."""

import json
import re

import pytest
from support.modelled import modelled_rows
from support.paths import DOCS, ROOT

from ptx.kernels.measured import MEASURED

DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
SECTIONS = {"deform_conv": "times-oxijax", "sampling": "times-sampling"}
ROWS = re.findall(
    r"^\| (\w+) \| (\S+) \| (b?f\d+) \| ([\d.]+) \| ([\d.]+) \| ([+-]?\d+) % \|$",
    (DOCS / "modelled.md").read_text(),
    re.M,
)


@pytest.mark.parametrize("figure", MEASURED, ids=lambda f: f"{f.kernel}-{f.layer}-{f.dtype}")
def test_they_are_those_of_the_results(figure):
    report = json.loads((ROOT / "benchmarks" / "results" / figure.source).read_text())
    times = report["sections"][SECTIONS[figure.family]]["results"]["times"]
    found = times[figure.layer][DTYPES[figure.dtype]][figure.kernel]["median_us"]
    assert figure.us == pytest.approx(found, abs=0.051)


def test_the_page_has_them_and_their_errors():
    assert [row[:3] for row in ROWS] == [(f.kernel, f.layer, f.dtype) for f in MEASURED]
    errors = []
    for row, figure in zip(ROWS, MEASURED, strict=True):
        assert float(row[3]) == figure.us
        errors.append(float(row[4]) / figure.us - 1)
        assert int(row[5]) == pytest.approx(100 * errors[-1], abs=0.6)
    mean = sum(map(abs, errors)) / len(errors)
    words = f"by {mean:.0%} in the mean, from {min(errors):+.0%} to {max(errors):+.0%}"
    assert words.replace("%", " %") in (DOCS / "performance.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(MEASURED)))
def test_the_page_says_what_is_modelled(index):
    figure = MEASURED[index]
    (row,) = modelled_rows(
        figure.family, figure.layer, figure.gpu, figure.kernel, dtype=figure.dtype
    )
    assert float(ROWS[index][4]) == pytest.approx(row["us"], rel=0.03), "update the page"
