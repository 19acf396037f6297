"""Loops and branches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ptx.builder.emitter import Emitter
from ptx.builder.text import Label
from ptx.builder.values import Scalar, Val, is_number
from ptx.isa.dtypes import DType, s32, u32

__all__ = ["Control"]


class Control(Emitter):
    """The `with` blocks of a kernel. A plain Python `for` unrolls."""

    _open_end: tuple[Label, str] | None = None  # the end of the if_ that an else_ may follow

    @contextlib.contextmanager
    def loop(
        self,
        start: Scalar,
        stop: Scalar | None = None,
        step: Scalar = 1,
        *,
        name: str = "i",
        dtype: DType | None = None,
        unroll: bool = True,
        label: str | None = None,
    ) -> Iterator[Val]:
        """`for i in range(start, stop, step)` of the kernel; `loop(stop)` starts at 0.

        Args:
          start: an integer, or a register.
          stop: the same; registers have one type.
          step: not 0; a register is taken to be positive.
          name: the counter's name.
          dtype: the counter's type where none is a register; by default u32, or s32 where a
            number is negative. The counter steps past the last value, and that has to fit too.
          unroll: whether ptxas may unroll it.
          label: the beginning of the label; "loop_" and the name by default.

        Yields:
          The counter, which only the loop changes.
        """
        if stop is None:
            start, stop = 0, start
        bounds = (start, stop, step)
        if any(isinstance(bound, Val) for bound in bounds):
            counter_type = self.common_type(*bounds)
            if dtype not in (None, counter_type):
                raise TypeError(f"the loop counts in {counter_type}, not {dtype}")
        else:
            negative = any(is_number(bound) and bound < 0 for bound in bounds)
            counter_type = dtype or (s32 if negative else u32)
        if not counter_type.is_integer:
            raise TypeError(f"a loop counts in integers, not {counter_type}")
        if is_number(step) and step == 0:
            raise ValueError("a loop's step is not 0")
        down = is_number(step) and not isinstance(step, Val) and step < 0
        begin = self._label(label or f"loop_{name}")
        top, end = Label(f"${begin}"), Label(f"${begin}_end")
        counter = self.var(counter_type, start, name)
        runs = False
        if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int):
            values = range(start, stop, step)
            runs = len(values) > 0
            if runs and not down:
                self.literal(values[-1] + step, counter_type)  # raises if it does not fit
        if not runs:
            empty = counter <= stop if down else counter >= stop
            self.emit("bra", end, where=empty)
        self._mark(top)
        with self._block(begin):
            if not unroll:
                self.directive('.pragma "nounroll"')
            yield Val(self._kernel, counter.register, self._blocks[-1])
            if down and counter_type.kind == "unsigned":
                # counter -= |step| would wrap below zero: stop before it does.
                again = counter > stop + -step
                counter -= -step
            else:
                counter += step
                again = counter > stop if down else counter < stop
            self.emit("bra", top, where=again)
        if not runs:
            self._mark(end)

    @contextlib.contextmanager
    def if_(self, condition: Val) -> Iterator[None]:
        """A branch that the threads take for which the predicate holds."""
        self.predicate(condition)
        name = self._label("if")
        end = Label(f"${name}_end")
        self.emit("bra", end, where=condition, negate=True)
        with self._block(name):
            yield
        self._mark(end)
        self._open_end = end, name

    @property
    @contextlib.contextmanager
    def else_(self) -> Iterator[None]:
        """The other branch; comes directly after `with k.if_(...)`."""
        if self._open_end is None or self._items[-1] is not self._open_end[0]:
            raise TypeError("k.else_ comes directly after the block of k.if_(...)")
        otherwise, name = self._open_end
        otherwise.name = f"${name}_else"
        end = Label(f"${name}_end")
        self._items.pop()
        self._blocks.append(self._blocks[-1])  # the branch over the else part belongs to the if
        self.emit("bra", end)
        self._blocks.pop()
        self._mark(otherwise)
        with self._block(f"else of {name}"):
            yield
        self._mark(end)
