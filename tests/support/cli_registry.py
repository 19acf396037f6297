"""A registry for the tests of the commands: kernels that pass, and that fail in every way."""

from ptx.isa.targets import Target, UnsupportedError
from ptx.registry import register
from support.texts import COPY, spilling


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
    return copy(512, target).replace(".visible", array + ".visible").replace("[tile]", "[words]")


register("copy", {"small": 256, "large": 32768}, copy, needs="sm_80")
register("spills", {"60-values": 60}, lambda count, target: spilling(count), needs="sm_80")
register(
    "rejected", {"only": 0}, lambda _, target: copy(512, target).replace("bar.", "bat."), "sm_80"
)
register("says_too_little", {"only": None}, only_sm_90, needs="sm_80")
register("dynamic", {"1024": 1024}, dynamic, "sm_80", lambda words, target: 4 * words)
register("dynamic_of_no_size", {"1024": 1024}, dynamic, "sm_80")
register("too_large", {"huge": 1 << 20}, dynamic, "sm_80", lambda words, target: 4 * words)
register("broken", {"only": 0}, lambda config, target: str(1 // config))
