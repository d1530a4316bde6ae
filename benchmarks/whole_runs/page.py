"""docs/measurements/whole-runs.md, made from benchmarks/results/whole_runs.json and the experts' notes alone."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.whole_runs.cases import CASES, Case

HEAD = """Each script is searched once. Then whole runs of the untouched, the patched and the expert's script are
timed from process start to end, interleaved in random order, with fresh seeds shared by the three. Ratios are
untouched seconds over the side's seconds, above 1 is faster; brackets are 95 % intervals over the rounds.
Score: log(patched) / log(expert). "-" is not measured.
"""


def render(document: dict[str, Any]) -> str:
    """The page: table, cases and tolerances, patches in full, the experts' edits, the machine."""
    rows = [_row(case, *_latest(document, case.name)) for case in CASES.values()]
    head = ["script", "revision", "claim", "patched", "expert", "score", "claim within 10 %", "other CPU"]
    tolerances = [[c.name, c.metric, f"{c.tolerance:g} worse", c.reason] for c in CASES.values()]
    parts = [
        HEAD,
        _table(head, rows),
        _totals(document),
        "## Metrics and tolerances\n",
        _table(["script", "metric", "tolerance", "reason"], tolerances),
        *(_case(case, *_latest(document, case.name)) for case in CASES.values()),
    ]
    return "\n".join(parts)


def short_rows(document: dict[str, Any]) -> list[list[str]]:
    """Cases that were judged: script, speedup of the patch, that of the expert's edit, changes of the patch."""
    rows = []
    for case in CASES.values():
        search, judged = _latest(document, case.name)
        if search is None or judged is None:
            continue
        speedup = judged["figures"]["speedup"]
        made = [f"`{change['strategy']}`" for change in search["changes"] if change["how"] == "patched"]
        rows.append([case.name, figure(speedup["patched"]), figure(speedup["expert"]), ", ".join(made) or "nothing"])
    return rows


def _latest(document: dict[str, Any], name: str) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The first search by the last revision that searched the case, and the first judgement of it.

    Before any search the judgement is the expert's alone. Runs with further words are trials, and on no page.
    """
    searches = [row for row in document.get("searches", []) if row["case"] == name]
    judgements = [row for row in document.get("judgements", []) if row["case"] == name and not row["words"]]
    if not searches:
        alone = [row for row in judgements if row["patched"] == "none"]
        return None, alone[-1] if alone else None
    revision = searches[-1]["revision"]
    search = next(row for row in searches if row["revision"] == revision)
    same = [row for row in judgements if row["revision"] == revision and row["patched"] == "search"]
    return search, same[0] if same else None


def figure(estimate: dict[str, Any] | None, unit: str = "×") -> str:
    """A figure with its interval, or the count where it has none."""
    if estimate is None:
        return "-"
    value = f"{estimate['value']:.2f}{unit}"
    if estimate["low"] is None:
        return f"{value} (n={estimate['n']}, no interval)"
    return f"{value} [{estimate['low']:.2f}, {estimate['high']:.2f}]"


def _row(case: Case, search: dict[str, Any] | None, judged: dict[str, Any] | None) -> list[str]:
    figures = judged["figures"] if judged else {"speedup": {"patched": None, "expert": None}, "score": None}
    claim = search["claim"] if search else None
    claimed = "-" if not claim or claim["value"] is None else f"{claim['value']:.2f}× {claim['kind']}"
    holds = {True: "yes", False: "no", None: "-"}[figures.get("claim_holds")]
    others = [run["other_cpu_seconds"] / run["seconds"] for run in judged["runs"] if _timed(run)] if judged else []
    score = figures.get("no_score") or figure(figures["score"], "")
    return [
        case.name,
        f"`{(judged or search or {'revision': '-'})['revision']}`",
        claimed,
        figure(figures["speedup"]["patched"]),
        figure(figures["speedup"]["expert"]),
        score,
        holds,
        f"{max(others):.1f} cores at most" if others else "-",
    ]


def _timed(run: dict[str, Any]) -> bool:
    return bool(run["seconds"]) and run.get("other_cpu_seconds") is not None


def _totals(document: dict[str, Any]) -> str:
    judged = [found for name in CASES if (found := _latest(document, name)[1])]
    scores = [one["figures"]["score"]["value"] for one in judged if one["figures"]["score"]]
    claims = [one["figures"]["claim_holds"] for one in judged if one["figures"]["claim_holds"] is not None]
    if not scores:
        return "No search has been judged yet.\n"
    below = sum(score < 0 for score in scores)
    return (
        f"Median score {statistics.median(scores):.2f} of {len(scores)} scripts, {below} below 0; "
        f"{sum(claims)} of {len(claims)} claims within 10 %.\n"
    )


def _case(case: Case, search: dict[str, Any] | None, judged: dict[str, Any] | None) -> str:
    notes = (case.folder / "EXPERT.md").read_text(encoding="utf-8").strip()
    parts = [f"## {case.name}\n"]
    if search:
        patch = search["patch"].strip()
        parts.append(f"Searched for {search['budget']}, ended with {search['exit_code']}.\n")
        parts.append(f"```diff\n{patch}\n```\n" if patch else "The patch is empty.\n")
        unsaid = [change for change in search["changes"] if change["how"] != "patched"]
        parts += [f"* `{change['strategy']}`: {change['how']}: {change['reason']}" for change in unsaid]
    if judged and judged["note"]:
        parts.append(f"Note: {judged['note']}\n")
    return "\n".join([*parts, "An expert's edits:\n", notes, ""])


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"
