"""Samples of images: positions, corners, and the tiles and fragments that are filled from them."""
