"""What a call says of its kernel: JSON that means the same in every process."""

import dataclasses
import hashlib
import json
from typing import Any

from oxijax._core.calls.config_json import (
    check_types,
    config_type,
    decode,
    decode_fields,
    encode_fields,
    registered,
)
from oxijax._core.launch._emulated import Emulation
from ptx.definition import Shapes

__all__ = ["VERSION", "Spec", "key_of"]

VERSION = 4  # of the specs: raised when an old spec would mean something else

_LONGEST = 1 << 16  # bytes of a spec


@dataclasses.dataclass(frozen=True)
class Spec:
    """What is launched, but for the sizes of the buffers and the GPU.

    Which operands and results there are, and of which types, follows from kernel and configuration.

    Attributes:
      kernel: its name in `ptx.registry`.
      config: its configuration, a frozen dataclass.
      grouped: None, or the operands that a call has a copy of for each group. Then all its buffers
        have a leading dimension that counts groups; see `shapes`.
      emulation: the emulated GPU that it runs on; None for a real one.
    """

    kernel: str
    config: Any
    grouped: tuple[int, ...] | None = None
    emulation: Emulation | None = None

    def to_json(self) -> str:
        """The spec as text, which depends on nothing else.

        Raises:
          TypeError: the configuration holds a value that has no place in a spec.
        """
        text = self._written()
        if Spec.from_json(text) != self:
            raise TypeError(f"kernel {self.kernel}: a configuration that JSON alters: {text}")
        return text

    def _written(self) -> str:
        content: dict[str, Any] = {
            "kernel": self.kernel,
            "config": encode_fields(self.config),
        }
        if self.grouped is not None:
            content["grouped"] = self.grouped
        if self.emulation is not None:
            content["emulation"] = encode_fields(self.emulation)
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @staticmethod
    def from_json(text: str | bytes) -> "Spec":
        """The spec of a text, which may come from anywhere.

        Raises:
          KeyError: no such kernel is registered.
          TypeError: a field is missing, is one too many, or has another type than it is declared
            with, by name.
          ValueError: the text is none that `to_json` writes.
        """
        if len(text) > _LONGEST:
            raise ValueError(f"a spec has {_LONGEST} bytes at most, got {len(text)}")
        try:
            text = text if isinstance(text, str) else text.decode()
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"a spec is JSON: {error}") from None
        if not isinstance(content, dict) or not {"kernel", "config"} <= content.keys():
            raise ValueError("a spec is an object with kernel and config")
        kernel, emulation, grouped = (
            content.get(name) for name in ("kernel", "emulation", "grouped")
        )
        if not isinstance(kernel, str):
            raise TypeError(f"the kernel of a spec is its name, got {kernel!r}")
        spec = Spec(
            kernel=kernel,
            config=decode_fields(config_type(registered(kernel)), content["config"]),
            grouped=None if grouped is None else decode(grouped),
            emulation=None if emulation is None else decode_fields(Emulation, emulation),
        )
        check_types(spec)
        written = spec._written()
        if written != text:
            raise ValueError(f"a spec is as it is written here: {written}")
        return spec

    def shapes(self, shapes: Shapes) -> Shapes:
        """What a kernel takes the shapes of the buffers for: it knows no groups.

        The first copy of what is copied, and groups of everything else behind each other.

        Raises:
          ValueError: buffers that are not grouped as the spec says.
        """
        if self.grouped is None:
            return shapes
        groups = {shape[0] if shape else 0 for shape in shapes}
        if len(groups) != 1 or not all(
            i in self.grouped or len(shape) > 1 for i, shape in enumerate(shapes)
        ):
            raise ValueError(f"buffers of one leading dimension are expected, got {list(shapes)}")
        return [
            shape[1:] if i in self.grouped else (shape[0] * shape[1], *shape[2:])
            for i, shape in enumerate(shapes)
        ]

    def __str__(self) -> str:
        return f"kernel {self.kernel}, {self.config}"


def key_of(spec: str | bytes) -> int:
    """A hash of a spec's text and version: 63 bits, as an MLIR integer attribute holds."""
    text = spec.encode() if isinstance(spec, str) else spec
    digest = hashlib.sha256(b"%d\n%b" % (VERSION, text)).digest()
    return int.from_bytes(digest[:8], "little") >> 1
