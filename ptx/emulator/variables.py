"""The variables of a module in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ptx.emulator.errors import ParseError
from ptx.emulator.global_memory import Allocation, aligned_bytes
from ptx.emulator.memory import CONST_WINDOW
from ptx.emulator.syntax import ModuleVariable

__all__ = ["Variables"]

_ALIGNMENT = 256  # of every variable, at least; as many bytes before it belong to no variable
_GAP = 256  # bytes after a variable that belong to no variable


class Variables:
    """The variables of a module, with their initial values, in memory of their own.

    Attributes:
      allocations: one for each variable that has bytes. A kernel may not write a constant.
      addresses: the generic addresses, by name.

    Raises:
      ParseError: an initial value is an address of something else than such a variable.
    """

    def __init__(self, variables: Sequence[ModuleVariable]):
        self.allocations: list[Allocation] = []
        self.addresses: dict[str, int] = {}
        spaces = {variable.name: variable.space for variable in variables}
        for variable in variables:
            alignment, size = max(_ALIGNMENT, variable.alignment), len(variable.data)
            data = aligned_bytes(alignment + size + _GAP, alignment)[alignment : alignment + size]
            data[:] = np.frombuffer(variable.data, np.uint8)
            address = self.addresses[variable.name] = data.ctypes.data
            writable = variable.space == "global"
            self.allocations.append(
                Allocation(address, data, writable, name=f"variable {variable.name}")
            )
        for variable, allocation in zip(variables, self.allocations, strict=True):
            for reference in variable.references:
                if reference.name not in self.addresses:
                    raise ParseError(
                        f"variable {variable.name} has the address of {reference.name}, "
                        "which is not a variable of the module"
                    )
                address = self.addresses[reference.name] + reference.addend
                if spaces[reference.name] == "const" and not reference.generic:
                    address += CONST_WINDOW
                value = np.frombuffer(address.to_bytes(8, "little"), np.uint8)
                allocation.data[reference.position : reference.position + 8] = value
