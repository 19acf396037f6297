"""Writes the pages of figures in docs/evidence, with their pictures, from the newest results.

    python benchmarks/evidence.py

It needs the extra "demo", and measures nothing: README.md in this folder says what does.
"""

import argparse
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from evidence_pages.charts import digest_of  # noqa: E402
from evidence_pages.cpu_page import cpu_page  # noqa: E402
from evidence_pages.gpu_page import gpu_page  # noqa: E402
from evidence_pages.keras_page import keras_page  # noqa: E402
from evidence_pages.launch_page import launch_page  # noqa: E402
from evidence_pages.models_page import models_page  # noqa: E402
from evidence_pages.peers_page import peers_page  # noqa: E402
from evidence_pages.readings import newest, newest_of_gpus  # noqa: E402
from evidence_pages.sampling_page import sampling_page  # noqa: E402
from evidence_pages.wording import Page  # noqa: E402

__all__ = ["PAGES", "RESULTS", "main", "pages"]

RESULTS = ROOT / "benchmarks" / "results"
PAGES = ROOT / "docs" / "evidence"
_NOTE = (
    "<!-- Made by benchmarks/evidence.py from benchmarks/results: change those, not this page. -->"
)


def pages(results: pathlib.Path) -> dict[str, Page]:
    """All pages, by the names of their files, of the newest results in a folder."""
    found = newest(results)
    made = {
        "cpu.md": cpu_page(found["cpu"]),
        "sampling.md": sampling_page(found["sampling-cpu"]),
        "launch.md": launch_page(found["cpu"]),
        "models.md": models_page(found),
        "keras.md": keras_page(found["keras-sampling"], found["keras-training"]),
        "peers.md": peers_page(found["peers-cpu"]),
        "gpu.md": gpu_page(newest_of_gpus(results)),
    }
    return {
        name: Page([page.lines[0], "", _NOTE, *page.lines[1:]], page.charts)
        for name, page in made.items()
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--results", type=pathlib.Path, default=RESULTS, help="default: %(default)s"
    )
    parser.add_argument("--out", type=pathlib.Path, default=PAGES, help="default: %(default)s")
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    made = pages(args.results)
    wanted = {name for page in made.values() for name in page.charts}
    for name, page in made.items():
        (args.out / name).write_text(page.text)
        for picture, chart in page.charts.items():
            path = args.out / picture
            if not path.exists() or digest_of(path) != chart.digest:
                chart.draw(path)
        print(args.out / name)
    for path in args.out.glob("*.svg"):  # of results that are no longer the newest
        if path.name not in wanted:
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
