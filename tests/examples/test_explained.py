"""The pictures of docs/explained.md show what the operators do."""

import numpy as np
from explained import (
    PICTURES,
    PIXEL,
    along_the_ring,
    beyond_the_edges,
    corner_weights,
    main,
    offset_gradients,
    read_weights,
    ring,
    spread_out,
    window,
)
from support.paths import DOCS


def test_what_pixels_weigh():
    weights = corner_weights((1.7, 1.4), 4)
    expected = np.zeros((4, 4))
    expected[1:3, 1:3] = np.outer([0.3, 0.7], [0.6, 0.4])
    np.testing.assert_allclose(weights, expected, atol=1e-6)
    np.testing.assert_allclose(corner_weights((2.0, 3.6), 4).sum(), 0.4, atol=1e-6)


def test_gradients():
    def value(y, x):  # between pixels of the ring
        corners = ring()[int(y) : int(y) + 2, int(x) : int(x) + 2]
        return np.array([1 - y % 1, y % 1]) @ corners @ np.array([1 - x % 1, x % 1])

    y, x = np.asarray(PIXEL) - 1.99  # of the first tap
    slopes = [value(y + 0.1, x) - value(y, x), value(y, x + 0.1) - value(y, x)]
    np.testing.assert_allclose(offset_gradients(ring())[0], np.multiply(10, slopes), rtol=1e-4)
    np.testing.assert_allclose(read_weights(along_the_ring(PIXEL)).sum(), 9, rtol=1e-5)


def test_the_window_follows_the_ring():
    locations = np.asarray(window(along_the_ring(PIXEL)[None]).locations)[0, *PIXEL, 0]
    radii = np.hypot(*(locations - 7).T).reshape(3, 3)
    np.testing.assert_allclose(radii, [[5.2, 4.2, 3.2]] * 3, rtol=1e-5)


def test_what_is_beyond_the_edges():
    image = np.arange(12.0).reshape(4, 3)
    around = (2, 2), (1, 2)
    padded = {
        "border": np.pad(image, around, mode="edge"),
        "reflection": np.pad(image, around, mode="symmetric"),
        "wrap": np.pad(image, around, mode="wrap"),
    }
    for mode, expected in padded.items():
        np.testing.assert_array_equal(beyond_the_edges(image, mode), expected, mode)


def test_pixels_that_are_spread_out():
    """None is lost but those that leave the image."""
    sums, counts = spread_out(np.ones((5, 5)), 1.0)
    np.testing.assert_array_equal(sums, counts)
    np.testing.assert_array_equal(counts, 1)
    sums, counts = spread_out(np.ones((5, 5)), 2.0)
    np.testing.assert_array_equal(counts, np.outer(kept := [1, 0, 1, 0, 1], kept))


def test_the_page_has_all_pictures(tmp_path, monkeypatch):
    pages = (DOCS / "explained.md").read_text() + (DOCS / "sampling.md").read_text()
    for name in PICTURES:
        assert f"](images/explained_{name}.png)" in pages
    monkeypatch.setattr("explained.PICTURES", {"window": PICTURES["window"]})
    main(["--output", str(tmp_path)])
    assert (tmp_path / "explained_window.png").stat().st_size > 5000
