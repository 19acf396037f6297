"""The documents of the project: their blocks of code, and the commands in them.

A block of code is fenced by three backquotes. What tests have to know of it beside its language is
said in a comment of HTML in the line above: `<!-- printed -->` of what the block before prints,
`<!-- excerpt: PATH -->` of what is copied from a file, `<!-- emulated: TARGET -->` of Python that
runs on an emulated GPU, and `<!-- not run: REASON -->`.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Iterator

from support.paths import ROOT

__all__ = ["DOCUMENTS", "Block", "blocks", "commands", "name"]

DOCUMENTS = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
]

_FENCE = re.compile(
    r"(?:^[ ]*<!-- (?P<mark>[^\n]*) -->\n)?"
    r"^(?P<indent>[ ]*)```(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)
# A command within a sentence begins with one of these.
_PROGRAMS = r"(?:python3? (?:-m )?[\w./]+|pip install|pytest|make|tests/virtual_gpu/run)"
_SPAN = re.compile(rf"`({_PROGRAMS} [^`]+)`")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of a document.

    Attributes:
      line: the number of its first line of text.
      language: what follows the fence.
      text: the lines within, without the indentation that all of them have.
      mark, value: what the comment above says: "printed", or "excerpt" and the path.
    """

    document: pathlib.Path
    line: int
    language: str
    text: str
    mark: str
    value: str

    @property
    def where(self) -> str:
        return f"{name(self.document)}:{self.line}"


def name(document: pathlib.Path) -> str:
    """The path of a document from the root of the checkout."""
    return str(document.relative_to(ROOT))


def blocks(document: pathlib.Path) -> list[Block]:
    """The blocks of a document, in their order.

    Raises:
      ValueError: a fence is not closed.
    """
    page, found = document.read_text(), []
    for match in _FENCE.finditer(page):
        mark, _, value = (match["mark"] or "").partition(":")
        text = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        line = page.count("\n", 0, match.start("text")) + 1
        found.append(
            Block(document, line, match["language"].strip(), text, mark.strip(), value.strip())
        )
    if page.count("```") != 2 * len(found):
        raise ValueError(f"{name(document)}: a fence of three backquotes is not closed")
    return found


def commands(document: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Where a document has a command, in a block for the shell or within a sentence, and which."""
    for block in blocks(document):
        if block.language == "sh" and block.mark != "not run":
            text = block.text.replace("\\\n", " ")
            for line in text.splitlines():
                if line.strip():
                    yield block.where, line.strip()
    prose = _FENCE.sub("", document.read_text())
    for command in _SPAN.findall(prose):
        yield name(document), " ".join(command.split())
