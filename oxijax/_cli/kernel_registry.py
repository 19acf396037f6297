"""The option `--registry` of the commands on kernels, and the kernels that it stands for."""

import argparse
import importlib
import pathlib
import sys
from collections.abc import Mapping

from oxijax._cli import CommandError
from ptx import kernels as shipped
from ptx import registry
from ptx.definition import KernelDefinition

__all__ = ["add_registry_argument", "registered_kernels"]

_LIBRARY = shipped.__name__


def add_registry_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--registry",
        default=_LIBRARY,
        metavar="MODULE",
        help="module that registers the kernels; those that come with oxijax are left out unless "
        "it is %(default)s, the default",
    )


def registered_kernels(module: str) -> Mapping[str, KernelDefinition]:
    """Imports a module, and returns the kernels that are registered then.

    A module that imports oxijax registers the kernels that come with it too. They are returned
    for `ptx.kernels` and what is in it, and for no other module.

    Raises:
      CommandError: there is no such module, or it registers no kernel; or no module's name.
    """
    if module.endswith(".py") or not all(module.split(".")):
        such = pathlib.Path(module).stem.strip(".") or _LIBRARY
        raise CommandError(f"--registry must be a module's name, such as {such}, got {module!r}")
    # As for `python -m oxijax`: modules of this folder are found by the command `oxijax` too.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and what it imports is not
        raise CommandError(f"no module {module}") from error
    own = _shipped()
    wanted = module == _LIBRARY or module.startswith(f"{_LIBRARY}.")
    kernels = {
        name: kernel
        for name, kernel in registry.KERNELS.items()
        if any(kernel is each for each in own) == wanted
    }
    if not kernels:
        raise CommandError(f"the module {module} registers no kernel")
    return kernels


def _shipped() -> list[KernelDefinition]:
    """The kernels of oxijax's own families, each of which has them as attributes."""
    return [
        value
        for family in shipped.__all__
        for value in vars(getattr(shipped, family)).values()
        if isinstance(value, KernelDefinition)
    ]
