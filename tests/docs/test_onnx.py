"""The table of docs/onnx.md has the opsets that ONNX's schemas have."""

import re

import pytest
from onnx import defs
from support.paths import DOCS

PAGE = (DOCS / "onnx.md").read_text()


def test_opsets():
    for operator, since in re.findall(r"\| (DeformConv|GridSample)\b[^|]*\| (\d+)", PAGE):
        assert defs.get_schema(operator, int(since)).since_version == int(since)
        with pytest.raises(defs.SchemaError):
            defs.get_schema(operator, int(since) - 1)
    for operator in ("DeformConv", "Conv"):
        assert "tensor(bfloat16)" in defs.get_schema(operator, 22).inputs[0].types
        assert "tensor(bfloat16)" not in defs.get_schema(operator, 21).inputs[0].types
