"""What the commands on kernels share: the option `--registry`, and the kernels that it names."""

import argparse
import importlib
from collections.abc import Mapping

from oxijax._cli import CommandError
from ptx import registry
from ptx.kernel import KernelDefinition

__all__ = ["add_registry_argument", "registered_kernels"]


def add_registry_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--registry",
        default="ptx.kernels",
        metavar="MODULE",
        help="module that registers the kernels (default: %(default)s)",
    )


def registered_kernels(module: str) -> Mapping[str, KernelDefinition]:
    """Imports a module, and returns the kernels that are registered then.

    Raises:
      CommandError: there is no such module, or no kernel.
    """
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is there, and what it imports is not
        raise CommandError(f"no module {module}") from error
    kernels = registry.kernels()
    if not kernels:
        raise CommandError(f"the module {module} registers no kernel")
    return kernels
