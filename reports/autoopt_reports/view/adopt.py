"""The kept changes, ranked by what was measured of them, with the code to write, and the patch of a script."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass

from autoopt.records import Change, JsonDict, Result, ScriptPatch, Snippets, Trial
from autoopt_reports.view import units
from autoopt_reports.view.quality import SHORT, claim_of, trial_of
from autoopt_reports.view.text import (
    Interval,
    Name,
    Number,
    change_name,
    clean,
    interval,
    name,
    number,
    place_name,
    say,
)

FRAMEWORKS = (
    ("pytorch", "PyTorch"),
    ("lightning", "Lightning"),
    ("transformers", "transformers"),
    ("accelerate", "accelerate"),
)
_HEADS = {"lightning": "Trainer(", "transformers": "TrainingArguments("}


@dataclass(frozen=True, slots=True)
class Code:
    """A change in one way of training; None where it cannot be expressed there."""

    framework: str
    title: str
    text: str | None


class Adoption:
    """One kept change; ``shared``: names of the changes whose gain and its own are one figure, where there are any."""

    def __init__(self, result: Result, change: Change) -> None:
        found = trial_of(result, change.strategy)
        snippet = next((s for s in result.snippets if s.strategy == change.strategy), None)
        risk = (snippet.risk if snippet else None) or (found[1].risk if found else None)
        self.label = change_name(change.strategy, change.setting)
        self.title = name(snippet.title, 120) if snippet and snippet.title else None
        self.gain, self.gain_kind, self.shared = _gain(result, change.strategy, found)
        self.memory: tuple[Number, Number] | None = None  # peaks of the baseline, and of the trial that brought it in
        peaks = result.baseline.peak_memory_bytes, found[1].peak_memory_bytes if found else None
        if found is not None and None not in peaks:
            own = number(peaks[1], units.bytes_, f"/trials/{found[0]}/peak_memory_bytes")
            self.memory = number(peaks[0], units.bytes_, "/baseline/peak_memory_bytes"), own
        self.risk = name(risk, 20) if risk else None
        self.gate = SHORT[claim_of(found[1].quality if found else None, result.objective.mode)]
        self.trial = found[1].id if found else None
        self.codes = codes_of([snippet] if snippet else [])


class Adopt:
    """The kept changes, each and all together."""

    def __init__(self, result: Result) -> None:
        changes = [Adoption(result, change) for change in result.best.plan.changes]
        plan, count = result.best.plan.names(), len(changes)
        known = [each for strategy in plan for each in result.snippets if each.strategy == strategy]
        words = "{} change to adopt" if count == 1 else "{} changes to adopt, the most worthwhile first"
        shown = say(words, number(count, units.count, "/best/plan/changes", how="count"))
        self.headline = shown if changes else say("Nothing to adopt: no change was kept")
        self.changes = sorted(changes, key=lambda item: -(item.gain.value.value or 0) if item.gain else 0.0)
        self.together = codes_of(known, plan) if known else ()


def _gain(result: Result, strategy: str, found: tuple[int, Trial] | None) -> tuple[Interval | None, str, str]:
    """The gain that fresh processes showed; else the search's leave-one-out, and last that of its trial.

    Returns:
        It, what it is, and the other changes that it is the gain of as well. A companion has none of its own.
    """
    if found is not None and found[1].measured_again is not None and found[1].risk not in ("training", "model"):
        again = interval(found[1].measured_again, f"/trials/{found[0]}/measured_again")
        return again, "with it against without it, measured again after it was kept", ""
    for index, ablation in enumerate(result.ablation):
        if ablation.strategy == strategy and ablation.without is not None:
            without = interval(ablation.without, f"/ablation/{index}/without")
            others = f", while {', '.join(ablation.beside)} was in it as well" if ablation.beside else ""
            return without, f"the plan with it against the plan without it{others}", ""
    if found is None:
        return None, "not measured on its own", ""
    index, trial = found
    if trial.strategy != strategy:
        return (
            None,
            f"not measured on its own: it came with {trial.strategy}, whose gain is that of both",
            trial.strategy,
        )
    plan = [change.strategy for change in result.best.plan.changes]
    others = ", ".join(other.strategy for other in trial.companions if other.strategy in plan)
    together = f", together with {others}" if others else ""
    what = "time_to_target" if trial.time_to_target is not None else "throughput"
    seen = interval(getattr(trial, what), f"/trials/{index}/{what}")
    return seen, f"{what.replace('_', ' ')} in its trial, which it was kept for{together}", others


def codes_of(snippets: Sequence[Snippets], names: Sequence[str] = ()) -> tuple[Code, ...]:
    """Changes in each way of training, in plan order.

    Args:
        names: strategies of a whole plan, whose lines are titled; one that a way cannot express is named in a comment.
    """
    codes = []
    for key, title in FRAMEWORKS:
        values = [getattr(snippet, key) for snippet in snippets]
        if key == "pytorch":
            heads = [f"# {clean_comment(s.title or s.strategy)}\n" if names else "" for s in snippets]
            parts = [head + clean(text) for head, text in zip(heads, values, strict=True) if text]
            text = "\n\n".join(parts) or None
        else:
            text = _configured(key, values)
        written = {s.strategy for s, value in zip(snippets, values, strict=True) if value not in (None, "")}
        absent = [strategy for strategy in names if strategy not in written]
        if text is not None and absent:
            text += "\n# not expressible here: " + clean_comment(", ".join(absent))
        codes.append(Code(key, title, text))
    return tuple(codes)


def clean_comment(text: str) -> str:
    """One line, so that a title cannot become code that somebody pastes."""
    return re.sub(r"\s+", " ", clean(text)).strip()[:200]


def _configured(way: str, values: list[JsonDict | None]) -> str | None:
    """Keywords of a call, or keys of a YAML file (JSON values are YAML), one a line; a later change wins.

    Each ``_note`` is a comment.
    """
    given = [value for value in values if value is not None]
    lines = [f"# {clean_comment(str(value['_note']))}" for value in given if value.get("_note")]
    merged = {key: item for value in given for key, item in value.items() if key != "_note"}
    if way == "accelerate":
        lines += [f"{key}: {json.dumps(item, ensure_ascii=False, default=str)}" for key, item in merged.items()]
    elif merged:
        named = all(str(key).isidentifier() and not keyword.iskeyword(str(key)) for key in merged)
        body = [f"    {key}={item!r}," for key, item in merged.items()] if named else [f"    **{merged!r},"]
        lines += [_HEADS[way], *body, ")"]
    return clean("\n".join(lines)) if lines else None


_HOW = {"patched": "in the patch", "plan only": "with the plan alone", "by hand": "manually"}


PatchRow = tuple[Name, str, Name | None, Name | None]
"""One kept change: whether it is a hunk of the diff, where, and why it is none or what it means besides."""


class PatchView:
    """The patch of a script.

    Attributes:
        diff: None where no change could be written as a line of the script.
        environment: lines of ``autoopt.env``, variables to start the script with; None where there are none.
    """

    def __init__(self, patch: ScriptPatch) -> None:
        written = sum(change.how == "patched" for change in patch.changes)
        values = (number(n, units.count, "/patch/changes", how="count") for n in (written, len(patch.changes)))
        words = "{} of {} kept changes are in the patch"
        words = words if len(patch.changes) > 1 else words.replace("changes are", "change is")
        self.headline = say(words, *values) if patch.changes else say("Nothing to patch: no change was kept")
        self.diff = clean(patch.diff) or None
        self.rows: tuple[PatchRow, ...] = tuple(
            (
                change_name(change.strategy, change.setting),
                _HOW[change.how],
                place_name(change.file, change.line),
                name(change.reason, 300) if change.reason else None,
            )
            for change in patch.changes
        )
        self.environment = clean("".join(f"{name}={text}\n" for name, text in patch.environment.items())) or None


def patch_view(result: Result) -> PatchView | None:
    """None where the run was on a function that describes the workload, which has no patch."""
    return PatchView(result.patch) if result.sites is not None and result.patch is not None else None
