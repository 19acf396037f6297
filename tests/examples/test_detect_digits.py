"""The detector: its scenes, its loss and its average precision, and that all of it runs."""

import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from detect_digits import Found
from detection_loss import generalized_iou, loss, match
from digit_picture import draw
from digit_scenes import (
    CLASSES,
    IOUS,
    SIZE,
    Scenes,
    average_precision,
    corners,
    make_scenes,
    read_digits,
)
from support.paths import ROOT
from support.processes import python
from support.xla_flags import cpu_flags


def scenes_of(boxes: list[list[list[float]]], labels: list[list[int]]) -> Scenes:
    """Scenes whose images nobody looks at."""
    images = jnp.zeros((len(boxes), 1, 1, 1))
    return Scenes(images, jnp.asarray(boxes), jnp.asarray(labels))


# Two digits of a class, one of another, and no third one in the second scene.
LEFT, RIGHT, BELOW = [0.25, 0.25, 0.2, 0.2], [0.75, 0.25, 0.2, 0.2], [0.5, 0.75, 0.4, 0.2]
SCENES = scenes_of([[LEFT, RIGHT], [BELOW, BELOW]], [[3, 3], [7, -1]])


def scores_of(*rows: tuple[int, float]) -> list[list[float]]:
    """Of queries: each has a score for one class, and none for others."""
    return [[score if i == label else 0.0 for i in range(CLASSES)] for label, score in rows]


def test_digits_are_where_boxes_say():
    digits, _ = read_digits()
    scenes = make_scenes(digits, jax.random.key(0), 50)
    again = make_scenes(digits, jax.random.key(0), 50)
    jax.tree.map(np.testing.assert_array_equal, scenes, again)
    present = np.asarray(scenes.labels) >= 0
    assert 1.5 < present.sum(axis=1).mean() < 5
    assert present[:, 0].all()  # the first digit has all the room
    inked, empty = [], []
    for image, boxes, kept in zip(*map(np.asarray, scenes[:2]), present, strict=True):
        first, last = (SIZE * corner[kept] for corner in corners(boxes))
        assert (first > -1e-3).all()
        assert (last < SIZE + 1e-3).all()
        outside = np.ones((SIZE, SIZE), bool)
        for i, ((x, y), (right, bottom)) in enumerate(zip(first, last, strict=True)):
            inside = np.s_[round(y) : round(bottom), round(x) : round(right)]
            inked.append(image[inside].mean())
            outside[max(0, int(y) - 4) : int(bottom) + 5, max(0, int(x) - 4) : int(right) + 5] = 0
            others = np.arange(len(first)) != i
            apart = (first[others] >= last[i] + 1.99) | (last[others] <= first[i] - 1.99)
            assert apart.any(axis=-1).all()
        empty.append(image[outside].mean())
    assert np.mean(inked) > 0.3
    assert abs(np.mean(empty)) < 0.05


def test_digits_to_train_with_and_others():
    train, test = read_digits()
    assert (len(train.labels), len(test.labels)) == (1347, 450)
    seen = {image.tobytes() for image in np.asarray(train.images)}
    assert sum(image.tobytes() in seen for image in np.asarray(test.images)) == 0


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (LEFT, LEFT, 1.0),
        ([0.5, 0.5, 0.4, 0.4], [0.6, 0.5, 0.4, 0.4], 0.12 / 0.20),
        # Apart: the hull of 0.7 x 0.2 has 0.06 in neither.
        (LEFT, RIGHT, -(0.14 - 0.08) / 0.14),
    ],
)
def test_generalized_iou(a, b, expected):
    np.testing.assert_allclose(generalized_iou(jnp.asarray(a), jnp.asarray(b)), expected, rtol=1e-5)


def found_with(boxes: list[list[list[float]]], logits: list) -> Found:
    nothing = jnp.zeros(0)
    return Found(jnp.asarray(boxes), jnp.asarray(logits), nothing, nothing)


def test_digits_are_matched_with_the_best_queries():
    boxes = [[RIGHT, BELOW, LEFT], [LEFT, BELOW, RIGHT]]
    found = found_with(boxes, np.zeros((2, 3, CLASSES), np.float32).tolist())
    queries = np.asarray(match(found, SCENES))
    np.testing.assert_array_equal(queries[0], [2, 0])
    assert queries[1, 0] == 1
    # Of two boxes in the same place, the one that knows the digit.
    logits = np.zeros((2, 3, CLASSES), np.float32)
    logits[1, 2, 7] = 3
    found = found_with([boxes[0], [LEFT, BELOW, BELOW]], logits.tolist())
    assert np.asarray(match(found, SCENES))[1, 0] == 2


