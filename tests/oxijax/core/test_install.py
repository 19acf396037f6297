"""The commands that messages give for installing: they work wherever oxijax comes from."""

import ast
import json
import sys
import tomllib

import pytest
from support.paths import ROOT

from oxijax._core import install

METADATA = """Metadata-Version: 2.4
Name: oxijax
Version: 0.1.0
Requires-Dist: jax>=0.10.2
Requires-Dist: flax>=0.12; extra == "demo"
Requires-Dist: rich>=13; extra == "demo"
Requires-Dist: jax[cuda13]>=0.10.2; extra == "cuda13"
Requires-Dist: oxijax[cuda13,demo]; extra == "test"
Requires-Dist: pytest; extra == 'test'
Requires-Dist: nvcc<14,>=13; sys_platform == "linux" and extra == "test"
"""


@pytest.fixture(autouse=True)
def forget():
    install._project.cache_clear()
    yield
    install._project.cache_clear()


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """The folder in which oxijax is imported, and in which alone distributions are looked for."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(install, "_PACKAGE", tmp_path / "oxijax")
    return tmp_path


def add_distribution(packages, origin=None, metadata=METADATA) -> None:
    folder = packages / "oxijax-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(metadata)
    if origin is not None:
        (folder / "direct_url.json").write_text(json.dumps(origin))


# ---- packages of an extra


def test_in_a_checkout_they_are_those_of_pyproject():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = declared["optional-dependencies"]
    assert install.checkout() == ROOT
    assert extras["demo"][0] == "oxijax[flax]"
    demo = [*extras["flax"], *extras["demo"][1:]]
    assert install.requirements("demo") == demo
    assert {*install.requirements("test")} >= {*demo, *extras["onnx"], "pytest>=8"}
    assert install.install_command("demo", "flax") == 'pip install "flax>=0.12"'


@pytest.mark.parametrize(
    ("extra", "wanted", "command"),
    [
        ("demo", (), 'pip install "flax>=0.12" "rich>=13"'),
        ("demo", ("rich",), 'pip install "rich>=13"'),
        ("cuda13", (), 'pip install "jax[cuda13]>=0.10.2"'),
        (
            "test",
            (),
            'pip install "jax[cuda13]>=0.10.2" "flax>=0.12" "rich>=13" pytest "nvcc<14,>=13"',
        ),
        ("test", ("nvcc",), 'pip install "nvcc<14,>=13"'),
        ("", (), 'pip install "jax>=0.10.2"'),
    ],
)
def test_elsewhere_they_are_those_of_the_metadata(packages, extra, wanted, command):
    add_distribution(packages)
    assert install.checkout() is None
    assert install.install_command(extra, *wanted) == command


def test_without_either_names_are_all_that_is_known(packages):
    (packages / "pyproject.toml").write_text('[project]\nname = "who_has_copied_oxijax"\n')
    assert install.checkout() is None
    assert install.install_command("demo", "flax") == "pip install flax"
    assert install.install_command("demo") == (
        'install the packages of the extra "demo" in oxijax\'s pyproject.toml'
    )


def calls_of_install_command():
    for path in sorted((ROOT / "oxijax").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", None))
                arguments = [str(a.value) for a in node.args if isinstance(a, ast.Constant)]
                if name in ("install_command", "needs_extra") and arguments:
                    yield path, *arguments


def test_every_message_names_an_extra_that_has_the_packages():
    calls = list(calls_of_install_command())
    assert len({path for path, *_ in calls}) >= 10
    for _, extra, *wanted in calls:
        known = {install._name(requirement) for requirement in install.requirements(extra)}
        assert known, extra
        assert {*wanted} <= known


def test_no_message_asks_an_index_for_oxijax():
    for path in (ROOT / "oxijax").rglob("*.py"):
        assert "oxijax[" not in path.read_text(), path


# ---- oxijax itself


@pytest.mark.parametrize(
    ("origin", "source"),
    [
        ({"url": "file:///a/my%20clone", "dir_info": {}}, "/a/my clone"),
        ({"url": "https://a.b/c.tar.gz", "archive_info": {}}, "https://a.b/c.tar.gz"),
        (
            {"url": "https://a.b/c.git", "vcs_info": {"vcs": "git", "commit_id": "0af"}},
            "git+https://a.b/c.git@0af",
        ),
        (None, None),
        ([], None),
    ],
)
def test_origin(packages, origin, source):
    add_distribution(packages, origin)
    (distribution,) = install.distributions()
    assert install.origin(distribution) == source
    again = "pip install --no-cache-dir --force-reinstall --no-deps "
    again += "oxijax" if source is None else f'"{source}"'
    assert install.reinstall_command() == again


def test_reinstall_of_a_checkout():
    assert install.reinstall_command() == f'pip install -e "{ROOT}"'


def test_reinstall_beside_a_distribution_of_another_folder(packages, monkeypatch):
    add_distribution(packages)
    monkeypatch.setattr(install, "_PACKAGE", packages / "copied" / "oxijax")
    assert install.reinstall_command() == "pip install -e . in a checkout of it"
