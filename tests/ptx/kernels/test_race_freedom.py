"""Proofs over all schedules: sentryward, an independent static verifier, on the tile GEMM.

It is part of the extra `test` where it has a wheel, Linux on x86-64.
"""

import json
import re

import pytest
from support.samples import Gemm, gemm

from ptx.isa.assembler import assemble
from ptx.isa.dtypes import bf16, f16, f32
from ptx.testing.mutate import mutants

sentryward = pytest.importorskip("sentryward")

CONFIG = Gemm(64, 64, 96, f16)  # three stages, each of which is used


def verdict(text: str, config: Gemm, folder) -> str:
    """What sentryward finds in the only block of a GEMM."""
    (kernel,) = assemble(text, "sm_80").values()
    assert config.grid == (1, 1)
    configuration = {
        "schema": "spverify.kernel-input/v1",
        "entry": kernel.kernel,
        "launch": {
            "grid_dim": [1, 1, 1],
            "block_dim": [config.threads, 1, 1],
            "cluster_dim": [1, 1, 1],
            "dynamic_shared_bytes": 0,
        },
        "arguments": [],  # pointers, which it takes to be to distinct arrays
    }
    (folder / "kernel.ptx").write_text(with_plain_addresses(text))
    (folder / "input.json").write_text(json.dumps(configuration))
    result = sentryward.verify(
        folder / "kernel.ptx", input=folder / "input.json", timeout_seconds=100
    )
    assert result["checks"]["synchronization"] == "passed"
    return result["result"]


def with_plain_addresses(text: str) -> str:
    """Each 64-bit multiply-add as a product and a sum, which is the same and all it follows."""
    count = 0

    def product_and_sum(match: re.Match) -> str:
        nonlocal count
        kind, result, a, b, c = match.groups()
        product = f"%product{count}"
        count += 1
        return f"mul.{kind} {product}, {a}, {b};\n    add.s64 {result}, {product}, {c};"

    text = re.sub(
        r"mad\.(wide\.[su]32|lo\.[su]64)\s+(\S+), (\S+), (\S+), (\S+);",
        product_and_sum,
        text,
    )
    return text.replace("{\n", f"{{\n    .reg .b64 %product<{count + 1}>;\n", 1)


@pytest.mark.parametrize(
    "config",
    [CONFIG, Gemm(64, 64, 96, bf16), Gemm(64, 64, 48, f32), Gemm(64, 64, 96, f16, stages=2)],
    ids=["f16", "bf16", "tf32", "f16-2-stages"],
)
def test_race_free(config, tmp_path):
    assert verdict(gemm(config, "sm_80"), config, tmp_path) == "race_free"


def test_without_its_synchronisation_it_is_not(tmp_path):
    """Each barrier, wait and commit deleted, and the wait weakened."""
    synchronisation = re.compile(r"bar\.sync|cp\.async\.(wait|commit)_group")
    broken = [m for m in mutants(gemm(CONFIG, "sm_80")) if synchronisation.match(m.original)]
    assert [m.kind for m in broken].count("deleted") == 5
    verdicts = {str(m): verdict(m.text, CONFIG, tmp_path) for m in broken}
    assert verdicts == dict.fromkeys(map(str, broken), "potential_race")


def test_plain_addresses():
    """No multiply-add of 64 bits is left, and ptxas takes what is there instead."""
    for dtype in (f16, bf16, f32):
        text = gemm(Gemm(64, 64, 96, dtype), "sm_80")
        plain = with_plain_addresses(text)
        assert re.findall(r"mad\.(?:wide|lo\.[su]64)", text)
        assert not re.findall(r"mad\.(?:wide|lo\.[su]64)", plain)
        assert assemble(plain, "sm_80")
