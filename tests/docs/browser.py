"""Looks at the built site in Chromium: the width of every page on a telephone, and the search.

    mkdocs build --strict
    python tests/docs/browser.py site --screenshots shots

needs `pip install selenium`, and chromium with its driver. It lists the pages that are wider than a
screen of 400 pixels with what sticks out of them, and searches that find nothing, and ends with
exit code 1 if there are any. It is no part of the test suite.
"""

import argparse
import contextlib
import functools
import http.server
import pathlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from selenium import webdriver  # pyright: ignore[reportMissingImports]

WIDTH, HEIGHT = 400, 3000
SEARCHES = ("NaN", "determinism", "torchvision")
SHOTS = ("", "start/", "explained/", "deform_conv/", "api/operators/", "faq/")

# What reaches beyond the right edge, and is in no box that scrolls.
STICKS_OUT = """
const scrolls = e => !e.matches('.md-content') &&
  (getComputedStyle(e).overflowX != 'visible' || scrolls(e.parentElement));
return [...document.querySelectorAll('.md-content *')]
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !scrolls(e.parentElement))
  .slice(0, 3).map(e => e.tagName + ': ' + e.textContent.trim().slice(0, 60));
"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def served(site: pathlib.Path) -> Iterator[str]:
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def resize(browser: Any, width: int, height: int) -> None:
    """Gives the page this size, which may be narrower than any window of a desktop."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def too_wide(browser: Any, address: str) -> str | None:
    browser.get(address)
    width = browser.execute_script("return document.documentElement.scrollWidth")
    return f"{width} pixels: {browser.execute_script(STICKS_OUT)}" if width > WIDTH else None


def results(browser: Any, address: str, words: str) -> int:
    """How many pages the site's search finds."""
    browser.get(address)
    browser.execute_script("document.querySelector('label[for=__search]').click()")
    field = browser.find_element("css selector", ".md-search__input")
    field.send_keys(words)
    for _ in range(50):
        time.sleep(0.1)
        if found := browser.find_elements("css selector", ".md-search-result__item"):
            return len(found)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("site", type=pathlib.Path)
    parser.add_argument("--screenshots", type=pathlib.Path, metavar="DIR")
    args = parser.parse_args()
    options = webdriver.ChromeOptions()
    for option in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(option)
    faults = 0
    pages = sorted(str(p.parent.relative_to(args.site)) for p in args.site.rglob("index.html"))
    options.binary_location = shutil.which("chromium") or ""
    driver = webdriver.ChromeService(shutil.which("chromedriver"))
    with served(args.site) as address, webdriver.Chrome(options, driver) as browser:
        resize(browser, WIDTH, HEIGHT)
        for page in pages:
            if fault := too_wide(browser, f"{address}{page}/"):
                faults += 1
                print(f"{page}: {fault}")
        print(f"{len(pages)} pages, {faults} of them wider than {WIDTH} pixels")
        resize(browser, 1280, 900)
        for words in SEARCHES:
            count = results(browser, address, words)
            faults += not count
            print(f"search for {words!r}: {count} pages")
        if args.screenshots:
            args.screenshots.mkdir(parents=True, exist_ok=True)
            for width in (WIDTH, 1280):
                resize(browser, width, HEIGHT)
                for page in SHOTS:
                    browser.get(address + page)
                    name = f"{page.strip('/').replace('/', '-') or 'index'}-{width}.png"
                    browser.save_screenshot(str(args.screenshots / name))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
