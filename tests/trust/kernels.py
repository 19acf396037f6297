"""The kernels' families, and the hashes of their texts."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from typing import Any

import ptx.kernels
from ptx import registry
from ptx.definition import KernelDefinition, clear_texts
from trust.sources import digest

__all__ = ["FAMILIES", "TARGETS", "family_of", "kernels_of", "texts_of"]

FAMILIES = ("deform_conv", "sampling", "conv", "gemm")
TARGETS = ("sm_75", "sm_80", "sm_90")  # tests run kernels for these
_SYNCHRONISATION = re.compile(r"\b(bar\.sync|barrier\.|cp\.async\.wait)")


def kernels_of(*families: str) -> Mapping[str, KernelDefinition]:
    """The kernels that the library ships, by name: tests may have registered others."""
    shipped = tuple(ptx.kernels.__all__)
    found = {n: k for n, k in registry.KERNELS.items() if n.startswith(shipped)}
    return {name: found[name] for name in found if family_of(name) in families}


def family_of(name: str) -> str:
    """The family whose name comes first in that of a kernel or of a test; "" where none does."""
    places = {family: name.find(family) for family in FAMILIES if family in name}
    return min(places, key=lambda family: (places[family], -len(family)), default="")


def texts_of(kernel: KernelDefinition, known: Mapping[str, Any]) -> dict[str, Any]:
    """The hash of all texts of a kernel, for all GPUs, and since when they are these.

    Args:
      kernel: the kernel.
      known: what this function has returned before, of the texts of that time; or nothing.
    """
    key, synchronised = "", {}
    for target in TARGETS:
        written = {name: kernel.write_named(name, target) for name in kernel.configs}
        clear_texts()
        key = digest(key, *written, *(repr(one) for one in written.values()))
        synchronised[target] = sum(
            bool(_SYNCHRONISATION.search(one.text)) for one in written.values()
        )
    today = datetime.date.today().isoformat()
    return {
        "key": key,
        "since": known["since"] if known.get("key") == key else today,
        "configurations": len(kernel.configs),
        "synchronised": synchronised,
    }
