"""From a JAX primitive to a PTX kernel: one custom call for all kernels.

A lowering uses `call`. When XLA executes the call, the handler (handler.c) looks up what to
launch; at the first call of its kind it asks `_resolve`, which generates the PTX and loads it into
the GPU, or into the emulator.
"""

from typing import TYPE_CHECKING

from oxijax._core.launch import _handler
from oxijax._core.launch._handler import TARGET_NAME, HandlerMissingError, find_handler
from oxijax._core.launch._handler import is_loaded as has_handler
from oxijax._core.lazy import lazy_names
from oxijax._core.process import Emulation, emulation, stop

if TYPE_CHECKING:
    from oxijax._core.launch._call import EXPORT_CHECKS, call
    from oxijax._core.launch._resolve import clear_caches
    from oxijax._core.launch._spec import VERSION
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "EXPORT_CHECKS": "oxijax._core.launch._call",
            "VERSION": "oxijax._core.launch._spec",
            "call": "oxijax._core.launch._call",
            "clear_caches": "oxijax._core.launch._resolve",
        },
    )

__all__ = [
    "EXPORT_CHECKS",
    "TARGET_NAME",
    "VERSION",
    "Emulation",
    "HandlerMissingError",
    "call",
    "clear_caches",
    "emulation",
    "find_handler",
    "has_handler",
]


def _resolve_call(call: _handler.CallRecord, record: _handler.LaunchRecord) -> None:
    from oxijax._core.launch import _resolve

    _resolve.resolve(call, record)


def _describe(number: int, status: int) -> str:
    from oxijax._core.launch import _resolve

    return _resolve.describe(number, status)


# At import, because a program that another process has exported or cached may hold calls.
try:
    _handler.connect(_resolve_call, _describe, stop)
    _handler.register(TARGET_NAME)
except Exception as error:
    _handler.refuse(error)  # without the handler all works but `call`, which says this
