"""Data of the cases, drawn from fixed seeds; made once and never timed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from benchmarks.whole_runs.data import MAKERS as TEXTS

VERSION = "1"
"""Changes whenever a maker below does, so that no case trains on data of another version."""
SPLITS = ("train", "test")


def _readings(folder: Path, rng: Generator) -> None:
    """Rows of 32 numbers in four classes."""
    turn = rng.normal(size=(32, 4))
    for split, count in zip(SPLITS, (640, 160), strict=True):
        rows = rng.normal(size=(count, 32)).astype(np.float32)
        labels = (rows @ turn + rng.normal(0, 0.5, (count, 4))).argmax(1)
        np.savez(folder / f"{split}.npz", rows=rows, labels=labels)


def _shape(rng: Generator, label: int, width: int, height: int) -> NDArray[np.uint8]:
    """One of ten shapes, turned, sized, coloured and placed at random, on a ground of another colour with noise."""
    from PIL import Image, ImageDraw

    side = min(width, height)
    ground, colour = rng.integers(30, 226, (2, 3))
    while np.abs(ground - colour).sum() < 150:
        colour = rng.integers(30, 226, 3)
    image = Image.new("RGB", (width, height), tuple(int(v) for v in ground))
    draw = ImageDraw.Draw(image)
    radius = float(rng.uniform(0.22, 0.4)) * side
    centre = np.array([width, height]) / 2 + rng.uniform(-0.15, 0.15, 2) * side
    start = float(rng.uniform(0, 2 * np.pi))

    def around(radii: list[float]) -> list[tuple[float, float]]:
        angles = start + 2 * np.pi * np.arange(len(radii)) / len(radii)
        places = centre + radius * np.array(radii)[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)
        return [(float(x), float(y)) for x, y in places]

    fill, back = tuple(int(v) for v in colour), tuple(int(v) for v in ground)
    polygons = {
        2: [1.0] * 3,  # triangle
        3: [1.0] * 4,  # square
        4: [1.0] * 5,  # pentagon
        5: [1.0, 0.4] * 5,  # star
        6: [1.0, 0.25] * 4,  # cross
        7: [1.0, 0.4] * 2,  # narrow diamond
        8: [1.0, 0.3, 0.6, 0.3, 1.0, 0.9],  # lopsided
        9: [1.0, 0.3] * 3,  # three rays
    }
    if label in polygons:
        draw.polygon(around(polygons[label]), fill=fill)
    else:
        draw.ellipse([*(centre - radius), *(centre + radius)], fill=fill)
        if label == 1:  # ring
            draw.ellipse([*(centre - radius / 2), *(centre + radius / 2)], fill=back)
    noisy = np.asarray(image) + rng.normal(0, 12, (height, width, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def _shapes(side: int, train: int, test: int) -> Callable[[Path, Generator], None]:
    """Square pictures of shapes in one array a split."""

    def make(folder: Path, rng: Generator) -> None:
        for split, count in zip(SPLITS, (train, test), strict=True):
            labels = rng.integers(0, 10, count)
            pictures = np.stack([_shape(rng, int(label), side, side) for label in labels])
            np.savez(folder / f"{split}.npz", images=pictures, labels=labels)

    return make


def _jpegs(folder: Path, rng: Generator) -> None:
    """Large JPEG files of four shapes in a folder a split; the name holds the class."""
    from PIL import Image

    for split, count in zip(SPLITS, (480, 160), strict=True):
        (folder / split).mkdir()
        for index in range(count):
            label = int(rng.integers(0, 4))
            picture = _shape(rng, (0, 1, 5, 7)[label], 768, 576)
            Image.fromarray(picture).save(folder / split / f"{index:04d}_{label}.jpg", quality=90)


def _waves(folder: Path, rng: Generator) -> None:
    """Recordings of a rising or falling tone in noise; the class is the pair of first and last pitch."""
    time = np.arange(8192) / 8192
    for split, count in zip(SPLITS, (1600, 400), strict=True):
        labels = rng.integers(0, 9, count)
        first, last = 300 + 500 * (labels // 3), 300 + 500 * (labels % 3)
        first, last = (pitch * rng.uniform(0.85, 1.15, count) for pitch in (first, last))
        phase = 2 * np.pi * (first[:, None] * time + (last - first)[:, None] * time**2 / 2)
        waves = np.sin(phase) + rng.normal(0, 3.0, (count, 8192))
        np.savez(folder / f"{split}.npz", waves=(waves * 2000).astype(np.int16), labels=labels)


def _sentences(folder: Path, rng: Generator) -> None:
    """Texts of 4 to 240 words, most of them short; what decides is which words of four lists stand in them."""
    listed = rng.permutation(np.arange(50, 4000))[:800].reshape(4, 200)
    for split, count in zip(SPLITS, (3000, 600), strict=True):
        lines = []
        for _ in range(count):
            label = int(rng.integers(0, 4))
            length = int(np.clip(rng.lognormal(2.9, 0.9), 4, 240))
            words = np.minimum(rng.zipf(1.2, length), 4000) - 1
            telling = max(2, length // 10)
            words[rng.integers(0, length, telling)] = rng.choice(listed[label], telling)
            lines.append(f"{label}\t{' '.join(f'w{word}' for word in words)}\n")
        (folder / f"{split}.tsv").write_text("".join(lines), encoding="utf-8")


def _tokens(folder: Path, rng: Generator, vocabulary: int = 8000) -> None:
    """Sequences of 64 tokens, frequent ones first, where four of five follow from the token before."""
    often = 1 / np.arange(1, vocabulary + 1) ** 1.1
    often /= often.sum()
    follower = rng.choice(vocabulary, vocabulary, p=often)
    for split, count in zip(SPLITS, (2000, 200), strict=True):
        tokens = rng.choice(vocabulary, (count, 64), p=often)
        follows = rng.random((count, 64)) < 0.8
        for place in range(1, 64):
            tokens[:, place] = np.where(follows[:, place], follower[tokens[:, place - 1]], tokens[:, place])
        np.save(folder / f"{split}.npy", tokens.astype(np.int32))


MAKERS: dict[str, Callable[[Path, Generator], None]] = {
    "sleeping_reader": _readings,
    "jpegs": _jpegs,
    "misconfigured": _waves,
    "airbench": _shapes(32, 5000, 1000),
    "tiny_gpt": TEXTS["char_transformer"],
    "varied_texts": _sentences,
    "wide_softmax": _tokens,
    "composer": _shapes(64, 2400, 500),
}
