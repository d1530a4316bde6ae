"""Small data in the form in which the scripts look for theirs, the same on every machine."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path

import numpy as np

WORDS, SENTENCE = 3000, 24
"""Words of the made-up language, and words of a line."""


def mnist(folder: Path, train: int = 12_000, test: int = 2_000) -> None:
    """Handwritten digits at 28 by 28, shifted at random, in MNIST's own files below ``folder``/MNIST/raw."""
    from sklearn.datasets import load_digits

    random = np.random.default_rng(0)
    digits = load_digits()
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, number in (("train", train), ("t10k", test)):
        chosen = random.integers(len(digits.target), size=number)
        images = np.zeros((number, 28, 28), dtype=np.uint8)
        large = np.kron(digits.images[chosen] * 15.9, np.ones((3, 3)))  # 8 by 8 becomes 24 by 24
        for image, digit, (y, x) in zip(images, large, random.integers(5, size=(number, 2)), strict=True):
            image[y : y + 24, x : x + 24] = digit
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, number, 28, 28) + images.tobytes())
        labels = digits.target[chosen].astype(np.uint8)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, number) + labels.tobytes())


def text(words: int, seed: int = 0) -> str:
    """A made-up text: words of a Zipfian vocabulary, each likely after a few others, in lines."""
    random = np.random.default_rng(seed)
    letters = np.random.default_rng(1)
    alphabet = list("etaoinshrdlucmfwypvbgk")
    vocabulary = ["".join(letters.choice(alphabet, size=size)) for size in letters.integers(2, 9, size=WORDS)]
    often = 1 / np.arange(1, WORDS + 1)
    drawn = random.choice(WORDS, size=words, p=often / often.sum())
    followers = letters.integers(WORDS, size=WORDS)
    follows = random.random(words) < 0.5
    for place in range(1, words):
        if follows[place]:
            drawn[place] = followers[drawn[place - 1]]
    lines = [drawn[start : start + SENTENCE] for start in range(0, words, SENTENCE)]
    return "\n".join(" ".join(vocabulary[word] for word in line) for line in lines) + "\n"


def corpus(folder: Path) -> None:
    """train.txt, valid.txt and test.txt, as wikitext-2 lies in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, words, seed in (("train", 120_000, 0), ("valid", 6_000, 1), ("test", 6_000, 2)):
        (folder / f"{name}.txt").write_text(text(words, seed), encoding="utf-8")


def one_file(file: Path, words: int, beginning: str = "") -> None:
    """One text file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(beginning + text(words), encoding="utf-8")


def characters(folder: Path) -> None:
    """train.bin, val.bin and meta.pkl, as nanoGPT prepares characters."""
    folder.mkdir(parents=True, exist_ok=True)
    written = text(150_000)
    alphabet = sorted(set(written))
    number = {letter: place for place, letter in enumerate(alphabet)}
    ids = np.array([number[letter] for letter in written], dtype=np.uint16)
    cut = int(0.9 * len(ids))
    ids[:cut].tofile(folder / "train.bin")
    ids[cut:].tofile(folder / "val.bin")
    meta = {"vocab_size": len(alphabet), "stoi": number, "itos": dict(enumerate(alphabet))}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def pictures(folder: Path, train: int = 480, val: int = 80, classes: int = 5) -> None:
    """JPEG photographs, cut from two that scikit-learn brings, in ``train`` and ``val``, one folder a class."""
    from PIL import Image
    from sklearn.datasets import load_sample_images

    random = np.random.default_rng(0)
    photographs = load_sample_images().images
    for split, number in (("train", train), ("val", val)):
        for place in range(number):
            label = place % classes
            source = photographs[place % len(photographs)]
            y, x = random.integers(source.shape[0] - 300), random.integers(source.shape[1] - 300)
            tinted = np.clip(source[y : y + 300, x : x + 300] * (0.5 + 0.15 * label), 0, 255).astype(np.uint8)
            target = folder / split / f"class{label}"
            target.mkdir(parents=True, exist_ok=True)
            Image.fromarray(tinted).save(target / f"{place:05d}.jpg", quality=85)
