"""The typed builder of PTX kernels."""

from ptx.builder.atoms import ATOMS, Atom, Fragment
from ptx.builder.kernel_builder import Kernel
from ptx.builder.pointers import Pointer
from ptx.builder.values import Val, Var

__all__ = ["ATOMS", "Atom", "Fragment", "Kernel", "Pointer", "Val", "Var"]
