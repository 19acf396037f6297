"""The tokens of PTX text. Source: PTX ISA, "Syntax"."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from ptx.emulator.errors import ParseError

__all__ = ["Token", "Tokens"]

T = TypeVar("T")

_DEBUG = re.compile(r"^[ \t]*\.section\b[^{]*\{[^}]*\}|^[ \t]*\.(?:loc|file)\b[^\n]*", re.M)
_TOKEN = re.compile(  # with what lies before it
    r"""(?:\s+|//[^\n]*|/\*.*?\*/)*
      (?: (?P<word>[%.$A-Za-z_](?:[\w$.%]|::)*)
      | (?P<float>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b
          |\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
      | (?P<int>(?:0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)U?\b)
      | (?P<string>"[^"\n]*")
      | (?P<mark>[][{}()<>,;:@!|+=*-])
      | (?P<end>\Z)
      | (?P<unexpected>.))""",
    re.X | re.S,
)


class Token(NamedTuple):
    kind: str
    text: str
    start: int


class Tokens:
    """The tokens of a text, which are taken one after the other.

    Debugging lines (`.file`, `.loc`, `.section`) yield no tokens.

    Attributes:
      text: the whole text.
      kernel: name of the kernel or function that is being read, for errors; "" for none.
    """

    def __init__(self, text: str):
        self.text, self.kernel = text, ""
        self._line_ends = [match.start() for match in re.finditer("\n", text)]
        self._at = 0
        self._tokens = self._divide(_DEBUG.sub(_blank, text))

    def _divide(self, text: str) -> list[Token]:
        tokens = []
        for match in _TOKEN.finditer(text):
            kind = match.lastgroup or ""
            if kind == "end":
                break
            tokens.append(Token(kind, match[kind], match.start(kind)))
            if kind == "unexpected":
                self._tokens = tokens[-1:]
                raise self.error(f"unexpected character {match[kind]!r}")
        end = Token("end", "end of the text", len(text))
        return [*tokens, end, end]

    @property
    def now(self) -> Token:
        return self._tokens[self._at]

    @property
    def following(self) -> Token:
        return self._tokens[self._at + 1]

    def take(self, kind: str | None = None) -> Token:
        token = self.now
        if token.kind == "end" or (kind is not None and token.kind != kind):
            names = {"word": "a name", "int": "an integer", "string": "a string"}
            raise self.error(f"{names.get(kind or '', 'more')} is expected, not {token.text!r}")
        self._at += 1
        return token

    def accept(self, text: str) -> bool:
        token = self._tokens[self._at]
        if token.text != text or token.kind == "end":
            return False
        self._at += 1
        return True

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(f"{text!r} is expected, not {self.now.text!r}")

    def separated(self, read: Callable[[], T]) -> list[T]:
        """What `read` reads, once and after each comma."""
        items = [read()]
        while self.accept(","):
            items.append(read())
        return items

    def separated_until(self, end: str, read: Callable[[], T]) -> list[T]:
        """What `read` reads, any number of times with commas in between, up to and with `end`."""
        items = []
        while not self.accept(end):
            items.append(read())
            if self.now.text != end:
                self.expect(",")
        return items

    def line(self, token: Token) -> int:
        return bisect_left(self._line_ends, token.start) + 1

    def error(self, message: str, back: int = 0) -> ParseError:
        """A ParseError at the token `back` before the present one."""
        line = self.line(self._tokens[max(0, self._at - back)])
        lines = self.text.splitlines()
        text = lines[line - 1].strip() if line <= len(lines) else ""
        return ParseError(message, kernel=self.kernel, line=line, text=text)

    def integer(self, text: str) -> int:
        text = text.rstrip("U")
        if len(text) > 1 and text[0] == "0" and text.isdigit():
            try:
                return int(text, 8)
            except ValueError:
                raise self.error(f"{text} is not an octal number", back=1) from None
        return int(text, 0)


def _blank(match: re.Match[str]) -> str:
    """As many spaces and line ends as the match, so that positions stay what they are."""
    return re.sub(r"[^\n]", " ", match.group())
