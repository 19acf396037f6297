"""The source archive has all files of the checkout, so that its tests run, and nothing else."""

import fnmatch
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

from support.paths import ROOT

BUILT = [
    ".hypothesis/unicode_data",
    ".pytest_cache/README.md",
    ".venv/bin/python",
    ".venv-3.12/lib/site-packages/jax/__init__.py",
    "build/lib/oxijax/__init__.py",
    "dist/oxijax-0.tar.gz",
    "oxijax.egg-info/top_level.txt",
    "oxijax/__pycache__/__init__.cpython-311.pyc",
    "oxijax/_core/launch/libhandler.sha256",
    "oxijax/_core/launch/libhandler.so",
    "site/index.html",
    "tests/.hypothesis/examples/0",
    "tests/.pytest_cache/README.md",
    "tests/__pycache__/conftest.cpython-311.pyc",
    "tests/ptx/.ruff_cache/CACHEDIR.TAG",
]
MADE = {"PKG-INFO", "setup.cfg"}  # for the archive, beside the folder *.egg-info


def project() -> set[str]:
    """The project's files: those that git knows, or without git all that it would not ignore."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.split("\0")
        return {name for name in listed if name and (ROOT / name).exists()}
    lines = (ROOT / ".gitignore").read_text().splitlines()
    patterns = [line.rstrip("/") for line in lines if line and not line.startswith("#")]

    def kept(names: list[str]) -> list[str]:
        return [n for n in names if not any(fnmatch.fnmatch(n, pattern) for pattern in patterns)]

    files = set()
    for folder, folders, names in os.walk(ROOT):
        folders[:] = kept(folders)
        files |= {os.path.relpath(os.path.join(folder, name), ROOT) for name in kept(names)}
    return files - MADE


def archived(checkout: pathlib.Path) -> set[str]:
    """The names of the files in the archive that setuptools makes."""
    build = "from setuptools import build_meta; print(build_meta.build_sdist('../made'))"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=checkout, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = (checkout.parent / "made").glob("oxijax-*.tar.gz")
    with tarfile.open(archive) as file:
        return {m.name.partition("/")[2] for m in file.getmembers() if m.isfile()}


def test_archive_has_the_files_of_the_project_and_no_others(tmp_path):
    checkout, files = tmp_path / "checkout", project()
    assert {"pyproject.toml", "tests/virtual_gpu/run"} <= files
    for name in files:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, checkout / name)
    for name in BUILT:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("built")
    found = archived(checkout) - MADE
    assert {name for name in found if not name.startswith("oxijax.egg-info/")} == files
