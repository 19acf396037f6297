"""NVIDIA's real assembler, where it is: it refuses what a driver's does, and counts registers."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
import subprocess
import tempfile

__all__ = ["registers"]


def registers(ptxas: pathlib.Path, text: str, sm: int) -> dict[str, int]:
    """The registers of a thread of each kernel.

    What has been assembled once is kept in the folder VIRTUAL_GPU_ASSEMBLED.

    Args:
      ptxas: the assembler.
      text: a PTX module.
      sm: the SM version to assemble for.

    Raises:
      ValueError: it refuses the module; the message has its reasons.
    """
    key = hashlib.sha256(f"{ptxas} {sm}\n{text}".encode()).hexdigest()
    kept = pathlib.Path(os.environ["VIRTUAL_GPU_ASSEMBLED"]) / f"{key}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "module.ptx"
        source.write_text(text)
        target = re.search(r"^\s*\.target\s+(\w+a)\b", text, re.MULTILINE)
        architecture = target[1] if target else f"sm_{sm}"
        command = [str(ptxas), "-v", f"-arch={architecture}", str(source), "-o", os.devnull]
        finished = subprocess.run(command, capture_output=True, text=True)
    said = finished.stdout + finished.stderr
    if finished.returncode:
        raise ValueError(said)
    found = {
        name: int(count)
        for name, count in re.findall(
            r"Compiling entry function '([\w$]+)'.*?Used (\d+) registers", said, re.DOTALL
        )
    }
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=kept.parent, delete=False) as file:
        json.dump(found, file)
    pathlib.Path(file.name).replace(kept)
    return found
