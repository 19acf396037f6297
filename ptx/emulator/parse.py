"""Reads PTX text. Source: PTX ISA, "Syntax", "State Spaces, Types, and Variables"."""

from __future__ import annotations

import dataclasses
import re
import struct
from bisect import bisect_left
from typing import NamedTuple

from ptx.emulator.errors import ParseError
from ptx.emulator.syntax import (
    Address,
    FloatLiteral,
    Instruction,
    IntegerLiteral,
    KernelSource,
    Module,
    Operand,
    Pair,
    Parameter,
    Register,
    SharedVariable,
    Sink,
    Symbol,
    Vector,
)
from ptx.isa.dtypes import DTYPES, DType, pred

__all__ = ["parse"]


def parse(text: str) -> Module:
    """Parses a PTX module.

    Debugging lines (`.file`, `.loc`, `.section`) and `.pragma` are skipped.

    Raises:
      ParseError: the text is not PTX, or it has device functions, or variables outside
        registers, parameters and shared memory.
    """
    return _Parser(text).module()


_DEBUG = re.compile(r"^[ \t]*\.section\b[^{]*\{[^}]*\}|^[ \t]*\.(?:loc|file)\b[^\n]*", re.M)
_TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)
      | (?P<float>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b
          |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
      | (?P<int>(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?\b)
      | (?P<word>[%.$A-Za-z_](?:[\w$.%]|::)*)
      | (?P<string>"[^"\n]*")
      | (?P<mark>[][{}()<>,;:@!|+=*-])""",
    re.X | re.S,
)
_VECTORS = {"v2": 2, "v4": 4, "v8": 8}
_TAKES_CARRY = ("addc", "subc", "madc")
_CARRY_FLAG = "CC.CF"  # the name that the PTX ISA gives it, which no register can have


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


class _Parser:
    """Reads tokens one after the other; each method reads one construct."""

    def __init__(self, text: str):
        self.text = text
        self.line_ends = [match.start() for match in re.finditer("\n", text)]
        self.kernel: KernelSource | None = None
        self.scopes: list[dict[str, Register]] = []
        self.module_shared: list[SharedVariable] = []
        self.tokens = self._tokens(_DEBUG.sub(_blank, text))
        self.at = 0

    # ---- the module

    def module(self) -> Module:
        target, kernels = "", []
        while self.now.kind != "end":
            word = self.take().text
            if word == ".target":
                target = self.take().text
                while self.accept(","):
                    self.take()
            elif word == ".version":
                self.take()
            elif word == ".address_size":
                if (size := self.take().text) != "64":
                    raise self.error(f".address_size 64 is expected, not {size}")
            elif word in (".visible", ".weak", ";"):
                continue
            elif word == ".extern" and self.now.text == ".shared":
                self.module_shared.extend(self.shared_variables(self.take().text, extern=True))
            elif word == ".shared":
                self.module_shared.extend(self.shared_variables(word))
            elif word == ".entry":
                kernels.append(self.entry())
            elif word in (".global", ".const", ".func", ".extern", ".tex"):
                raise self.error(f"{word} at the level of the module is not supported", back=1)
            else:
                raise self.error(f"{word!r} at the level of the module", back=1)
        if not kernels:
            raise ParseError("the text has no .entry")
        return Module(target, kernels)

    def entry(self) -> KernelSource:
        line = self.line(self.tokens[self.at - 1])
        kernel = self.kernel = KernelSource(self.take("word").text, line)
        kernel.shared.extend(self.module_shared)
        self.scopes = [{}]
        if self.accept("("):
            while not self.accept(")"):
                kernel.parameters.append(self.parameter())
                if self.now.text != ")":
                    self.expect(",")
        while self.now.kind == "word":
            name = self.take().text
            if name not in (".maxntid", ".reqntid", ".minnctapersm", ".maxnreg", ".pragma"):
                raise self.error(f"directive {name} of a kernel is not supported", back=1)
            values = []
            while self.now.kind in ("int", "string"):
                values.append(self.take().text)
                self.accept(",")
            if name == ".pragma":
                self.expect(";")
            else:
                kernel.limits[name[1:]] = tuple(int(value) for value in values)
        self.expect("{")
        while self.scopes:
            self.statement(kernel)
        self.kernel = None
        return kernel

    def parameter(self) -> Parameter:
        self.expect(".param")
        dtype = None
        while self.now.kind == "word" and self.now.text.startswith("."):
            word = self.take().text
            if word == ".align":
                self.take("int")
            elif word not in (".ptr", ".global", ".shared", ".const", ".local", ".generic"):
                dtype = self.dtype(word)
        name = self.take("word").text
        if dtype is None or self.now.text == "[":
            raise self.error(f"parameter {name}: only parameters of one value are supported")
        return Parameter(name, dtype)

    # ---- the body of a kernel

    def statement(self, kernel: KernelSource) -> None:
        first = self.now
        if self.accept("{"):
            self.scopes.append({})
        elif self.accept("}"):
            self.scopes.pop()
        elif self.accept(";"):
            pass
        elif first.kind == "word" and self.tokens[self.at + 1].text == ":":
            if first.text in kernel.labels:
                raise self.error(f"label {first.text} stands twice")
            kernel.labels[first.text] = len(kernel.instructions)
            self.at += 2
        elif first.text.startswith("."):
            self.directive(kernel)
        else:
            kernel.instructions.append(self.instruction(kernel))

    def directive(self, kernel: KernelSource) -> None:
        word = self.take().text
        if word == ".reg":
            self.registers(kernel)
        elif word == ".shared" or (word == ".extern" and self.now.text == ".shared"):
            extern = word == ".extern" and bool(self.take())
            kernel.shared.extend(self.shared_variables(".shared", extern))
        elif word == ".pragma":
            self.take("string")
            self.expect(";")
        else:
            raise self.error(f"directive {word} is not supported", back=1)

    def registers(self, kernel: KernelSource) -> None:
        dtype = self.dtype(self.take("word").text)
        while True:
            token = self.take("word")
            names = [token.text]
            if self.accept("<"):
                count = int(self.take("int").text)
                self.expect(">")
                names = [f"{token.text}{i}" for i in range(count)]
            for name in names:
                if name in self.scopes[-1]:
                    raise self.error(f"register {name} is declared twice")
                register = Register(name, len(kernel.registers), dtype)
                kernel.registers.append(register)
                self.scopes[-1][name] = register
            if not self.accept(","):
                break
        self.expect(";")

    def shared_variables(self, space: str, extern: bool = False) -> list[SharedVariable]:
        """Reads what follows `.shared`, up to and with the semicolon."""
        alignment, dtype, count = 0, None, 1
        while self.now.text.startswith("."):
            word = self.take().text
            if word == ".align":
                alignment = int(self.take("int").text)
            elif word[1:] in _VECTORS:
                count = _VECTORS[word[1:]]
            else:
                dtype = self.dtype(word)
        if dtype is None:
            raise self.error(f"{space} variable without a type")
        variables = []
        while True:
            name = self.take("word").text
            size: int | None = dtype.bytes * count
            while self.accept("["):
                if self.accept("]"):
                    size = None
                    continue
                length = self.integer(self.take("int").text)
                size = None if size is None or (extern and length == 0) else size * length
                self.expect("]")
            if size is None and not extern:
                raise self.error(f"variable {name} has no length and is not .extern")
            if size is not None and extern:
                raise self.error(f".extern variable {name} has a length")
            variables.append(SharedVariable(name, size, alignment or dtype.bytes * count))
            if not self.accept(","):
                break
        if self.now.text == "=":
            raise self.error("shared memory cannot have initial values")
        self.expect(";")
        return variables

    def instruction(self, kernel: KernelSource) -> Instruction:
        first, guard = self.now, None
        if self.accept("@"):
            negated = self.accept("!")
            guard = self.operand()
            if not isinstance(guard, Register) or guard.dtype.kind != "predicate":
                raise self.error("a predicate register is expected after @", back=1)
            guard = dataclasses.replace(guard, negated=negated)
        opcode, *modifiers = self.take("word").text.split(".")
        operands: list[Operand] = []
        while self.now.text != ";":
            operands.append(self.operand())
            if self.now.text != ";":
                self.expect(",")
        end = self.take().start
        if opcode in _TAKES_CARRY or "cc" in modifiers:
            operands.append(self.carry_flag(kernel))
        text = " ".join(self.text[first.start : end].split())
        return Instruction(opcode, tuple(modifiers), tuple(operands), guard, self.line(first), text)

    def carry_flag(self, kernel: KernelSource) -> Register:
        """The condition code, a register that no operand names."""
        flag = self.scopes[0].get(_CARRY_FLAG)
        if flag is None:
            flag = Register(_CARRY_FLAG, len(kernel.registers), pred)
            kernel.registers.append(flag)
            self.scopes[0][_CARRY_FLAG] = flag
        return flag

    # ---- operands

    def operand(self) -> Operand:
        if self.accept("{"):
            items = [self.single()]
            while self.accept(","):
                items.append(self.single())
            self.expect("}")
            return Vector(tuple(items))
        if self.accept("["):
            address = self.address()
            self.expect("]")
            return address
        value = self.single()
        if self.accept("|"):
            return Pair(value, self.single())
        return value

    def single(self) -> Operand:
        """A register, constant or symbol."""
        if self.accept("!"):
            value = self.single()
            if not isinstance(value, Register) or value.dtype.kind != "predicate":
                raise self.error("! stands before something that is no predicate", back=1)
            return dataclasses.replace(value, negated=True)
        if self.now.text in ("-", "+") or self.now.kind in ("int", "float"):
            return self.number()
        name = self.take("word").text
        if name == "_":
            return Sink()
        if name == "WARP_SZ":
            return IntegerLiteral(32)
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return Symbol(name, self.constant_offset())

    def address(self) -> Address:
        if self.now.kind == "int":
            return Address(None, self.integer(self.take().text) + self.constant_offset())
        base = self.single()
        if isinstance(base, Symbol):
            return Address(Symbol(base.name), base.offset)
        if not isinstance(base, Register):
            raise self.error("an address needs a register or a variable", back=1)
        return Address(base, self.constant_offset())

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

    def integer(self, text: str) -> int:
        text = text.rstrip("U")
        if len(text) > 1 and text[0] == "0" and text.isdigit():
            try:
                return int(text, 8)
            except ValueError:
                raise self.error(f"{text} is no octal number", back=1) from None
        return int(text, 0)

    def dtype(self, word: str) -> DType:
        try:
            return DTYPES[word.removeprefix(".")]
        except KeyError:
            raise self.error(f"a type is expected, not {word}", back=1) from None

    # ---- tokens

    def _tokens(self, text: str) -> list[_Token]:
        tokens, position = [], 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                self.tokens, self.at = [_Token("mark", text[position], position)], 0
                raise self.error(f"unexpected character {text[position]!r}")
            if (kind := match.lastgroup) and kind != "skip":
                tokens.append(_Token(kind, match.group(), position))
            position = match.end()
        end = _Token("end", "end of the text", len(text))
        return [*tokens, end, end]

    @property
    def now(self) -> _Token:
        return self.tokens[self.at]

    def take(self, kind: str | None = None) -> _Token:
        token = self.now
        if token.kind == "end" or (kind is not None and token.kind != kind):
            names = {"word": "a name", "int": "an integer", "string": "a string"}
            raise self.error(f"{names.get(kind or '', 'more')} is expected, not {token.text!r}")
        self.at += 1
        return token

    def accept(self, text: str) -> bool:
        token = self.tokens[self.at]
        if token.text != text or token.kind == "end":
            return False
        self.at += 1
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(f"{text!r} is expected, not {self.now.text!r}")

    def line(self, token: _Token) -> int:
        return bisect_left(self.line_ends, token.start) + 1

    def error(self, message: str, back: int = 0) -> ParseError:
        """A ParseError at the token `back` before the present one."""
        line = self.line(self.tokens[max(0, self.at - back)])
        lines = self.text.splitlines()
        text = lines[line - 1].strip() if line <= len(lines) else ""
        kernel = self.kernel.name if self.kernel else ""
        return ParseError(message, kernel=kernel, line=line, text=text)


def _blank(match: re.Match[str]) -> str:
    """As many spaces and line ends as the match, so that positions stay what they are."""
    return re.sub(r"[^\n]", " ", match.group())
