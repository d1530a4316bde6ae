"""Data of the cases, drawn from fixed seeds into a folder of the cache; made once and never timed."""

from __future__ import annotations

import os
import pickle
import sqlite3
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

VERSION = "1"
"""Changes whenever a maker below does, so that no case trains on data of another version."""


def cache() -> Path:
    """The folder that all data lies in; WHOLE_RUNS_CACHE names another one."""
    return Path(os.environ.get("WHOLE_RUNS_CACHE") or Path(tempfile.gettempdir()) / "autoopt-whole-runs")


def prepared(case: str, makers: Mapping[str, Callable[[Path, Generator], None]], version: str) -> Path:
    """The folder with the data of a case, made if it is not there; empty for cases that need no files."""
    folder = cache() / "data" / f"{case}-{version}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=folder.parent))
        if case in makers:
            makers[case](part, np.random.default_rng(0))
        part.rename(folder)
    return folder


def _graphs(folder: Path, rng: Generator, count: int = 2400) -> None:
    """Graphs of 14 to 30 nodes in PyG's storage (one tensor a key, with slices); the label is how they were wired."""
    import torch

    nodes, edges, labels = [], [], rng.integers(0, 3, count)
    for label in labels:
        size = int(rng.integers(14, 31))
        pairs = {(i, (i + 1) % size) for i in range(size)} if label == 0 else set()
        if label == 1:
            pairs = {(int(rng.integers(0, i)), i) for i in range(1, size)}
        while len(pairs) < size + 4:
            i, j = sorted(int(v) for v in rng.integers(0, size, 2))
            if i != j and (label != 2 or abs(i - j) < 8):
                pairs.add((i, j))
        both = sorted(pairs | {(j, i) for i, j in pairs})
        edges.append(np.array(both, dtype=np.int64).T)
        nodes.append(np.eye(16, dtype=np.float32)[rng.integers(0, 16, size)])
    data = {
        "x": torch.from_numpy(np.concatenate(nodes)),
        "edge_index": torch.from_numpy(np.concatenate(edges, axis=1)),
        "y": torch.from_numpy(labels),
    }
    slices = {
        "x": torch.tensor([0, *np.cumsum([len(x) for x in nodes])]),
        "edge_index": torch.tensor([0, *np.cumsum([e.shape[1] for e in edges])]),
        "y": torch.arange(count + 1),
    }
    torch.save((data, slices), folder / "data.pt")


def _rows(folder: Path, rng: Generator, train: int = 24000, valid: int = 8000) -> None:
    """Rows by key in a file, as an LMDB holds them: 24 numbers, 8 categories and a label each, pickled."""
    count = train + valid
    numbers = rng.normal(size=(count, 24)).astype(np.float32)
    categories = rng.integers(0, 40, size=(count, 8))
    effects = rng.normal(size=(8, 40))
    score = np.tanh(numbers[:, :6]).sum(1) + numbers[:, 6] * numbers[:, 7]
    score = score + effects[np.arange(8), categories].sum(1) + rng.normal(0, 1.0, count)
    labels = (score > 0).astype(np.int64)
    for name, first, last in (("train", 0, train), ("valid", train, count)):
        with sqlite3.connect(folder / f"{name}.db") as file:
            file.execute("create table rows (key blob primary key, value blob) without rowid")
            for key, row in enumerate(range(first, last)):
                value = {"numbers": numbers[row], "categories": categories[row], "label": int(labels[row])}
                file.execute("insert into rows values (?, ?)", (f"{key:08d}".encode(), pickle.dumps(value)))
            file.execute("insert into rows values (?, ?)", (b"__len__", pickle.dumps(last - first)))
        file.close()


def _words(rng: Generator, count: int) -> list[str]:
    """Made-up words of one to three syllables."""
    syllables = [c + v for c in "bcdfghklmnprstvw" for v in "aeiou"]
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(rng.choice(syllables, int(rng.integers(1, 4)))) + str(rng.choice(["", "n", "r", "s"]))] = None
    return list(found)


def _text(folder: Path, rng: Generator, length: int = 60000) -> None:
    """A text of words that follow each other by a fixed table, in sentences."""
    words = _words(rng, 300)
    following = rng.integers(0, 300, size=(300, 6))
    parts, word = [], 0
    for position in range(length):
        word = int(following[word, min(int(rng.geometric(0.4)), 6) - 1])
        text = words[word]
        parts.append(text.capitalize() + " " if position % 9 == 0 else text + (".\n" if position % 9 == 8 else " "))
    (folder / "input.txt").write_text("".join(parts), encoding="utf-8")


