"""The picture of what the sampling operators read: the weights in it are those of the points."""

import numpy as np
import pytest
from what_is_read import LEVELS, PIXEL, QUERY, main, of_attention, of_window


def test_what_a_new_layer_reads():
    levels, samples = of_attention()
    # Eight heads weigh all of twelve points alike; those of the smallest level lie partly outside.
    for read, (height, width) in zip(levels[:2], LEVELS, strict=False):
        np.testing.assert_allclose(read.sum(), 8 / 3, rtol=1e-5)
        ys, xs = np.indices(read.shape)
        center = (read * xs).sum() / read.sum(), (read * ys).sum() / read.sum()
        expected = np.asarray(QUERY) * (width, height) - 0.5
        np.testing.assert_allclose(center, expected, atol=1e-4)
    assert 2 < levels[2].sum() < 8 / 3
    first_head = np.asarray(samples.locations)[0, 0, 0].reshape(len(LEVELS), 4, 2)
    np.testing.assert_allclose(np.diff(first_head, axis=1), [[[0, 1]] * 3] * 3, atol=1e-4)


def test_what_a_window_reads():
    y, x = PIXEL
    regular = np.zeros((15, 15))
    regular[y - 1 : y + 2, x - 1 : x + 2] = 1 / 9
    read, samples = of_window(np.zeros((9, 2)), 1.0)
    np.testing.assert_allclose(read, regular, rtol=1e-5)
    taps = [(i, j) for j in (x - 1, x, x + 1) for i in (y - 1, y, y + 1)]
    np.testing.assert_array_equal(samples.locations[0, y, x, 0], taps)
    wide = np.zeros((15, 15))
    wide[y - 2 : y + 3 : 2, x - 2 : x + 3 : 2] = 1 / 9
    np.testing.assert_allclose(of_window(np.zeros((9, 2)), 2.0)[0], wide, rtol=1e-5)
    # The first tap, above on the left, goes half a pixel to the right.
    moved = np.zeros((9, 2))
    moved[0, 0] = 0.5
    expected = regular.copy()
    expected[y - 1, x - 1] -= 1 / 18
    expected[y - 1, x] += 1 / 18
    np.testing.assert_allclose(of_window(moved, 1.0)[0], expected, rtol=1e-5)


@pytest.mark.spread(1)
def test_picture(tmp_path, capsys):
    path = tmp_path / "read.png"
    main(["--picture", str(path)])
    assert capsys.readouterr().out == f"drawn: {path}\n"
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert path.stat().st_size > 5_000
