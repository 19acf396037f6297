"""The kernel: parameters, shared memory, and the finished text."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable

from ptx.builder import provenance, text
from ptx.builder.arithmetic import Arithmetic
from ptx.builder.control import Control
from ptx.builder.conversion import Conversion
from ptx.builder.pointers import Pointer
from ptx.builder.tensor_core import TensorCore
from ptx.builder.text import Address, Register, Symbol, check_dtype
from ptx.builder.values import Val
from ptx.builder.warp import Warp
from ptx.isa.dtypes import DType, b8, u32, u64
from ptx.isa.targets import Target, UnsupportedError

__all__ = ["Kernel"]

_DYNAMIC = Symbol("dynamic_shared")
_SHARED_ALIGNMENT = 16


class Kernel(Arithmetic, Conversion, Control, Warp, TensorCore):
    """One PTX kernel while it is being written.

    Example:
      ```python
      k = Kernel("scale", "sm_80", block=128)
      x, y = k.pointer("x", f32, readonly=True), k.pointer("y", f32)
      alpha, n = k.param("alpha", f32), k.param("n", u32)
      i = k.ctaid() * k.ntid() + k.tid()
      with k.if_(i < n):
          y.store(i, x.load(i) * alpha)
      print(k.text())
      ```

    Parameters are in the order in which they are declared.

    Attributes:
      block: most threads that the kernel is launched with; None where the text does not say.
      min_blocks: blocks that must fit on an SM; None for no requirement.
      dynamic_shared_bytes: bytes of dynamic shared memory of a launch.
    """

    def __init__(
        self,
        name: str,
        target: Target | str,
        *,
        block: int | tuple[int, ...] | None = None,
        min_blocks: int | None = None,
    ):
        """Starts an empty kernel.

        Args:
          name: the entry's name.
          target: a `Target` or its name.
          block: most threads that the kernel is launched with, (x, y, z) or x: `.maxntid`.
          min_blocks: blocks that shall fit an SM, which limits registers: `.minnctapersm`.

        Raises:
          ValueError: a name that PTX does not take, an unknown target, or too many threads.
        """
        super().__init__(name, target)
        threads = (block,) if isinstance(block, int) else block
        most = self.target.threads_per_block
        if threads is not None and (len(threads) > 3 or not 1 <= math.prod(threads) <= most):
            raise ValueError(f"{block=} is not 1 to {most} threads in 3 dimensions")
        if min_blocks is not None and threads is None:
            raise ValueError("min_blocks needs block")
        self.block, self.min_blocks = threads, min_blocks
        self._parameters: dict[str, DType] = {}
        self._shared: dict[str, int] = {}  # bytes of each static array
        self.dynamic_shared_bytes = 0
        self._addresses: dict[str, Val] = {}
        self._special = {}

    # ---- parameters

    def pointer(self, name: str, dtype: DType, *, readonly: bool = False) -> Pointer:
        """Declares a parameter that points to an array in global memory.

        Args:
          name: the parameter's.
          dtype: type of an element.
          readonly: nothing writes the array while the kernel runs: loads are `ld.global.nc`, and
            stores raise TypeError.
        """
        check_dtype(dtype)
        address = self._parameter(name, u64)
        with self._at_entry():
            self.emit("cvta.to.global.u64", address, address)
        return Pointer(self, dtype, "global", address, readonly=readonly)

    def param(self, name: str, dtype: DType) -> Val:
        """Declares a scalar parameter and reads it: a type of 16 to 64 bits."""
        check_dtype(dtype)
        return self._parameter(name, dtype)

    # ---- shared memory

    def shared(self, name: str, dtype: DType, count: int) -> Pointer:
        """Declares a static array in shared memory, aligned to 16 bytes.

        Args:
          name: the array's.
          dtype: type of an element.
          count: elements; of an array with several dimensions, the product of their sizes.

        Raises:
          TypeError, ValueError: a dtype that is none of `ptx.isa.dtypes`, a count that is no
            positive int, or a name that is taken or that PTX does not take.
          UnsupportedError: static arrays together are larger than 48 KiB.
        """
        check_dtype(dtype)
        _check_elements(count)
        if name in self._shared or name == _DYNAMIC.name:
            raise ValueError(f"shared array {name!r} is declared already")
        self._check_identifier(name)
        self._shared[name] = count * dtype.bytes
        self._check_shared()
        return Pointer(self, dtype, "shared", Symbol(name))

    def dynamic_shared(self, dtype: DType, count: int, *, over: Pointer | None = None) -> Pointer:
        """Takes the next part of the shared memory that the launch provides, aligned to 16 bytes.

        `dynamic_shared_bytes` says how much the launch has to provide.

        Args:
          dtype: type of an element.
          count: elements.
          over: an array in dynamic shared memory whose place the new one takes, from its first
            byte on: what was there, and in what follows it, is overwritten.

        Raises:
          TypeError, ValueError: a dtype that is none of `ptx.isa.dtypes`, a count that is no
            positive int, or an array to lie over that is not an aligned one of these.
          UnsupportedError: more than a block of the target can have.
        """
        check_dtype(dtype)
        _check_elements(count)
        start = -(-self.dynamic_shared_bytes // _SHARED_ALIGNMENT) * _SHARED_ALIGNMENT
        if over is not None:
            if over.base is not _DYNAMIC or over.offset % _SHARED_ALIGNMENT:
                raise ValueError("over must be an aligned array in dynamic shared memory")
            start = over.offset
        self.dynamic_shared_bytes = max(self.dynamic_shared_bytes, start + count * dtype.bytes)
        self._check_shared()
        return Pointer(self, dtype, "shared", _DYNAMIC, start)

    # ---- the text

    def text(self, header: Iterable[str] = ()) -> str:
        """The PTX module, after a header of comments. The same calls give the same text."""
        registers = text.declarations([*self._prologue, *self._body])
        major, minor = self._ptx_version
        lines = [f"// {line}" for line in header]
        lines += [f".version {major}.{minor}", f".target {self.target}", ".address_size 64", ""]
        if self.dynamic_shared_bytes:
            lines += [
                f"// {self.dynamic_shared_bytes} bytes of dynamic shared memory",
                f".extern .shared .align 128 .b8 {_DYNAMIC}[];",
                "",
            ]
        parameters = [f"    .param .{t} {name}," for name, t in self._parameters.items()]
        lines += [f".visible .entry {self.kernel_name}(", *parameters]
        lines[-1] = lines[-1].removesuffix(",")
        lines += [")"]
        if self.block is not None:
            lines.append(f".maxntid {', '.join(map(str, self.block))}")
        if self.min_blocks is not None:
            lines.append(f".minnctapersm {self.min_blocks}")
        lines += ["{", *registers]
        for name, size in self._shared.items():
            lines.append(f"    .shared .align {_SHARED_ALIGNMENT} .b8 {name}[{size}];")
        origins = {}
        for items in (self._prologue, self._body):
            lines += [""] if items else []
            for item in items:
                lines.append(text.printed(item))
                if isinstance(item, text.Instruction) and item.origin is not None:
                    origins[len(lines)] = item.origin
        lines += ["    ret;", "}", ""]
        finished = "\n".join(lines)
        provenance.note(finished, origins)
        return finished

    # ---- for the other parts of the builder

    def fresh(self, dtype: DType, origin: str) -> Val:
        """A value whose register the next instruction writes."""
        return Val(self, Register(dtype, origin=origin), self._blocks[-1])

    def address_register(self, symbol: Symbol) -> Val:
        """The address of a shared array in a register."""
        if symbol.name not in self._addresses:
            with self._at_entry():
                register = Register(u32, self._unique(symbol.name), "address")
                self.emit("mov.u32", register, symbol)
                self._addresses[symbol.name] = Val(self, register, self._root)
        return self._addresses[symbol.name]

    # ---- the machinery

    def _parameter(self, name: str, dtype: DType) -> Val:
        self._check_identifier(name)
        if name in self._parameters:
            raise ValueError(f"parameter {name!r} is declared already")
        if dtype.bits < 16 or dtype is b8:
            raise TypeError(f"parameters have 16 to 64 bits, not {dtype}")
        declared = text.register_type(dtype)
        self._parameters[name] = declared
        register = Register(dtype, self._unique(name), "parameter")
        with self._at_entry():
            self.emit(f"ld.param.{declared}", register, Address(Symbol(name)))
        return Val(self, register, self._root)

    def _check_identifier(self, name: str) -> None:
        if not name.isidentifier() or not name.isascii() or name.startswith("_"):
            raise ValueError(f"a parameter's or array's name is a PTX identifier, not {name!r}")

    def _check_shared(self) -> None:
        static = sum(self._shared.values())
        if static > self.target.static_shared_per_block:
            raise UnsupportedError(
                f"kernel {self.kernel_name}: {static} bytes of static shared memory, and "
                f"{self.target} has {self.target.static_shared_per_block}: use k.dynamic_shared"
            )
        if static + self.dynamic_shared_bytes > self.target.shared_per_block:
            raise UnsupportedError(
                f"kernel {self.kernel_name}: {static + self.dynamic_shared_bytes} bytes of shared "
                f"memory, and a block on {self.target} can have {self.target.shared_per_block}"
            )


def _check_elements(count: object) -> None:
    if not isinstance(count, numbers.Integral) or isinstance(count, bool):
        product = "; of several dimensions their product" if isinstance(count, tuple) else ""
        raise TypeError(
            f"count of a shared array must be an int, its elements{product}: got {count!r}"
        )
    if count < 1:
        raise ValueError(f"count of a shared array must be at least 1, got {count}")
