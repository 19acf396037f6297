"""The Python of docs/architecture.md runs as written, and what the page shows is what it prints."""

import json
import re
import xml.etree.ElementTree

import pytest
from support.paths import DOCS

from oxijax._core import launch as _launch
from ptx import registry

pytestmark = pytest.mark.quick

PAGE = (DOCS / "architecture.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


@pytest.fixture(scope="module")
def printed():
    """What the page's Python prints, one text for each print."""
    texts = []
    namespace = {"print": lambda value: texts.append(str(value))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_KERNELS", dict(registry._KERNELS))
        for block in blocks("python"):
            exec(block, namespace)
    return texts


def test_the_call_is_as_shown(printed):
    lowered, _ = printed
    (spec,) = blocks("json")
    assert json.loads(spec)["kernel"] == "scale"
    quoted = spec.strip().replace('"', r"\22")
    assert f'spec = "{quoted}"' in lowered
    numbers = re.findall(r"`((?:key|version) = \d+ : i64)`", PAGE)
    assert len(numbers) == 2
    assert all(number in lowered for number in numbers)
    assert lowered.count(f"@{_launch.TARGET_NAME}(") == 1


def test_the_error_is_as_shown(printed):
    _, error = printed
    (shown,) = blocks("text")
    assert shown.strip() == error.strip()


def test_the_drawing_has_the_steps_of_the_list():
    (picture,) = re.findall(r"!\[.*\]\((.*\.svg)\)", PAGE)
    root = xml.etree.ElementTree.parse(DOCS / picture).getroot()
    texts = [text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text")]
    steps = re.findall(r"^(\d)\. ", PAGE, re.M)
    assert steps == [str(number) for number in range(1, 10)]
    assert sorted(text for text in texts if text in steps) == steps
    assert f"Custom call {_launch.TARGET_NAME}" in texts


def test_the_files_are_there():
    paths = re.findall(r"`((?:oxijax|tests)/[\w/]+\.(?:py|c))`", PAGE)
    assert len(paths) >= 5
    for path in paths:
        assert (DOCS.parent / path).is_file(), path
