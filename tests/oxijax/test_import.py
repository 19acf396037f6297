"""`import oxijax`: what it imports, what it leaves for later, and what can be looked at then."""

import ast
import importlib
import subprocess
import sys

import pytest
from support.paths import ROOT

import oxijax


def run(program: str) -> str:
    """What a program prints, which has to succeed in a process of its own."""
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


IMPORTED = """
import sys
import jax, jax.numpy

before = set(sys.modules)
import oxijax
from jax._src import xla_bridge

new = sorted(name for name in set(sys.modules) - before if name.partition(".")[0] != "jax")
assert not xla_bridge.backends_are_initialized()
with open("/proc/self/maps") as maps:
    assert "libcuda" not in maps.read()
print(*new)
"""


@pytest.mark.quick
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_import_does_little():
    """Neither emulator nor kernels, no part of ptx, no CUDA, and no backend of JAX."""
    imported = run(IMPORTED).split()
    others = {name for name in imported if name.partition(".")[0] != "oxijax"}
    libraries = {"cuda", "flax", "equinox", "keras", "matplotlib", "rich"}
    heavy = {*libraries, "ptx", "email.mime", "urllib.request"}
    assert not others & heavy
    assert len(others) <= 10, others
    assert {name for name in imported if name.partition(".")[0] == "oxijax"} == {
        "oxijax",
        "oxijax._core",
        "oxijax._core.config",
        "oxijax._core.install",
        "oxijax._core.launch",
        "oxijax._core.launch._handler",
        "oxijax._core.launch._seal",
        "oxijax._core.lazy",
        "oxijax._core.process",
        "oxijax._version",
    }


FIRST_USE = """
import sys
import jax, jax.numpy as jnp
import oxijax

traces = []

@jax.jit
def other(x):
    traces.append("other")
    return x + 1

@jax.jit
def loss(x):
    traces.append("loss")
    y = oxijax.deform_conv(x, jnp.zeros((1, 4, 4, 18)), jnp.ones((3, 3, 2, 2)))
    return y.sum() + oxijax.ms_deform_attn(
        jnp.ones((1, 4, 1, 8)), jnp.zeros((1, 1, 1, 1, 1, 2)), jnp.ones((1, 1, 1, 1, 1)),
        spatial_shapes=((2, 2),),
    ).sum()

x = jnp.ones((1, 4, 4, 2))
other(1.0)
assert "oxijax._deform_conv" not in sys.modules
first = loss(x)
assert "oxijax._deform_conv" in sys.modules and "ptx.emulator" not in sys.modules
assert first == loss(x)
other(1.0)
assert traces == ["other", "loss"], traces
assert oxijax.deform_conv(x, jnp.zeros((1, 4, 4, 18)), jnp.ones((3, 3, 2, 2))).shape == x.shape
"""


def test_first_use_within_a_trace():
    """What is imported while JAX traces leaves no trace in it, and nothing is traced twice."""
    run(FIRST_USE)


# ---- what can be looked at

HIDDEN = """
import inspect, pydoc, sys

for name in ("cuda", "equinox", "flax", "jax2onnx", "keras", "matplotlib", "onnx", "safetensors"):
    sys.modules[name] = None
import oxijax

assert not {"equinox", "keras", "linen", "nnx"} & set(dir(oxijax))
assert {"onnx", "testing", "deform_conv", *oxijax.__all__} <= set(dir(oxijax))
assert {*oxijax.__all__, "onnx", "testing"} <= {name for name, _ in inspect.getmembers(oxijax)}
text = pydoc.plain(pydoc.render_doc(oxijax))
for name in ("deform_conv(", "ms_deform_attn(", "tune(", "class Samples("):
    assert name in text, name
assert "Runs oxijax's GPU code" in pydoc.plain(pydoc.render_doc("oxijax.testing"))
assert oxijax.testing.emulate_gpu is not None
for name, package in (
    *(("equinox", "equinox"), ("keras", "keras"), ("linen", "flax"), ("nnx", "flax")),
):
    try:
        getattr(oxijax, name)
    except ImportError as error:
        assert f'oxijax.{name} needs ' in str(error) and f'pip install "{package}>=' in str(error)
    else:
        raise AssertionError(name)
"""


def test_help_where_optional_packages_are_missing():
    run(HIDDEN)


def test_layers_are_listed_where_they_can_be_imported():
    assert {"equinox", "keras", "linen", "nnx", "onnx", "testing"} <= set(dir(oxijax))


# ---- names that are imported late


def late_imports() -> dict[str, str]:
    """The names that type checkers see, and where from."""
    source = ast.parse((ROOT / "oxijax" / "__init__.py").read_text())
    (block,) = (
        node
        for node in source.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        assert node.module is not None
        for alias in node.names:
            package = node.module == "oxijax"
            found[alias.name] = f"oxijax.{alias.name}" if package else node.module
    return found


def test_type_checkers_see_what_python_finds():
    assert late_imports() == oxijax._PLACES  # pyright: ignore[reportPrivateUsage]
    for name, place in late_imports().items():
        module = importlib.import_module(place)
        value = module if place == f"oxijax.{name}" else getattr(module, name)
        assert getattr(oxijax, name) is value
    assert {*oxijax.__all__} == {*late_imports(), "__version__", "config"} - {*oxijax._NEEDS}


@pytest.mark.parametrize("library", ["equinox", "linen", "nnx"])
def test_layers_are_those_of_each_library(library):
    assert {*oxijax._LAYERS} == {*getattr(oxijax, library).__all__}


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("DeformConv", "DeformConv"),
        ("DeformConv2d", "DeformConv"),
        ("ModulatedDeformConv2dPack", "DeformConv"),
        ("MSDeformAttn", "MSDeformAttn"),
        ("MultiScaleDeformableAttention", "MSDeformAttn"),
    ],
)
def test_a_layer_without_its_library(name, layer):
    message = f"no attribute '{name}'; did you mean oxijax.nnx.{layer}, oxijax.linen.{layer} or "
    with pytest.raises(AttributeError, match=message):
        getattr(oxijax, name)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("conv2d", "conv"),
        ("deform_conv2d", "deform_conv"),
        ("modulated_deform_conv2d", "deform_conv"),
        ("ms_deformable_attn", "ms_deform_attn"),
    ],
)
def test_a_function_by_another_name(name, ours):
    message = f"^module 'oxijax' has no attribute '{name}'; did you mean oxijax.{ours}[?]$"
    with pytest.raises(AttributeError, match=message):
        getattr(oxijax, name)


def test_names_of_others_lead_to_ours():
    assert {*oxijax._ELSEWHERE.values()} <= {*oxijax._LAYERS, *oxijax._PLACES}
    assert not {*oxijax._ELSEWHERE} & {*oxijax._PLACES}


def test_a_name_that_there_is_not():
    with pytest.raises(AttributeError, match=r"^module 'oxijax' has no attribute 'deform'$") as got:
        _ = oxijax.deform  # pyright: ignore[reportAttributeAccessIssue]
    assert (got.value.name, got.value.obj) == ("deform", oxijax)  # Python suggests deform_conv
    assert not hasattr(oxijax, "__wrapped__")
