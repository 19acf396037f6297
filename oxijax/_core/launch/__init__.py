"""From a JAX primitive to a PTX kernel: one custom call for all kernels.

A lowering uses `call`. When XLA executes the call, the handler (handler.c) looks up what to
launch; at the first call of its kind it asks `_resolve`, which generates the PTX and loads it into
the GPU, or into the emulator.
"""

from oxijax._core.launch import _emulation, _handler, _resolve
from oxijax._core.launch._call import TARGET_NAME, call
from oxijax._core.launch._emulation import Emulation, emulation
from oxijax._core.launch._handler import HandlerMissingError, find_handler
from oxijax._core.launch._handler import is_loaded as has_handler
from oxijax._core.launch._resolve import clear_caches
from oxijax._core.launch._spec import VERSION
from oxijax._core.tuning.plans import tuned_plans

__all__ = [
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

tuned_plans.on_change(clear_caches)  # calls that are resolved have the plans of before

# At import, because a program that another process has exported or cached may hold calls.
try:
    _handler.connect(_resolve.resolve, _resolve.describe, _emulation.stop)
    _handler.register(TARGET_NAME)
except Exception as error:
    _handler.refuse(error)  # without the handler all works but `call`, which says this
