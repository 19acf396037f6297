"""The plans that `oxijax.tune` has kept, as `oxijax.config.tuning`."""

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import stat
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from oxijax._core.arguments.checks import shown
from oxijax._core.calls.kernel_call import KernelCall, is_emulated
from oxijax._core.calls.variations import variations
from oxijax._core.launch._spec import config_type, decode_fields, encode_fields, registered
from oxijax._version import __version__
from ptx import registry
from ptx.isa.targets import TARGETS

__all__ = ["TunedPlans", "tuned_plans"]

FORMAT = 1  # of the text: raised when an old one would mean something else

_SHIPPED = pathlib.Path(__file__).parent / "shipped"


class TunedPlans:
    """Plans of kernels that were found to be the fastest on a GPU, as `oxijax.config.tuning`.

    `oxijax.tune` adds to them. A kernel that is launched on a GPU of the same name, in the same
    configuration and for arrays of the same shapes then has its plan from here.

    They come from what is shipped with oxijax, and then from a file for each GPU and version of
    oxijax, which is read when the first kernel is launched on that GPU, and written by
    `oxijax.tune` alone. What `loads` and `oxijax.tune` add to this process goes before both. `len`
    says how many there are in this process.
    """

    def __init__(self) -> None:
        self._plans: dict[KernelCall, Any] = {}
        self._read: dict[str, set[str]] = {}  # of GPUs whose files were read: the kernels then
        self._lock = threading.RLock()
        self._changed: list[Callable[[], None]] = []

    # ---- for users

    @property
    def directory(self) -> pathlib.Path:
        """Where the files are: `OXIJAX_TUNING_DIR`, or oxijax in the user's cache directory.

        That is `XDG_CACHE_HOME`, or `~/.cache`. In both variables, `~` is the user's home. The file
        of a GPU is tuning-GPU-VERSION.json, with the GPU's name and oxijax's version.
        """
        cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "oxijax")
        return pathlib.Path(os.path.expanduser(os.environ.get("OXIJAX_TUNING_DIR") or cache))

    def dumps(self) -> str:
        """The plans of this process as JSON, which `loads` takes: sorted, an entry a plan.

        What a file has of a GPU is there once a kernel was launched on it.
        """
        with self._lock:
            return _text(_entry(call, plan) for call, plan in self._plans.items())

    def loads(self, text: str) -> None:
        """Adds plans, which take the place of those of the same calls, to this process.

        No file is written. Each kernel is written with its plan once, which takes a second or so.

        Args:
          text: the result of `dumps`, by this version of oxijax or another one.

        Raises:
          TypeError: text is no str.
          ValueError: it is no text of `dumps`, or has an entry that is none here; the message says
            which and why. Then nothing is added. An entry needs a kernel and a configuration that
            there are, and a plan that `oxijax.tune` would try, which the kernel can be written
            with.
        """
        if not isinstance(text, str):
            raise TypeError(f"text must be a str, got {shown(text)}")
        plans, faults = _parse_entries(_parse_text(text))
        if faults:
            raise ValueError(f"text: {faults[0]}")
        for number, (call, plan) in enumerate(plans.items(), 1):
            try:
                call.kernel.launch(call.config, call.target, call.shapes, plan=plan)
            except (AssertionError, ValueError) as error:
                raise ValueError(
                    f"text: plan {number}: kernel {call.kernel.name} cannot be written with "
                    f"{plan}: {error!r}"
                ) from error
        with self._lock:
            self._plans.update(plans)
        self._notify()

    def clear(self) -> None:
        """Forgets all plans of this process, in which kernels have the plans of their own choice.

        Files stay as they are, and are not read again.
        """
        with self._lock:
            # Those of GPUs that no kernel was launched on yet are not read either.
            self._read[_ALL] = set()
            self._plans.clear()
        self._notify()

    def __len__(self) -> int:
        return len(self._plans)

    def __repr__(self) -> str:
        return f"oxijax.config.tuning({len(self)} plans, directory={str(self.directory)!r})"

    # ---- for oxijax

    def find(self, call: KernelCall) -> Any | None:
        """The plan that is kept for a call; None where the kernel's own choice is not overruled.

        An emulated GPU has no files: nobody has timed it, and tests have the same plans everywhere.
        Files are read again for kernels that were not there when they were read.
        """
        complaints: list[str] = []
        with self._lock:
            before = self._read.get(call.gpu, set())
            if not (is_emulated(call.gpu) or _ALL in self._read or call.kernel.name in before):
                found: dict[KernelCall, Any] = {}
                for file in [*sorted(_SHIPPED.glob("*.json")), self._file(call.gpu)]:
                    plans, complaint = _read_plans(file)
                    found.update(plans)
                    complaints += complaint
                for other, plan in found.items():
                    if other.gpu == call.gpu and other.kernel.name not in before:
                        self._plans.setdefault(other, plan)
                self._read[call.gpu] = {*registry.KERNELS, call.kernel.name}
            plan = self._plans.get(call)
        for complaint in complaints:  # last, for where a warning is an error
            _warn(complaint)
        return plan

    def keep(self, plans: Mapping[KernelCall, Any]) -> None:
        """Adds plans to this process and to the file of each GPU.

        A file is read and replaced as a whole: of two processes that do so at the same time the
        second may lose what the first has kept. Entries of other calls stay as they are, also those
        that mean nothing here, and so does a file that cannot be read as a list of entries: then,
        and where a file cannot be written, there is a warning.
        """
        with self._lock:
            self._plans.update(plans)
        self._notify()
        for gpu in sorted({call.gpu for call in plans}):
            file = self._file(gpu)
            mine = {call: _entry(call, plan) for call, plan in plans.items() if call.gpu == gpu}
            try:
                others = {_call_or_text(entry): entry for entry in _read_file(file)}
                _replace(file, _text({**others, **mine}.values()))
            except (OSError, ValueError, RecursionError) as error:
                _warn(f"tuned plans are kept in this process alone: {file}: {error}")

    def on_change(self, function: Callable[[], None]) -> None:
        """Has a function called whenever calls may have other plans than before."""
        self._changed.append(function)

    def _file(self, gpu: str) -> pathlib.Path:
        name = re.sub(r"[^\w.-]+", "-", gpu)
        return self.directory / f"tuning-{name}-{__version__}.json"

    def _notify(self) -> None:
        for function in self._changed:
            function()


