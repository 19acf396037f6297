"""Commands that install what a message misses: an extra's packages, and oxijax itself.

A message says `pip install oxijax` only where pip has found oxijax in a package index before.
Elsewhere the index may have another package of that name, or none.
"""

import functools
import importlib.metadata
import json
import pathlib
import re
import tomllib
import urllib.parse
from collections.abc import Iterator
from typing import Any

__all__ = [
    "checkout",
    "distributions",
    "install_command",
    "origin",
    "reinstall_command",
    "requirements",
]

_PACKAGE = pathlib.Path(__file__).parents[1]


def install_command(extra: str, *packages: str) -> str:
    """The command that installs packages of an extra, in the versions that oxijax needs.

    Args:
      extra: the name of an extra of oxijax, for example "demo"; empty for what oxijax needs in any
        case.
      *packages: the names of those that are wanted; without any, all of them.

    Returns:
      For example `pip install "flax>=0.12"`. Where nothing says which versions are needed, because
      oxijax's files lie somewhere without metadata, the names alone.
    """
    known = {_name(requirement): requirement for requirement in requirements(extra)}
    wanted = [known.get(package, package) for package in packages or known]
    if not wanted:
        of = f'of the extra "{extra}"' if extra else "that oxijax depends on,"
        return f"install the packages {of} in oxijax's pyproject.toml"
    quoted = (r if re.fullmatch(r"[\w.-]+", r) else f'"{r}"' for r in wanted)
    return f"pip install {' '.join(quoted)}"


def requirements(extra: str) -> list[str]:
    """The requirements of an extra, and of the extras of oxijax that it names.

    Those of "" are what oxijax needs in any case.
    Conditions on the platform are left out. The list is empty where neither a checkout nor the
    metadata of an installed distribution says what the extra has.
    """
    found: dict[str, str] = {}
    for requirement in _extras().get(extra, ()):
        if _name(requirement) == "oxijax":
            for other in re.findall(r"[\w-]+", requirement.partition("[")[2].partition("]")[0]):
                found |= {_name(each): each for each in requirements(other)}
        else:
            found[_name(requirement)] = requirement.partition(";")[0].strip()
    return list(found.values())


def checkout() -> pathlib.Path | None:
    """The folder of the project that this package lies in; None for an installed one."""
    return None if _project() is None else _PACKAGE.parent


def distributions() -> Iterator[importlib.metadata.Distribution]:
    """The installed distributions of oxijax; first those of the folders that are searched first."""
    return iter(importlib.metadata.distributions(name="oxijax"))


def reinstall_command() -> str:
    """The command that installs this oxijax again, and compiles its launch handler."""
    folder = checkout()
    if folder is not None:
        return f'pip install -e "{folder}"'
    distribution = _own()
    if distribution is None:
        return "pip install -e . in a checkout of it"
    source = origin(distribution)
    # Without a source it came from a package index, which has it under this name.
    what = "oxijax" if source is None else f'"{source}"'
    return f"pip install --no-cache-dir --force-reinstall --no-deps {what}"


def origin(distribution: importlib.metadata.Distribution) -> str | None:
    """What a distribution was installed from, as pip takes it; None for a package index."""
    try:
        noted = json.loads(distribution.read_text("direct_url.json") or "")
        url, repository = noted["url"], noted.get("vcs_info")
        if repository is not None:
            return f"{repository['vcs']}+{url}@{repository['commit_id']}"
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.unquote(parts.path) if parts.scheme == "file" else url


def _own() -> importlib.metadata.Distribution | None:
    """The distribution that this package is a part of."""
    for distribution in distributions():
        folders = distribution.locate_file(""), origin(distribution)
        if any(folder and pathlib.Path(str(folder)) == _PACKAGE.parent for folder in folders):
            return distribution
    return None


@functools.cache
def _project() -> dict[str, Any] | None:
    """The table `project` of the checkout's pyproject.toml; None without a checkout."""
    try:
        with (_PACKAGE.parent / "pyproject.toml").open("rb") as file:
            project = tomllib.load(file)["project"]
    except (KeyError, OSError, ValueError):
        return None
    return project if project.get("name") == "oxijax" else None


def _extras() -> dict[str, list[str]]:
    """The requirements of each extra, as they are declared, and by "" those of none."""
    project = _project()
    if project is not None:  # which is newer than what an editable installation has noted
        return {"": project["dependencies"], **project["optional-dependencies"]}
    extras: dict[str, list[str]] = {}
    for distribution in distributions():
        for requirement in distribution.requires or ():
            extra = re.search(r"""\bextra == ["']([\w-]+)["']$""", requirement)
            extras.setdefault(extra[1] if extra else "", []).append(requirement)
        break
    return extras


def _name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    return found[0] if found else requirement
