"""Runs one section: python -m gpu_suite SECTION --out FILE --seconds S [--mode MODE]."""

import argparse
import importlib
import os
import pathlib
import traceback

from gpu_suite.plan import SECTIONS
from gpu_suite.recorder import Mode, Recorder

_PLANTED = "planted"  # kills its own process, to see that reported


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gpu_suite", description=__doc__)
    parser.add_argument("section", choices=[*SECTIONS, _PLANTED])
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--mode", type=Mode, choices=list(Mode), default=Mode.MEASURE)
    args = parser.parse_args()
    recorder = Recorder(args.out, args.seconds, args.mode)
    if args.section == _PLANTED:
        recorder.put("before_the_crash", value=1)
        os.abort()
    try:
        importlib.import_module(f"gpu_suite.{SECTIONS[args.section].module}").run(recorder)
    except Exception:
        recorder.fail(args.section, traceback.format_exc())
    recorder.finish()


if __name__ == "__main__":
    main()
