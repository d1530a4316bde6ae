"""Worth of each scheduling rule of the search: the simulated runs of ``minutes``, with one rule switched off at a time.

``python -m benchmarks.search.knockout`` patches one function at a time, so that the product has no switch for it, and
runs every case with the same seeds as with all rules. A run in which a rule has had no effect is the same without it,
and is not made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count, product
from math import sqrt
from pkgutil import resolve_name
from statistics import fmean, stdev
from typing import Any
from unittest.mock import patch

from autoopt.records import JsonDict
from autoopt.testing.fakes import FakeClock
from benchmarks.documents import RESULTS, parser_of, record
from benchmarks.search import page
from benchmarks.search.cases import CASES
from benchmarks.search.minutes import run
from benchmarks.whole_runs.tools import revision

ALL = "all rules"
SEARCH = "autoopt.search."


def _gives(value: Any) -> Callable[..., Any]:
    return lambda *arguments, **options: value


RULES: dict[str, dict[str, Any]] = {
    "a large gain ends the screening": {"screening.Screening.first": _gives(None)},
    "screening in one process": {"race.SwitchedScreenings.possible": _gives(False)},
    "a rival on top of what did well": {"screening.Screening.screen_rival": _gives(None)},
    "all that is promised, first": {"rounds.together": _gives(None)},
    "what did well is confirmed together": {"confirmations.likely_parts": _gives([])},
    "quality before the confirmation": {"confirmations.quality_first": _gives(None)},
    "a refused candidate without its likeliest reason": {"confirmations.Suspects.without_likeliest": _gives(None)},
    "parts are left out before small gains are confirmed": {"rounds.ablate": _gives(([], []))},
    "parts switched in one process": {"ablate.compare_switched": _gives(None)},
    "the baseline trains next to a plan": {
        "rounds.train_with": _gives(None),
        "confirmations.train_with": _gives(None),
    },
    "a limit of what is kept back": {"budget_allocation.KEPT_BACK_AT_MOST": 1.0},
}
"""Rules, each with what is put in the place of the function that makes it."""


@contextmanager
def without(rule: str) -> Iterator[None]:
    """The search without a rule; with all of them for :data:`ALL`."""
    with ExitStack() as patched:
        for target, replacement in RULES.get(rule, {}).items():
            patched.enter_context(patch(SEARCH + target, replacement))
        yield


@contextmanager
def acting() -> Iterator[set[str]]:
    """The names of the rules that have an effect meanwhile: other answers than without them, or seconds spent."""
    acted, ticks, advance = set[str](), count(), FakeClock.advance

    def advanced(clock: FakeClock, seconds: float) -> None:
        next(ticks)
        advance(clock, seconds)

    def watched(rule: str, original: Callable[..., Any], replacement: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            before = repr(ticks)
            answer = original(*arguments, **options)
            if repr(ticks) != before or answer != replacement(*arguments, **options):
                acted.add(rule)
            return answer

        return call

    with ExitStack() as patched:
        patched.enter_context(patch.object(FakeClock, "advance", advanced))
        for rule, replaced in RULES.items():
            for target, replacement in replaced.items():
                original = resolve_name(SEARCH + target)
                if callable(replacement):
                    patched.enter_context(patch(SEARCH + target, watched(rule, original, replacement)))
                else:
                    acted.add(rule)
        yield acted


def rows_of(rules: Sequence[str], case: str, budget: float, seed: int) -> list[JsonDict]:
    """Runs with all rules and without single ones, in short; ``acted``: the rule had an effect with all of them."""
    with acting() as acted:
        known = run(CASES[case], budget, seed)
    found = []
    for rule in rules:
        if rule in acted:
            with without(rule):
                found.append((rule, run(CASES[case], budget, seed), True))
        else:
            found.append((rule, known, rule == ALL))
    kept = ("case", "budget", "seed", "share", "useless", "tried", "seconds")
    return [{"rule": rule, "acted": acts, **{key: one[key] for key in kept}} for rule, one, acts in found]


def summed(rows: Sequence[JsonDict], budgets: Sequence[float]) -> list[JsonDict]:
    """A row for each rule: its runs, those in which it acted, points by budget and over all, and useless keeps."""
    known = {_key(one): one for one in rows if one["rule"] == ALL}
    found = []
    for rule in dict.fromkeys(one["rule"] for one in rows):
        mine = [one for one in rows if one["rule"] == rule]
        found.append(
            {
                "rule": rule,
                "runs": len(mine),
                "acted": sum(one["acted"] for one in mine),
                "points": [_points(mine, known, rule, budget) for budget in (*budgets, None)],
                "useless": sum(one["useless"] > 0 for one in mine),
            }
        )
    return found


def _points(mine: Sequence[JsonDict], known: dict[Any, JsonDict], rule: str, budget: float | None) -> list[float]:
    """Points that runs of one budget, or of all, lose without the rule, with their error; for all rules the share."""
    seen = [one for one in mine if one["share"] is not None and budget in (None, one["budget"])]
    if rule == ALL:
        return [100 * fmean(one["share"] for one in seen)]
    lost = [100 * (known[_key(one)]["share"] - one["share"]) for one in seen]
    return [fmean(lost), stdev(lost) / sqrt(len(lost))] if len(lost) > 1 else []


def _key(one: JsonDict) -> tuple[str, float, int]:
    return one["case"], one["budget"], one["seed"]


def main() -> None:
    parser = parser_of("benchmarks.search.knockout", __doc__, RESULTS / "knockout.json")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--budgets", type=float, nargs="+", default=[90.0, 120.0, 180.0, 300.0])
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    options = parser.parse_args()
    rows = list[JsonDict]()
    for seed, budget, case in product(range(options.seeds), options.budgets, options.cases):
        rows += rows_of([ALL, *RULES], case, budget, seed)
    found = {"budgets": options.budgets, "rows": summed(rows, options.budgets)}
    print(page.knockout(record(options.out, found, "revisions", revision())))


if __name__ == "__main__":
    main()
