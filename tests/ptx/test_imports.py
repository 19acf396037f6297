"""The order of the packages: what a file imports, its length, and its docstring's subject."""

import ast
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from support.paths import ROOT

FILES = sorted(
    path.relative_to(ROOT)
    for package in ("oxijax", "ptx")
    for path in (ROOT / package).rglob("*.py")
)
FLAX_LAYERS = "oxijax/_layers/flax.py"  # of both its libraries; imports Flax for types alone
# The only files that may import a package which not every user has installed.
OPTIONAL = {
    "cuda": ("oxijax/_core/gpu/driver.py",),
    "equinox": ("oxijax/equinox/*.py",),
    "jax2onnx": ("oxijax/onnx/_plugins.py",),
    "keras": ("oxijax/keras/*.py",),
    "onnx": ("oxijax/onnx/*.py",),
    "onnx_ir": ("oxijax/onnx/_plugins.py",),
    "flax": ("oxijax/nnx/*.py", "oxijax/linen/*.py", "oxijax/_cli/demo_*.py", FLAX_LAYERS),
}
COMPAT = "oxijax/_core/compat.py"
MAX_LINES = 600

# Imports every module of `ptx` where JAX, and all that is built on it, cannot be imported.
WITHOUT_JAX = """
import importlib, importlib.abc, pkgutil, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        above = {"jax", "jaxlib", "flax", "equinox", "keras", "oxijax", "rich"}
        if name.partition(".")[0] in above:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
try:
    import jax
except ModuleNotFoundError:
    pass
else:
    raise AssertionError("jax is not blocked")

import ptx
for module in pkgutil.walk_packages(ptx.__path__, "ptx."):
    importlib.import_module(module.name)
    print(module.name)
"""


def imports(source: str, module: str) -> Iterator[tuple[int, str]]:
    """(line, absolute name) of whatever a file imports, inside functions too."""
    package = module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) == "jax._src":
            yield node.lineno, "jax._src"  # as good as imported


def wrong_imports(path: pathlib.Path, source: str) -> list[str]:
    """The imports of a file that break the order, each with the reason."""
    package = path.parts[0]
    module = ".".join([*path.parts[:-1], path.stem])
    wrong = []
    for line, name in imports(source, module):
        top, _, rest = name.partition(".")
        reason = None
        if package == "ptx" and top not in {*sys.stdlib_module_names, "numpy", "ml_dtypes", "ptx"}:
            reason = "ptx knows the standard library, numpy and ml_dtypes alone"
        elif package == "oxijax" and top in ("tests", "benchmarks", "examples"):
            reason = "the library stands below its tests and examples"
        elif top in OPTIONAL and not any(path.match(pattern) for pattern in OPTIONAL[top]):
            reason = f"only {', '.join(OPTIONAL[top])} may import {top}"
        elif top == "jax" and rest.partition(".")[0] == "_src" and path.as_posix() != COMPAT:
            reason = f"only {COMPAT} may import what is private to JAX"
        if reason:
            wrong.append(f"{path}:{line} imports {name}: {reason}")
    return wrong


def test_files_are_found():
    names = {path.as_posix() for path in FILES}
    assert {"oxijax/_core/compat.py", "oxijax/nnx/_sampling.py", "ptx/isa/targets.py"} <= names


def test_imports_point_one_way():
    assert [w for path in FILES for w in wrong_imports(path, (ROOT / path).read_text())] == []


def test_files_are_short():
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in FILES}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}


def test_docstrings_of_modules_name_their_subject():
    """None begins as a question does: "The launch of ...", not "How ... is launched"."""
    question = re.compile(r'(#.*\n|\s)*r?"""(What|How|Which|Where|Who|When|Whether|Why)\b')
    folders = ("oxijax", "ptx", "tests", "benchmarks", "examples", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    assert {ROOT / ".ci/smoke.py", ROOT / "examples/explained.py"} <= {*files}
    assert [str(path.relative_to(ROOT)) for path in files if question.match(path.read_text())] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("ptx/kernels/conv.py", "import jax"),
        ("ptx/kernels/conv.py", "import jax.numpy as jnp"),
        ("ptx/kernels/conv.py", "def f():\n    from oxijax import conv"),
        ("ptx/kernels/conv.py", "from ... import oxijax"),
        ("ptx/emulator/run.py", "import scipy"),
        ("oxijax/_cli/bench.py", "from tests import helpers"),
        ("oxijax/conv.py", "import benchmarks.layers"),
        ("oxijax/conv.py", "from cuda.bindings import driver"),
        ("oxijax/conv.py", "import flax.nnx"),
        ("oxijax/nnx/_sampling.py", "import equinox"),
        ("oxijax/conv.py", "import jax._src.core"),
        ("oxijax/conv.py", "from jax._src import core"),
        ("oxijax/conv.py", "from jax import _src"),
        ("oxijax/conv.py", "import jax\nrule = jax._src.core.standard_vma_rule"),
    ],
)
def test_wrong_imports_are_noticed(path, source):
    assert len(wrong_imports(pathlib.Path(path), source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("ptx/kernels/conv.py", "import numpy as np, ml_dtypes, re\nfrom ..targets import Target"),
        ("oxijax/conv.py", "import jax\nfrom ptx import Kernel\nfrom oxijax import _compat"),
        ("oxijax/_core/compat.py", "from jax._src import core"),
        ("oxijax/nnx/_sampling.py", "from flax import nnx"),
        ("oxijax/_core/gpu/driver.py", "from cuda.bindings import driver"),
    ],
)
def test_right_imports_pass(path, source):
    assert wrong_imports(pathlib.Path(path), source) == []


@pytest.mark.quick
def test_ptx_without_jax():
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_JAX], cwd=ROOT, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    imported = {"ptx", *ran.stdout.split()}
    files = [path for path in FILES if path.parts[0] == "ptx"]
    modules = {".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in files}
    assert imported == modules
