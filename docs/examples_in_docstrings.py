"""Lets mkdocstrings show the examples of docstrings as code.

The docstrings have them under "Example:". Griffe reads code under "Examples:" only, and would make
a quotation of the other.
"""

import re
from typing import Any

import griffe


class ExamplesInDocstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring:
            pattern = r"^( *)Example:$"
            obj.docstring.value = re.sub(pattern, r"\1Examples:", obj.docstring.value, flags=re.M)
