"""The launch handler of a checkout in which oxijax is not installed."""

import importlib.util
import pathlib
import runpy
import subprocess
import sys
import tempfile
from typing import Any

__all__ = ["build_handler"]

_ROOT = pathlib.Path(__file__).parents[2]
_FOLDER = _ROOT / "oxijax" / "_core" / "launch"
_SEAL = _FOLDER / "_seal.py"
_TAIL = 6000  # characters of a compiler's output that are kept


def build_handler() -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Compiles oxijax/_core/launch/libhandler.so, if it is not there or of other source.

    As an installation would, with setup.py; if that fails, for example because setuptools is
    missing or old, with the C compiler alone.

    Returns:
      What was done, and the failures, of which there are some if there is no handler then.
    """
    handler, source = _FOLDER / "libhandler.so", _FOLDER / "handler.c"
    if handler.is_file() and runpy.run_path(str(_SEAL))["fault"](handler) is None:
        return {"built": "earlier"}, []
    handler.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        status, first = _run([*command, "--build-temp", scratch])
    if status == 0 and handler.is_file():
        return {"built": "by setup.py"}, []

    command = ["cc", "-std=c11", "-O2", "-g0", "-fvisibility=hidden", "-shared", "-fPIC", "-s"]
    spec = importlib.util.find_spec("jaxlib")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        command += ["-I", str(pathlib.Path(folder) / "include")]
    status, second = _run([*command, str(source), "-o", str(handler)])
    if status == 0 and handler.is_file():
        runpy.run_path(str(_SEAL))["seal"](handler, source)
        return {"built": "by cc, because setup.py failed", "setup_py": first}, []
    why = f"setup.py: {first}\ncc: {second}"
    return {"built": "not at all"}, [{"what": "building the launch handler", "why": why}]


def _run(command: list[str]) -> tuple[int, str]:
    """Exit status and the end of the output."""
    try:
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)
    except OSError as error:
        return 127, str(error)
    return done.returncode, (done.stdout + done.stderr)[-_TAIL:]
