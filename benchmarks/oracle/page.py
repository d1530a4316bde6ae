"""docs/oracle.md from the document of benchmarks/oracle."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from benchmarks.oracle.table import (
    EXAMPLES,
    RULES,
    SEARCHERS,
    TITLES,
    WANTED_SECONDS,
    WANTED_SHARE,
    complete,
    shown,
)

HEAD = """# Against an exhaustive search

Made by `python -m benchmarks.oracle --page` from `benchmarks/results/oracle.json`; do not edit.

For each example every combination of the built-in strategies' settings that means something on this machine is
measured, each in a trial process of its own: the lattice. Its best points are measured again in pairs with the
baseline, and the best of those is the **oracle**. autoopt then starts from scratch with the same strategies (`--only`)
and a budget that is a share of the lattice's seconds, which the table tells; Optuna's TPE and random samplers get the
same knobs and as many seconds as autoopt's whole run took, an evaluation being one trial process like the lattice's.
At the end all choices run against the baseline in interleaved pairs of processes, equal setups once; that race is the
table.

* **Left out for everyone**: changes that take other steps (batch, schedules, cadence), since a reading of seconds
  cannot judge them. Compiling was not put into the lattice; what it pays once was measured cold and stands below.
* **Time to target** is fixed seconds + the baseline's steps to the target × seconds of a step + evaluations, for all
  alike.
* **Quality**: losses in the first steps against the baseline's, for all alike; only autoopt also trains its choice
  from start to end.
* **Seconds**: autoopt's are those of the whole command: benchmark, search, ablation, verification and report. The
  oracle's are the lattice's alone; its second measurement, and the start of Optuna, are not charged.
* **Replays**: Optuna from many seeds on the lattice's own readings, each costing what it took. They tell what chance a
  sampler's one seed had. Where a row says "replayed" the study did not measure for itself: its choice is the
  middle one of the replays.
* **Revisions**: a later revision of autoopt searches on the same lattice (`--lattice-of`), and all choices, the
  oracle's too, run in a race of that day; earlier choices stand below each table. Up to 03c0a7d the rule was 95 % in
  25 % of the seconds, which those runs had and did not reach.
