"""Times of whole kernels that were measured, beside the model's."""

import json

import pytest
from support.modelled import modelled_rows
from support.paths import DOCS, ROOT

from ptx.kernels.measured import MEASURED

DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
SECTIONS = {"deform_conv": "times-oxijax", "sampling": "times-sampling"}


@pytest.mark.parametrize("figure", MEASURED, ids=lambda f: f"{f.kernel}-{f.layer}-{f.dtype}")
def test_they_are_those_of_the_results(figure):
    report = json.loads((ROOT / "benchmarks" / "results" / figure.source).read_text())
    times = report["sections"][SECTIONS[figure.family]]["results"]["times"]
    found = times[figure.layer][DTYPES[figure.dtype]][figure.kernel]["median_us"]
    assert figure.us == pytest.approx(found, abs=0.051)


@pytest.mark.slow
def test_the_page_says_how_far_off_the_model_is():
    errors = []
    for figure in MEASURED:
        (row,) = modelled_rows(
            figure.family, figure.layer, figure.gpu, figure.kernel, dtype=figure.dtype
        )
        errors.append(row["us"] / figure.us - 1)
    mean = sum(map(abs, errors)) / len(errors)
    words = f"by {mean:.0%} in the mean, from {min(errors):+.0%} to {max(errors):+.0%}"
    page = (DOCS / "performance.md").read_text()
    assert words.replace("%", " %") in page
    assert f"models {len(MEASURED)} kernels" in page
