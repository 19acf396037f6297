"""Keys of the kernels' texts: a fact about a kernel is stale once they are others."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

from support.contents import digest, library

import ptx.kernels
from ptx import registry
from ptx.kernel import KernelDefinition, clear_texts

__all__ = ["FAMILIES", "TARGETS", "family_of", "kernels", "sample_keys", "sources", "texts_of"]

FAMILIES = ("deform_conv", "sampling", "conv", "gemm")
TARGETS = ("sm_75", "sm_80", "sm_90")  # tests run kernels for these
_SYNCHRONISATION = re.compile(r"\b(bar\.sync|barrier\.|cp\.async\.wait)")


def kernels() -> Mapping[str, KernelDefinition]:
    """The kernels that the library ships, by name: tests may have registered others."""
    found = registry.kernels().items()
    return {name: k for name, k in found if name.startswith(tuple(ptx.kernels.__all__))}


def family_of(kernel: str) -> str:
    return next(family for family in FAMILIES if kernel.startswith(family))


def sources() -> str:
    """The key of all that texts are written by: while it is the same, so are they."""
    return digest(library("ptx/**/*.py"))


def texts_of(kernel: KernelDefinition, target: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """The key of all texts of a kernel for a GPU, and since when they are these.

    Args:
      kernel: the kernel.
      target: the GPU.
      known: what this function has returned before, of the texts of that time; or nothing.
    """
    texts = {name: kernel.write_named(name, target).text for name in kernel.configs}
    clear_texts()
    key = digest(texts)
    today = datetime.date.today().isoformat()
    return {
        "key": key,
        "since": known["since"] if known.get("key") == key else today,
        "configurations": len(texts),
        "synchronised": sum(bool(_SYNCHRONISATION.search(text)) for text in texts.values()),
        "sources": sources(),
        "sample": {name: digest(texts[name]) for name in _sample(kernel)},
    }


def sample_keys(kernel: KernelDefinition, target: str) -> dict[str, str]:
    """Keys of two of a kernel's texts, which are made in no time."""
    return {name: digest(kernel.write_named(name, target).text) for name in _sample(kernel)}


def _sample(kernel: KernelDefinition) -> list[str]:
    names = list(kernel.configs)
    return [names[0], names[len(names) // 2]]
