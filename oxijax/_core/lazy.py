"""Names of a module that are imported when they are first asked for."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(module: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a module, some names of which are those of other modules.

    A module that creates a `jax.make_user_context` must not be among them: a function that was
    traced before its creation is traced again.

    Args:
      module: its `__name__`.
      modules: for each name the module that has it; a module that is called so is itself the value.

    Returns:
      A function of a name, to be called `__getattr__` in the module. What it returns is from then
      on an attribute of the module.
    """

    def find(name: str) -> Any:
        if name not in modules:
            message = f"module {module!r} has no attribute {name!r}"
            raise AttributeError(message, name=name, obj=sys.modules[module])
        found = importlib.import_module(modules[name])
        value = found if modules[name] == f"{module}.{name}" else getattr(found, name)
        setattr(sys.modules[module], name, value)
        return value

    return find
