"""The cases with their targets, and their placebo twins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.gauntlet.data import MAKERS, VERSION
from benchmarks.whole_runs.cases import Case, Suite

HERE = Path(__file__).resolve().parent
PLACEBO = "-placebo"
WAIT = 0.002
"""Seconds of a sample on a placebo's device."""


def _accuracy(name: str, target: float, reason: str) -> Case:
    return Case(name, "final accuracy", "test accuracy", True, 0.0, reason, target=target, **_SHARED)


def _loss(name: str, target: float, reason: str, length: tuple[str, int]) -> Case:
    return Case(name, "final loss", "val loss", False, 0.0, reason, length, target, **_SHARED)


def _ending_at(case: Case) -> Case:
    """The case with its target as a word of every side's command, since the scripts stay as they are frozen."""
    return replace(case, words=(*case.words, "--target", f"{case.target:g}"))


_SHARED = {"home": HERE, "first": "^first step", "samples": r"samples seen: (\d+)", "loadtune": HERE / "loadtune.py"}
_EPOCHS, _STEPS = ("--epochs", 1), ("--steps", 50)
_CASES = (
    _accuracy("sleeping_reader", 0.72, "a reader that sleeps; the optimum is computable"),
    _accuracy("jpegs", 0.85, "large JPEG files, decoded in every epoch"),
    _accuracy("misconfigured", 0.9, "eight workers on two cores, no cache, evaluation one by one"),
    _accuracy("airbench", 0.93, "a small ResNet, after airbench's plain recipe"),
    _loss("tiny_gpt", 1.6, "a tiny GPT, after the first records of modded-nanogpt", _STEPS),
    # its own target of 0.85 was reached by one of its first ten runs: a case without a score
    _ending_at(_accuracy("varied_texts", 0.75, "texts of 4 to 240 words, padded to 240")),
    _loss("wide_softmax", 6.0, "8,000 classes, scored in vain", _EPOCHS),
    _accuracy("composer", 0.9, "a ResNet, after Composer's mild recipe"),
)
_SMALL = ("--width", "8")
_TWINS = {
    "sleeping_reader": ("--epochs", "14"),
    "jpegs": ("--epochs", "18", *_SMALL),
    "misconfigured": ("--epochs", "6", *_SMALL),
    "airbench": ("--epochs", "2", *_SMALL),
    "tiny_gpt": ("--steps", "600", "--every", "150", *_SMALL),
    "varied_texts": ("--epochs", "3", *_SMALL),
    "wide_softmax": ("--epochs", "5", *_SMALL),
    "composer": ("--epochs", "4", *_SMALL),
}


def _twin(case: Case) -> Case:
    """The expert's script on a device that waits, for a fixed length."""
    never = "9" if case.higher else "-9"
    return replace(
        case,
        name=case.name + PLACEBO,
        place=case.name,
        script="expert.py",
        expert=None,
        loadtune=None,
        target=None,
        tolerance=100.0,
        reason="nothing can be gained",
        words=(*case.words, "--target", never, "--wait", str(WAIT), *_TWINS[case.name]),
    )


CASES = {case.name: case for one in _CASES for case in (one, _twin(one))}
GAUNTLET = Suite("gauntlet", CASES, HERE, MAKERS, VERSION)