tuned_plans = TunedPlans()

_ALL = ""  # in place of the name of a GPU: all of them
_TOLD = 3  # entries of a file of which a warning says what is wrong with them
_DAY = 24 * 60 * 60  # seconds, far more than writing takes
_KEYS = ("gpu", "target", "kernel", "config", "shapes", "plan")


def encode_plan(plan: Any) -> dict[str, Any]:
    """All fields of a plan, as JSON has them; a class is its name.

    All of them, and not those alone that differ from the kernel's own choice: in a version that
    chooses otherwise they would mean a plan that nobody has timed.
    """

    def encode(value: Any) -> Any:
        if isinstance(value, type):
            return value.__name__
        return list(value) if isinstance(value, tuple) else value

    return {field.name: encode(getattr(plan, field.name)) for field in dataclasses.fields(plan)}


def _entry(call: KernelCall, plan: Any) -> dict[str, Any]:
    values = (
        call.gpu,
        call.target.name,
        call.kernel.name,
        encode_fields(call.config),
        [list(shape) for shape in call.shapes],
        encode_plan(plan),
    )
    return dict(zip(_KEYS, values, strict=True))


def _text(entries: Iterable[Any]) -> str:
    """The text of entries, which are as JSON has them, whatever they say."""

    def written(entry: Any) -> str:
        if not isinstance(entry, dict):
            return json.dumps(entry, sort_keys=True)
        lines = [
            f"  {json.dumps(key)}: {json.dumps(value, sort_keys=True)}"
            for key, value in entry.items()
        ]
        return "{\n" + ",\n".join(lines) + "\n}"

    head = f'{{\n"format": {FORMAT},\n"oxijax": {json.dumps(__version__)},\n"plans": '
    return head + "[" + ",\n".join(sorted(map(written, entries))) + "]\n}\n"


