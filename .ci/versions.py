"""Tries one wheel on the versions of Python and JAX that are supported, and records what it saw.

    python .ci/versions.py dist/oxijax-X.Y.Z-py3-none-manylinux_2_17_x86_64.whl

Each row is an empty environment without a C compiler: the wheel, a version of JAX, and
.ci/smoke.py, which launches kernels in the emulator. With --quick the shorter pass of the tests
runs too, on the last JAX of each Python. With --record the rows are kept in
docs/evidence/versions.json, of which the table in docs/versions.md is made.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
from typing import Any

Row = dict[str, Any]  # of the record
ROOT = pathlib.Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs" / "evidence" / "versions.json"
PAGE = ROOT / "docs" / "versions.md"
NEWEST = "newest"
SUPPORTED = {  # versions of JAX, each with the jaxlib of the same version; the last has the tests
    "3.11": ("0.10.2",),
    "3.12": ("0.11.0", "0.11.2"),
    "3.13": ("0.11.1", NEWEST),
    "3.14": ("0.10.2", NEWEST),
}
# Run in an environment. XLA's FFI is its interface for libraries such as the launch handler.
VERSIONS = """
import json, pathlib, platform, re, jax, jaxlib, oxijax
header = pathlib.Path(jaxlib.__path__[0], "include/xla/ffi/api/c_api.h").read_text()
ffi = re.findall(r"define XLA_FFI_API_(?:MAJOR|MINOR) (\\d+)", header)
print(json.dumps({
    "python": platform.python_version(), "jax": jax.__version__, "jaxlib": jaxlib.__version__,
    "ffi": ".".join(ffi), "oxijax": oxijax.__version__,
}))
"""


def interpreter(version: str) -> str:
    """The path of a Python: pyenv's newest such, or the one on PATH.

    Raises:
      SystemExit: there is none.
    """
    if shutil.which("pyenv"):
        listed = subprocess.check_output(["pyenv", "versions", "--bare"], text=True).split()
        matching = [name for name in listed if name.startswith(f"{version}.")]
        if matching:
            newest = max(matching, key=lambda name: [int(n) for n in re.findall(r"\d+", name)])
            environment = {**os.environ, "PYENV_VERSION": newest}
            command = ["pyenv", "which", "python3"]
            return subprocess.check_output(command, text=True, env=environment).strip()
    found = shutil.which(f"python{version}")
    if found is None:
        raise SystemExit(f"Python {version} is needed and not here")
    return found


def try_wheel(wheel: pathlib.Path, python: str, jax: str, quick: bool) -> Row:
    """What a wheel does in a new environment: the row of the record."""
    with tempfile.TemporaryDirectory() as folder:
        scripts = pathlib.Path(folder, "venv", "bin")
        subprocess.check_call([interpreter(python), "-m", "venv", str(scripts.parent)])
        wanted = ["jax"] if jax == NEWEST else [f"jax=={jax}", f"jaxlib=={jax}"]
        subprocess.check_call(
            [scripts / "pip", "install", "-q", f"{wheel}[test]" if quick else wheel, *wanted],
            env={**os.environ, "CC": "/nonexistent"},
        )
        subprocess.check_call([scripts / "python", ROOT / ".ci" / "smoke.py"], cwd=folder)
        printed = subprocess.check_output([scripts / "python", "-c", VERSIONS], cwd=folder)
        row: Row = json.loads(printed)
        row |= {"date": datetime.date.today().isoformat(), "wheel": wheel.name}
        if quick:
            # Not python -m pytest, which would import the packages of the checkout.
            command = [scripts / "pytest", "-m", "quick"]
            result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            print(result.stdout[-2000:], flush=True)
            if result.returncode:
                raise SystemExit(f"the shorter pass failed on Python {python} with JAX {jax}")
            row["passed"] = int(re.findall(r"(\d+) passed", result.stdout)[-1])
    return row


def python_of(row: Row) -> str:
    """The Python of a row without its patch, a key of SUPPORTED."""
    return row["python"].rpartition(".")[0]


def in_order(row: Row) -> list[list[int]]:
    """What rows are sorted by: the numbers of their Python and JAX."""
    return [[int(part) for part in row[name].split(".")] for name in ("python", "jax")]


def table(rows: list[Row]) -> str:
    """The table of docs/versions.md; a row is there only where the smoke test passed."""
    lines = ["| Python | JAX | jaxlib | XLA's FFI | shorter pass |", "|---|---|---|---|---|"]
    for row in rows:
        passed = f"{row['passed']:,} passed" if "passed" in row else ""
        cells = (*(row[name] for name in ("python", "jax", "jaxlib", "ffi")), passed)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def with_table(page: str, rows: list[Row]) -> str:
    """A page with the table between its marks."""
    marks = r"(<!-- versions -->\n\n).*?(\n\n<!-- end of versions -->)"
    changed, count = re.subn(marks, lambda m: m[1] + table(rows) + m[2], page, flags=re.S)
    if count != 1:
        raise SystemExit("docs/versions.md must have one pair of marks")
    return changed


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("--python", choices=SUPPORTED, action="append", help="default: all")
    parser.add_argument("--quick", action="store_true", help="run the shorter pass too")
    parser.add_argument("--record", action="store_true", help="keep what was seen in docs")
    args = parser.parse_args()
    rows = [
        try_wheel(args.wheel.resolve(), python, jax, args.quick and jax == SUPPORTED[python][-1])
        for python in args.python or SUPPORTED
        for jax in SUPPORTED[python]
    ]
    print(table(rows))
    if not args.record:
        return
    tried = {python_of(row) for row in rows}
    rows += [row for row in json.loads(RECORD.read_text()) if python_of(row) not in tried]
    rows.sort(key=in_order)
    RECORD.write_text(json.dumps(rows, indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(), rows))


if __name__ == "__main__":
    main()
