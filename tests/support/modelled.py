"""What `python -m oxijax model` says of kernels."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from support.processes import python

__all__ = ["modelled_rows"]


def modelled_rows(folder: pathlib.Path, *options: str) -> list[dict[str, Any]]:
    """The figures of the command with some options, in a process of its own: layers take memory."""
    file = folder / "rows.json"
    status, said = python("-m", "oxijax", "model", *options, "--json", str(file))
    assert status == 0, said
    return json.loads(file.read_text())