@pytest.mark.spread(1)
def test_loss_is_least_for_what_is_right():
    sure = 20 * (2 * np.asarray([scores_of((3, 1), (3, 1)), scores_of((7, 1), (0, 0))]) - 1)
    right = found_with([[LEFT, RIGHT], [BELOW, LEFT]], sure.tolist())
    assert float(loss([right], SCENES)) < 1e-5
    assert float(loss([right, right], SCENES)) < 1e-5
    moved = right._replace(boxes=right.boxes.at[0, 0, 0].add(0.1))
    # 5 * 0.1, and twice what the boxes share less: 0.02 / 0.06 for 1.
    np.testing.assert_allclose(loss([moved], SCENES), (0.5 + 2 * (1 - 1 / 3)) / 3, rtol=1e-4)
    wrong = right._replace(logits=-right.logits)
    assert float(loss([wrong], SCENES)) > 10


def test_average_precision():
    precision = functools.partial(average_precision, scenes=SCENES)
    boxes = np.asarray([[LEFT, RIGHT], [BELOW, LEFT]])
    right = np.asarray([scores_of((3, 0.9), (3, 0.8)), scores_of((7, 0.9), (7, 0.1))])
    np.testing.assert_allclose(precision(boxes, right), 1)

    # The surest of class 3 is wrong: precision is 1/2, then 2/3 at all recalls.
    wrong_first = np.asarray([scores_of((3, 0.9), (3, 0.8)), scores_of((7, 0.9), (3, 0.95))])
    np.testing.assert_allclose(precision(boxes, wrong_first), (2 / 3 + 1) / 2)

    # A digit that is found twice is found once: half of the recalls are reached.
    twice = np.asarray([[LEFT, LEFT], [BELOW, LEFT]])
    np.testing.assert_allclose(precision(twice, right), (51 / 101 + 1) / 2)

    # A box with an IoU of 2/3 counts up to 0.65.
    shifted = boxes + np.asarray([0.04, 0, 0, 0]) * [[[1], [1]], [[0], [0]]]
    expected = np.where(IOUS < 0.66, 1, 0.5)
    np.testing.assert_allclose(precision(shifted, right), expected)


def test_boxes_and_points_are_drawn(tmp_path: pathlib.Path):
    digits, _ = read_digits()
    scenes = make_scenes(digits, jax.random.key(0), 2)
    shape = 2, 12, 4, 6  # scenes, queries, heads and points of each
    points = jnp.asarray(np.random.default_rng(0).random((*shape, 2))), jnp.full(shape, 1 / 6)
    queries = jnp.arange(12)[:, None]
    sure = jnp.where(queries < 3, jnp.full((2, 12, CLASSES), 1.0), -5.0)
    boxes = jnp.tile(jnp.asarray(LEFT), (2, 12, 1))
    found = found_with(boxes.tolist(), sure.tolist())
    unsure = found._replace(logits=-9 - 0 * sure)

    def picture(first: Found, second: Found, weights: jax.Array) -> bytes:
        path = tmp_path / "picture.png"
        draw(path, scenes, {"first": first, "second": second}, (points[0], weights))
        return path.read_bytes()

    nothing = picture(unsure, unsure, points[1])
    without_points = picture(found, unsure, 0 * points[1])
    assert nothing == picture(unsure, unsure, 0 * points[1])
    assert len({nothing, without_points, picture(found, unsure, points[1])}) == 3
    # Points are those of the first one's queries.
    assert picture(unsure, found, points[1]) == picture(unsure, found, 0 * points[1]) != nothing


@pytest.mark.slow
def test_both_detectors_are_trained_and_drawn(tmp_path: pathlib.Path):
    picture, results = tmp_path / "scenes.png", tmp_path / "results.json"
    status, printed = python(
        str(ROOT / "examples" / "detect_digits.py"),
        *("--seconds", "1", "--batch", "2", "--decoders", "1", "--scenes", "6"),
        *("--picture", str(picture), "--json", str(results)),
        XLA_FLAGS=" ".join(cpu_flags(0)),
        PYTHONWARNINGS="error",
    )
    assert status == 0, printed
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture.stat().st_size > 20_000
    found = json.loads(results.read_text())["detectors"]
    assert [each["attention"] for each in found] == ["deformable", "plain"]
    for each in found:
        assert each["steps"] >= 1
        assert np.isfinite(each["loss"])
        assert 0 <= each["AP"] <= 1
        assert f"{each['AP']:.3f}" in printed
