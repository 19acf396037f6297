"""Kernels that tests load into the GPUs of a fake driver."""

from __future__ import annotations

from oxijax._core.gpu.driver import driver
from ptx import Kernel, f32
from ptx.launch import Launch

__all__ = ["KIB", "TEXT", "load", "text_of"]

KIB = 1024


def text_of(name: str = "kernel", target: str = "sm_90", static_shared: int = 0) -> str:
    """PTX with one kernel."""
    k = Kernel(name, target)
    out = k.pointer("out", f32)
    if static_shared:
        k.shared("tile", f32, static_shared // 4)
    out.store(k.tid(), 1.0)
    return k.text()


TEXT = text_of()


def load(text: str, dynamic_shared: int = 0, device: int = 0, threads: int = 128) -> int:
    """Loads the kernel of a text for blocks of so many threads in two dimensions."""
    block = (32, threads // 32, 1)
    return driver().load(Launch((1, 1, 1), block, (), text, dynamic_shared), device)
