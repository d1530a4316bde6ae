"""What users ask for, each as a small script, and what one ``autoopt`` command of four minutes says of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoopt.records import Profile, Result

SCRIPTS = Path(__file__).parent / "scripts"
BUDGET = 240.0
"""Seconds of a command."""


@dataclass(frozen=True)
class Ask:
    """A script that is slow for one reason.

    Attributes:
        kind: what is slow, in a few words.
        script: its name in ``scripts``.
        wanted: strategies that answer it, or words of the advice that does.
        command: of autoopt.
    """

    kind: str
    script: str
    wanted: tuple[str, ...]
    command: tuple[str, ...] = ("optimize",)


ASKS = (
    Ask("photographs decoded whole and shrunk, in every epoch", "decoded_photos", ("decoding", "prepared_samples")),
    Ask("attention written out", "written_attention", ("flash_attention",)),
    Ask("texts padded to a maximum length", "padded_texts", ("trim_padding",)),
    Ask("small micro-batches though memory is free", "micro_batches", ("accumulation",)),
    Ask("a batch too small for the machine", "small_batch", ("batch_size",)),
    Ask("imports that take longer than a minute's training needs", "slow_imports", ("Importing",)),
    Ask("checkpoints that training waits for", "frequent_saves", ("checkpoints",)),
    Ask("a resumed run that reads what it has trained on", "resumed_run", ("passed over",)),
    Ask("steps that grow slower: losses that keep their graphs", "kept_graphs", ("grow",), ("profile", "--watch")),
    Ask("a teacher that answers the same samples in every epoch", "frozen_teacher", ("cached_features",)),
    Ask("anomaly detection that was left on", "anomaly_detection", ("forced_calls",)),
    Ask("logits of a large vocabulary", "large_vocabulary", ("chunked_loss",)),
    Ask("samples that a script's own lines prepare again in every epoch", "own_loop", ("prepared_samples",)),
    Ask("evaluations that each make a loader of slow samples", "loaders_anew", ("validation_loader",)),
    Ask("a cross-validation that reads a table row by row", "folds", ("prepared_samples",)),
)
ELSEWHERE = (
    ("decoding on the device", "not offered: nvJPEG's pixels differ from Pillow's; `decoding` and workers instead"),
    ("augmentation on the device", "`batched_transforms` with torchvision and CUDA"),
    ("attention back ends (cuDNN, flash, memory-efficient)", "`flash_attention`, setting `off`; needs CUDA"),
    ("attention with masks as blocks (flex attention)", "not offered: the source holds a tensor, not a function"),
    ("padding-free packing", "`packing`; needs a model of transformers"),
    ("compilation of repeated blocks, kept between runs", "`compile`, setting `regional`; pays in runs of hours"),
    ("max-autotune", "`compile`, where the run left is 20 times as long as compiling"),
    ("fp8", "`fp8` with `--allow model`; needs Ada, Hopper or later"),
)
"""Kinds that no script here shows, and who answers them."""


def answer(ask: Ask, budget: float = BUDGET) -> dict[str, Any]:
    """One command's answer to a script, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="autoopt-asked-") as above:
        folder, out, began = Path(above), Path(above) / "run", time.monotonic()
        shutil.copy(SCRIPTS / f"{ask.script}.py", folder)
        words = (*ask.command, f"{ask.script}.py", "--budget", f"{budget:g}s", "--out", str(out), "--quiet")
        done = subprocess.run(
            [sys.executable, "-m", "autoopt", *words], cwd=folder, capture_output=True, text=True, check=False
        )
        reported: dict[str, Any] = {"seconds": time.monotonic() - began}
        if done.returncode != 0:
            return {**reported, "failed": done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]}
        if "optimize" in ask.command:
            return {**reported, **of_result(ask, Result.model_validate_json((out / "result.json").read_text()))}
        profile = Profile.model_validate_json((out / "profile.json").read_text())
        drift = profile.drift.summary() if profile.drift is not None else ()
        return {**reported, "said": list(drift), "found": any(word in " ".join(drift) for word in ask.wanted)}


def of_result(ask: Ask, result: Result) -> dict[str, Any]:
    """What a run says of the cause that the script was written for."""
    kept = [change.strategy for change in result.best.plan.changes]
    advice = [each for each in result.advice if any(word.lower() in each.title.lower() for word in ask.wanted)]
    tried = [trial for trial in result.trials if trial.strategy in ask.wanted]
    headline = result.speedup.headline
    return {
        "kept": kept,
        "patched": [change.strategy for change in result.patch.changes if change.how == "patched"]
        if result.patch is not None
        else [],
        "advice": [f"{each.title} ({each.file}:{each.line})" for each in advice],
        "advice_seconds": sum(each.seconds or 0.0 for each in advice) or None,
        "why_not": "" if set(kept) & set(ask.wanted) else "; ".join(f"{t.strategy}: {t.reason}" for t in tried[-2:]),
        "headline": headline.model_dump() if headline is not None else None,
        "found": bool(set(kept) & set(ask.wanted) or advice),
    }
