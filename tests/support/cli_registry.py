"""A registry for the tests of the commands: kernels that pass, and that fail in every way."""

from collections.abc import Callable, Mapping
from typing import Any

from ptx.definition import KernelDefinition
from ptx.isa.dtypes import u32
from ptx.isa.targets import Target, UnsupportedError
from ptx.registry import register
from support.texts import COPY, spilling


def define(
    name: str,
    configs: Mapping[str, Any],
    text: Callable[[Any, Target], str],
    needs: str = "sm_75",
    dynamic_words: Callable[[Any], int] = lambda config: 0,
) -> KernelDefinition:
    """A kernel whose text is foreign."""

    def body(k, config, plan, p) -> str:
        if words := dynamic_words(config):
            k.dynamic_shared(u32, words)
        return text(config, k.target)

    return KernelDefinition(
        name=name,
        configs=configs,
        parameters=(),
        grid=lambda instance: (1, 1, 1),
        body=body,
        needs=needs,
    )


def copy(tile_bytes: int, target: Target) -> str:
    if not target.supports("sm_80"):
        raise UnsupportedError(f"kernel copy: cp.async needs sm_80 or later, not {target}")
    return COPY.replace("768", str(tile_bytes)).replace("sm_80", target.name).replace("7.0", "8.7")


def only_sm_90(config: None, target: Target) -> str:
    if not target.supports("sm_90"):
        raise UnsupportedError(f"red.v4.f32 needs sm_90 or later, and the target is {target}")
    return copy(512, target)


def dynamic(words: int, target: Target) -> str:
    array = ".extern .shared .align 16 .b8 words[];\n"
    if words:
        array = f"// {4 * words} bytes of dynamic shared memory\n{array}"
    return copy(512, target).replace(".visible", array + ".visible").replace("[tile]", "[words]")


def rejected(config: int, target: Target) -> str:
    return copy(512, target).replace("bar.", "bat.")


MOST_WORDS = 99 * 1024 // 4  # of a block on sm_86, beside which it has no static ones

for kernel in (
    define("copy", {"small": 256, "large": 32768}, copy, "sm_80"),
    define("spills", {"60-values": 60}, lambda count, target: spilling(count), "sm_80"),
    define("rejected", {"only": 0}, rejected, "sm_80"),
    define("says_too_little", {"only": None}, only_sm_90, "sm_80"),
    define("dynamic", {"1024": 1024}, dynamic, "sm_80", lambda words: words),
    define("dynamic_of_no_size", {"none": 0}, dynamic, "sm_80"),
    define("dynamic_of_other_size", {"1024": 1024}, dynamic, "sm_80", lambda words: 2 * words),
    define("too_large", {"huge": MOST_WORDS}, dynamic, "sm_80", lambda words: words),
    define("broken", {"only": 0}, lambda config, target: str(1 // config)),
):
    register(kernel)