def _sentences(folder: Path, rng: Generator, train: int = 12000, valid: int = 3000) -> None:
    """Labelled sentences, one a line: what decides is which pair of words stands side by side."""
    words = _words(rng, 4000)
    pairs = rng.integers(0, 4000, size=(4, 300, 2))
    for name, count in (("train", train), ("dev", valid)):
        lines = []
        for _ in range(count):
            label = int(rng.integers(0, 4))
            sentence = [words[int(i)] for i in np.minimum(rng.zipf(1.3, int(rng.integers(12, 50))), 4000) - 1]
            for _ in range(2):
                first, second = pairs[
                    label if rng.random() < 0.8 else int(rng.integers(0, 4)), int(rng.integers(0, 300))
                ]
                at = int(rng.integers(0, len(sentence)))
                sentence[at:at] = [words[first], words[second]]
            lines.append(f"{label}\t{' '.join(sentence).capitalize()}.\n")
        (folder / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")


def _series(folder: Path, rng: Generator, hours: int = 8000) -> None:
    """Seven hourly series with daily and weekly seasons, as a CSV with dates."""
    import pandas as pd

    time = np.arange(hours)
    columns = {"date": pd.date_range("2016-07-01", periods=hours, freq="h").strftime("%Y-%m-%d %H:%M:%S")}
    for name in ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT"):
        day, week = rng.uniform(0.5, 2, 2)
        noise = np.convolve(rng.normal(0, 1, hours + 23), np.ones(24) / 8, "valid")
        season = day * np.sin(2 * np.pi * time / 24 + rng.uniform(0, 6)) + week * np.sin(2 * np.pi * time / 168)
        columns[name] = np.round(season + noise + rng.normal(0, 0.3, hours), 4)
    pd.DataFrame(columns).to_csv(folder / "ETTx.csv", index=False)


def _photos(folder: Path, rng: Generator, side: int = 160, train: int = 240, test: int = 32) -> None:
    """PNG files of square pieces of the photographs that ship with scikit-image and scikit-learn."""
    import skimage
    import sklearn
    from PIL import Image

    shipped = Path(str(skimage.__file__)).parent / "data"
    files = [shipped / name for name in ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "ihc.png")]
    files += sorted((Path(str(sklearn.__file__)).parent / "datasets" / "images").glob("*.jpg"))
    images = [Image.open(file).convert("RGB") for file in files]
    for name, count in (("train", train), ("test", test)):
        (folder / name).mkdir()
        for index in range(count):
            image = images[index % len(images)]
            left = int(rng.integers(0, image.width - side))
            top = int(rng.integers(0, image.height - side))
            image.crop((left, top, left + side, top + side)).save(folder / name / f"{index:04d}.png")


def _cells(folder: Path, rng: Generator, count: int = 200, side: int = 256) -> None:
    """JPEG pictures of bright ellipses on a textured ground, with their masks as PNG files."""
    from PIL import Image

    rows, columns = np.mgrid[:side, :side]
    (folder / "imgs").mkdir()
    (folder / "masks").mkdir()
    for index in range(count):
        mask = np.zeros((side, side), dtype=bool)
        for _ in range(int(rng.integers(3, 9))):
            (y, x), (a, b), turn = rng.uniform(0, side, 2), rng.uniform(10, 40, 2), rng.uniform(0, np.pi)
            along = (columns - x) * np.cos(turn) + (rows - y) * np.sin(turn)
            across = (rows - y) * np.cos(turn) - (columns - x) * np.sin(turn)
            mask |= (along / a) ** 2 + (across / b) ** 2 < 1
        ground = 80 + 30 * np.sin(columns / rng.uniform(8, 30)) + 20 * np.sin(rows / rng.uniform(8, 30))
        pixels = ground[..., None] + mask[..., None] * rng.uniform(15, 50, 3) + rng.normal(0, 25, (side, side, 3))
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(folder / "imgs" / f"{index:04d}.jpg", quality=90)
        Image.fromarray(mask.astype(np.uint8) * 255).save(folder / "masks" / f"{index:04d}.png")


def _digits(folder: Path, rng: Generator, train: int = 10000, test: int = 2000) -> None:
    """Drawn digits of 28 by 28 pixels, moved, turned and sized at random."""
    from PIL import Image, ImageDraw, ImageFont

    def drawn(label: int) -> NDArray[np.uint8]:
        image = Image.new("L", (28, 28))
        font = ImageFont.load_default(int(rng.integers(18, 25)))
        where = (8 + float(rng.uniform(-3, 3)), 2 + float(rng.uniform(-3, 3)))
        ImageDraw.Draw(image).text(where, str(label), fill=255, font=font)
        return np.asarray(image.rotate(float(rng.uniform(-20, 20)), Image.Resampling.BILINEAR))

    for name, count in (("train", train), ("test", test)):
        labels = rng.integers(0, 10, count)
        np.savez(folder / f"{name}.npz", images=np.stack([drawn(int(label)) for label in labels]), labels=labels)


MAKERS: dict[str, Callable[[Path, Generator], None]] = {
    "graph_net": _graphs,
    "tabular_rows": _rows,
    "char_transformer": _text,
    "text_classifier": _sentences,
    "forecasting": _series,
    "super_resolution": _photos,
    "unet_files": _cells,
    "vae": _digits,
}