"""


def render(document: dict[str, Any]) -> str:
    """The page."""
    examples = document["examples"]
    parts = [HEAD, *_outcome(document), ""]
    for name in EXAMPLES:
        parts += _section(name, examples[name]) if name in examples else [f"## {name}", "", "Not run.", ""]
    return "\n".join(parts).rstrip() + "\n"


def _outcome(document: dict[str, Any]) -> list[str]:
    """The goals, and whether each is reached."""
    examples, means = document["examples"], document["means"]
    lines = [
        f"To show: at least {WANTED_SHARE * 100:g} % of the oracle's speedup, by the lower end of its interval, in at "
        f"most {WANTED_SECONDS * 100:g} % of its search seconds, on each example{_before_the_rule(examples)}:",
        "",
    ]
    lines += [f"* {shown(name, examples[name])}" if name in examples else f"* `{name}`: not run" for name in EXAMPLES]
    lines.append("")
    if not means["examples"]:
        return [*lines, "No race is complete, so there is no mean."]
    told = ", ".join(f"{TITLES[name]} {means[name]:.1%}" for name in SEARCHERS)
    ahead = all(means["ahead"][name]["low"] > 1.0 for name in SEARCHERS[1:])
    beside = ", ".join(f"over {TITLES[name]}'s {_ratio(means['ahead'][name])}" for name in SEARCHERS[1:])
    return [
        *lines,
        f"To show: above both samplers at equal budget: {'shown' if ahead else '**not shown**'}. Share of the oracle's "
        f"speedup, geometric mean of {means['examples']} examples: {told}; autoopt's {beside}.",
    ]


def _before_the_rule(examples: dict[str, Any]) -> str:
    """Races that began before the rules that judge them were, in words."""
    names = [f"`{name}`" for name, found in examples.items() if found["setup"].get("rules") != RULES]
    return f" ({', '.join(names)}: run before this rule was)" if names else ""


def _section(name: str, found: dict[str, Any]) -> list[str]:
    setup, seconds = found["setup"], found["seconds"]
    lines = [f"## {name}", ""]
    lines.append(
        f"Measured on {_machine(setup['environment'])}, {datetime.fromtimestamp(setup['at'], UTC).date()}. "
        f"{found['measured']} of {setup['points']} points measured, {setup['reading_seconds']:g} s of steady steps "
        f"each, {seconds['lattice']:.0f} s in all; the target, {setup['metric']} {setup['target']:g}, takes "
        f"{setup['steps']:.0f} steps. Lattice at commit {_commit(setup['environment'].get('git_commit'))}, "
        f"autoopt at {_commit((found['autoopt'] or {}).get('commit'))}."
    )
    lines += ["", *_knobs(found), ""]
    race = found["race"]
    if race is None:
        return [*lines, "The race was not run.", ""]
    lines += ["| | speedup to target | throughput | share of the oracle's | search | chosen |", "| --- " * 6 + "|"]
    lines += [_row(contestant, race[contestant], found) for contestant in TITLES if contestant in race]
    lines += ["", *_replays(found), ""] if found.get("replays") else [""]
    for run in found.get("earlier_runs", []):
        share = (
            "its race was not complete" if run["share"] is None else f"{_percent(run['share'])} of the oracle's speedup"
        )
        lines += [f"autoopt at {_commit(run['commit'])}, on this lattice before: {run['told']}, {share}.", ""]
    return lines if complete(race) else [*lines, "Not every contestant got to the end.", ""]


def _machine(environment: dict[str, Any]) -> str:
    """The machine of an example."""
    return f"{environment['cpu']}, {environment['cores']} cores, torch {environment['torch']}"


def _commit(name: str | None) -> str:
    return name[:7] if name else "unknown"


def _knobs(found: dict[str, Any]) -> list[str]:
    lines = [f"* {knob}: {', '.join(choices)}" for knob, choices in found["setup"]["knobs"].items()]
    lines += [f"* {name}: left out: {why}" for name, why in found["setup"]["left_out"].items() if "measured)" in why]
    lines += [
        f"* {knob}: left out for every contestant: {why}" for knob, why in found["setup"].get("without", {}).items()
    ]
    lines.append(f"* compile: left out; {_compiling(found)}")
    return lines


def _compiling(found: dict[str, Any]) -> str:
    """One-off cost of compiling, and whether it could pay at all."""
    if not found.get("compile"):
        return "what it pays once was not measured"
    fixed = found["compile"].get("fixed_seconds")
    if fixed is None:
        return str(found["compile"]["failed"])
    told = f"what it pays once: {fixed:.1f} s"
    best = ((found["race"] or {}).get("oracle") or {}).get("seconds_to_target")
    if best is None:
        return told
    if fixed >= best:
        return f"{told}, more than the oracle's whole run of {best:.1f} s: it cannot pay"
    return f"{told}, less than the oracle's whole run of {best:.1f} s: with it the oracle might be faster"


def _row(name: str, result: dict[str, Any], found: dict[str, Any]) -> str:
    title = TITLES[name] + (", replayed" if result["replayed"] else "")
    if result.get("failed"):
        return f"| {title} | {result['failed']} | | | | {result['told']} |"
    share, seconds = result["share"], _spent(name, result, found)
    part = "" if share is None else "same setup" if result["same_as_oracle"] else _percent(share)
    if name in ("oracle", "baseline"):
        part = ""
    lost = f"; quality lost: {result['quality_lost']}" if result.get("quality_lost") else ""
    spent = f"{seconds:.0f} s ({seconds / found['seconds']['lattice']:.0%})" if seconds else ""
    count = found["evaluations"].get(name)
    spent += f", {count} evaluations" if count else ""
    cells = (_ratio(result["time_to_target"]), _ratio(result["throughput"]), part, spent, result["told"] + lost)
    return f"| {title} | " + " | ".join(cells) + " |"


def _spent(name: str, result: dict[str, Any], found: dict[str, Any]) -> float:
    """Seconds of its search; a replay has those that it was given."""
    stage = "lattice" if name == "oracle" else "autoopt" if result["replayed"] else name
    return float(found["seconds"].get(stage, 0.0))


def _ratio(estimate: dict[str, Any]) -> str:
    return f"{estimate['value']:.2f}× [{estimate['low']:.2f}, {estimate['high']:.2f}]"


def _percent(estimate: dict[str, Any]) -> str:
    return f"{estimate['value']:.0%} [{estimate['low']:.0%}, {estimate['high']:.0%}]"


def _replays(found: dict[str, Any]) -> list[str]:
    told = "; ".join(
        f"{TITLES[name]} {replay['median']:.0%} ({replay['quartiles'][0]:.0%} to {replay['quartiles'][1]:.0%})"
        for name, replay in found["replays"].items()
    )
    seeds = next(iter(found["replays"].values()))["seeds"]
    shared = (
        " The seconds of single readings are shared out of their sum."
        if found["setup"].get("seconds_shared_out")
        else ""
    )
    return [
        f"Replays from {seeds} seeds on the lattice's readings, best reading over that of the choice, median and "
        f"quartiles: {told}.{shared}"
    ]