def _parse_text(text: str) -> list[Any]:
    """The entries of a text, whatever they say; ValueError where it is no list of entries."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"text must be JSON: {error}") from None
    if not isinstance(content, dict) or content.keys() != {"format", "oxijax", "plans"}:
        raise ValueError("text must be an object with format, oxijax and plans")
    if type(content["format"]) is not int or content["format"] != FORMAT:
        raise ValueError(f"text must be of format {FORMAT}, got {shown(content['format'])}")
    if not isinstance(content["plans"], list):
        raise ValueError(f"plans must be a list, got {shown(content['plans'])}")
    return content["plans"]


def _parse_entries(entries: list[Any]) -> tuple[dict[KernelCall, Any], list[str]]:
    """The plans of those entries that mean one here, and what is wrong with each of the others."""
    plans, faults = {}, []
    for number, entry in enumerate(entries, 1):
        try:
            call = _parse_call(entry)
            plans[call] = _parse_plan(call, entry["plan"])
        except Exception as error:  # kernels of others may say by any what they cannot be
            faults.append(f"plan {number}: {error.args[0] if error.args else repr(error)}")
    return plans, faults


def _call_or_text(entry: Any) -> KernelCall | str:
    """What an entry is for, by which another one takes its place; all of it if it means nothing."""
    try:
        return _parse_call(entry)
    except Exception:  # as in _parse_entries
        return _text([entry])


def _parse_call(entry: Any) -> KernelCall:
    if not isinstance(entry, dict) or entry.keys() != set(_KEYS):
        raise ValueError(f"an object with {', '.join(_KEYS)} is expected, got {shown(entry)}")
    for key in ("gpu", "target", "kernel"):
        if not isinstance(entry[key], str):
            raise TypeError(f"{key} must be a str, got {shown(entry[key])}")
    if entry["target"] not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {entry['target']!r}")
    kernel = registered(entry["kernel"])
    config = decode_fields(config_type(kernel), entry["config"])
    target, shapes = TARGETS[entry["target"]], _parse_shapes(entry["shapes"])
    return KernelCall(entry["gpu"], target, kernel, config, shapes)


def _parse_plan(call: KernelCall, wanted: Any) -> Any:
    name, fields = call.kernel.name, [f.name for f in dataclasses.fields(call.instance.plan)]
    if not isinstance(wanted, dict) or wanted.keys() != set(fields):
        raise ValueError(
            f"a plan of kernel {name} has the fields {', '.join(fields)} here, got {shown(wanted)}"
        )
    # Nothing but what `oxijax.tune` tries: of other plans nobody knows that results are right.
    for plan in variations(call):
        if json.dumps(encode_plan(plan), sort_keys=True) == json.dumps(wanted, sort_keys=True):
            return plan
    raise ValueError(f"kernel {name} is not tried with this plan here: {shown(wanted)}")


def _parse_shapes(shapes: Any) -> tuple[tuple[int, ...], ...]:
    def is_shape(shape: Any) -> bool:
        return isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)

    if not isinstance(shapes, list) or not all(map(is_shape, shapes)):
        raise TypeError(f"shapes must be lists of sizes, got {shown(shapes)}")
    return tuple(map(tuple, shapes))


def _read_file(file: pathlib.Path) -> list[Any]:
    """The entries of a file, none if there is no such file.

    Raises:
      OSError: it cannot be read.
      ValueError: it is no list of entries.
    """
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise OSError("it is no regular file")  # of which some have no end
        return _parse_text(file.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read_plans(file: pathlib.Path) -> tuple[dict[KernelCall, Any], list[str]]:
    """The plans of a file, and what is to be said of the rest of it: one sentence, or none."""
    try:
        entries = _read_file(file)
    except (OSError, ValueError) as error:
        return {}, [
            f"tuned plans are not read: {file}: {error}\nMend or delete the file: until then "
            "oxijax.tune leaves it as it is, and keeps plans in its process alone"
        ]
    plans, faults = _parse_entries(entries)
    if not faults:
        return plans, []
    return plans, [
        f"{len(faults)} of {len(entries)} tuned plans are not used, and stay in {file}:\n"
        + "\n".join([*faults[:_TOLD], *["..."] * (len(faults) > _TOLD)])
    ]


def _replace(file: pathlib.Path, text: str) -> None:
    """Writes a file at once: whoever reads it finds the old text or the new one.

    What a process that was killed while it wrote has left here is deleted a day later.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    for left in file.parent.glob("tuning-*.json*.new"):
        with contextlib.suppress(OSError):
            if left.stat().st_mtime < time.time() - _DAY:
                left.unlink()
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=file.name, suffix=".new")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text)
        os.replace(name, file)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _warn(message: str) -> None:
    warnings.warn(f"oxijax: {message}", RuntimeWarning, stacklevel=2)
