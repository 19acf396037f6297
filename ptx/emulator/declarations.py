"""The parser of types, numbers and variables.

Source: PTX ISA, "State Spaces, Types, and Variables".
"""

from __future__ import annotations

import struct

from ptx.emulator.syntax import (
    FloatLiteral,
    IntegerLiteral,
    ModuleVariable,
    Operand,
    Reference,
    Variable,
)
from ptx.emulator.tokens import Tokens
from ptx.isa.dtypes import DTYPES, DType

__all__ = ["Declarations"]

_VECTORS = {"v2": 2, "v4": 4, "v8": 8}


class Declarations(Tokens):
    """Each method reads one construct."""

    def shared_variables(self, *, extern: bool = False) -> list[Variable]:
        """Reads what follows `.shared`, up to and with the semicolon."""
        dtype, count, alignment = self.variable_type()
        variables = self.separated(lambda: self.variable(dtype, count, alignment, extern=extern))
        if self.now.text == "=":
            raise self.error("shared memory cannot have initial values")
        self.expect(";")
        return variables

    def module_variables(self, space: str) -> list[ModuleVariable]:
        """Reads what follows `.global` or `.const`, up to and with the semicolon."""
        dtype, count, alignment = self.variable_type()
        variables = []
        while True:
            name, lengths = self.take("word").text, self.lengths(unknown=True)
            if count > 1:
                lengths.append(count)
            data, references = bytearray(), []
            if self.accept("="):
                self.initial_values(dtype, lengths, 0, data, references)
            elif 0 in lengths:
                raise self.error(f"variable {name} has neither a length nor initial values")
            size = dtype.bytes
            for length in lengths[::-1]:
                size *= length or -(-len(data) // size)
            if len(data) > size:
                raise self.error(f"variable {name} has more initial values than elements")
            data.extend(bytes(size - len(data)))
            variables.append(ModuleVariable(name, space, alignment, bytes(data), tuple(references)))
            if not self.accept(","):
                break
        self.expect(";")
        return variables

    def initial_values(
        self,
        dtype: DType,
        lengths: list[int],
        position: int,
        data: bytearray,
        references: list[Reference],
    ) -> None:
        """Reads a value, or values in braces, and puts them into `data` from `position` on."""
        data.extend(bytes(max(0, position - len(data))))
        if not self.accept("{"):
            if lengths:
                raise self.error("initial values in braces are expected")
            data[position : position + dtype.bytes] = self.initial_value(
                dtype, position, references
            )
            return
        if not lengths:
            raise self.error("one initial value is expected, and no braces", back=1)
        stride = dtype.bytes
        for length in lengths[1:]:
            stride *= length
        while not self.accept("}"):
            self.initial_values(dtype, lengths[1:], position, data, references)
            position += stride
            if self.now.text != "}":
                self.expect(",")

    def initial_value(self, dtype: DType, position: int, references: list[Reference]) -> bytes:
        """Reads one value; an address adds to `references`, and is zeros so far."""
        if self.now.kind == "word":
            if dtype.bytes != 8 or dtype.is_float:
                raise self.error(f"an address does not fit into a .{dtype}")
            name = self.take().text
            generic = name == "generic" and self.accept("(")
            if generic:
                name = self.take("word").text
                self.expect(")")
            references.append(Reference(position, name, self.constant_offset(), generic))
            return bytes(8)
        value = self.number()
        if isinstance(value, IntegerLiteral) and not dtype.is_float:
            return (value.value & (1 << dtype.bits) - 1).to_bytes(dtype.bytes, "little")
        fits = dtype.kind in ("float", "bits") and dtype.bits in (32, 64)
        if not isinstance(value, FloatLiteral) or not fits:
            raise self.error(f"a value of a .{dtype} is expected", back=1)
        bits = value.bits.to_bytes(value.width // 8, "little")
        if value.width == dtype.bits:
            return bits
        (number,) = struct.unpack("<f" if value.width == 32 else "<d", bits)
        return struct.pack("<f" if dtype.bits == 32 else "<d", number)

    def variable_type(self, *attributes: str) -> tuple[DType, int, int]:
        """Reads alignment and type, and skips `attributes`: type, elements and alignment."""
        alignment, dtype, count = 0, None, 1
        while self.now.kind == "word" and self.now.text.startswith("."):
            word = self.take().text
            if word == ".align":
                alignment = self.integer(self.take("int").text)
            elif word[1:] in _VECTORS:
                count = _VECTORS[word[1:]]
            elif word not in attributes:
                dtype = self.dtype(word)
        if dtype is None:
            raise self.error("a type is expected")
        return dtype, count, alignment or dtype.bytes * count

    def variable(
        self, dtype: DType, count: int, alignment: int, *, extern: bool = False
    ) -> Variable:
        """Reads a name, and lengths in brackets."""
        name = self.take("word").text
        size: int | None = dtype.bytes * count
        for length in self.lengths(unknown=extern):
            size = size * length if length and size else None
        if (size is None) != extern:
            raise self.error(
                f".extern variable {name} has a length"
                if extern
                else f"variable {name} has no length and is not .extern"
            )
        return Variable(name, size, alignment)

    def lengths(self, *, unknown: bool = False) -> list[int]:
        """Reads lengths in brackets; 0 where there is none, if it may be `unknown`."""
        lengths: list[int] = []
        while self.accept("["):
            length = 0 if self.now.text == "]" else self.integer(self.take("int").text)
            if not length and (not unknown or lengths):
                raise self.error("a length is expected")
            lengths.append(length)
            self.expect("]")
        return lengths

    # ---- types and numbers

    def dtype(self, word: str) -> DType:
        try:
            return DTYPES[word.removeprefix(".")]
        except KeyError:
            raise self.error(f"a type is expected, not {word}", back=1) from None

    def constant_offset(self) -> int:
        """`+4`, `-4`, `+-4` or nothing."""
        if self.now.text not in ("+", "-"):
            return 0
        sign = -1 if self.take().text == "-" else 1
        if self.accept("-"):
            sign = -sign
        return sign * self.integer(self.take("int").text)

    def number(self) -> Operand:
        negative = self.take().text == "-" if self.now.text in ("-", "+") else False
        token = self.take()
        if token.kind == "int":
            value = self.integer(token.text)
            return IntegerLiteral(-value if negative else value)
        if token.kind != "float":
            raise self.error(f"a number is expected, not {token.text!r}", back=1)
        text = token.text
        width = 32 if text[1] in "fF" else 64
        if text[1] in "fFdD":
            bits = int(text[2:], 16)
        else:
            (bits,) = struct.unpack("<Q", struct.pack("<d", float(text)))
        return FloatLiteral(bits ^ (1 << (width - 1)) if negative else bits, width)
