"""C programs of tests: compiled plain and under sanitizers, run one case at a time."""

from __future__ import annotations

import dataclasses
import pathlib
import shutil
import subprocess

__all__ = ["ADDRESS", "THREAD", "Build", "advice", "check_cases", "gcc", "run", "run_case"]


@dataclasses.dataclass(frozen=True)
class Build:
    """A way to compile the tests.

    Attributes:
      flags: options of gcc.
      canaries: the cases that must fail, and what they must say.
    """

    flags: tuple[str, ...]
    canaries: dict[str, str]


ADDRESS = Build(
    ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    {
        "canary_leak": "LeakSanitizer: detected memory leaks",
        "canary_overflow": "AddressSanitizer: heap-buffer-overflow",
        "canary_undefined": "signed integer overflow",
    },
)
THREAD = Build(("-O1", "-g", "-fsanitize=thread"), {"canary_race": "ThreadSanitizer: data race"})


def check_cases(program: pathlib.Path, build: Build) -> None:
    """Runs each case of a program in a process of its own; all but the canaries must succeed.

    Without arguments the program lists its cases; canaries may be among them. A case fails where
    it says anything, too.
    """
    for canary, expected in build.canaries.items():
        status, said = run_case(program, canary)
        assert status, f"{canary} must fail, and has not"
        assert expected in said, advice(said)
    cases = [case for case in run([str(program)]).split() if not case.startswith("canary_")]
    assert cases
    failed = {}
    for case in cases:
        status, said = run_case(program, case)
        if status or said:
            failed[case] = f"{program.name} {case}: exit status {status}\n{advice(said)}"
    assert not failed, "\n".join(failed.values())


def run_case(program: pathlib.Path, case: str) -> tuple[int, str]:
    """Runs a case: its exit status, and all that it says."""
    finished = subprocess.run(
        [*fixed_addresses(), str(program), case],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        env={
            "ASAN_OPTIONS": "detect_leaks=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
            "TSAN_OPTIONS": "halt_on_error=1",
        },
    )
    return finished.returncode, finished.stdout


def fixed_addresses() -> list[str]:
    """The prefix of a command that runs it without random addresses, where that is allowed.

    The sanitizers of gcc 12 and older expect addresses that a Linux kernel with many random bits
    (vm.mmap_rnd_bits=32) does not always keep to. Where `setarch -R` is forbidden, as in some
    containers, the program runs with random addresses; if these do not suit the sanitizer, its
    canary does not say what it must, the test fails, and `advice` says why.
    """
    setarch = shutil.which("setarch")
    if setarch and subprocess.run([setarch, "-R", "true"], capture_output=True).returncode == 0:
        return [setarch, "-R"]
    return []


def advice(said: str) -> str:
    """What a case has said, and what to do where the sanitizer itself could not start."""
    if "unexpected memory mapping" in said or "ptrace" in said:
        return (
            f"{said}\nThe sanitizer cannot run here. Of its address space: allow `setarch -R` "
            "(docker run --security-opt seccomp=unconfined), or `sysctl vm.mmap_rnd_bits=28`. "
            "Of ptrace: LeakSanitizer does not work under a debugger or strace."
        )
    return said


def gcc() -> str:
    """The compiler; without one these tests fail."""
    found = shutil.which("gcc")
    assert found, "gcc is needed, with its sanitizers: apt install gcc libc6-dev"
    return found


def run(command: list[str]) -> str:
    """Runs a command that must succeed: all that it says."""
    finished = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=90
    )
    assert finished.returncode == 0, f"{' '.join(command)}\n{finished.stdout}"
    return finished.stdout
