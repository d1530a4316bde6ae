"""The figures as tables, in docs/latency.md, docs/tune.md and docs/models.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.serving import changes, latency
from benchmarks.serving.tuning import FRESH

MARK = "<!-- figures -->"


def write(document: dict[str, Any], docs: Path) -> None:
    """Puts the tables between the marks of each page."""
    for page, text in figures(document).items():
        path = docs / page
        before, _, rest = path.read_text(encoding="utf-8").partition(MARK)
        after = rest.partition(MARK)[2]
        path.write_text(f"{before}{MARK}\n\n{text}\n{MARK}{after}", encoding="utf-8")


def figures(document: dict[str, Any]) -> dict[str, str]:
    """The tables of the pages, by page; a page of which nothing was measured is not among them."""
    pages: dict[str, list[str]] = {"latency.md": [], "tune.md": [], "models.md": []}
    for case in latency.CASES:
        if case in document:
            pages["latency.md"] += _latency_table(document[case])
    if "tune" in document:
        pages["tune.md"] += _tune_table(document["tune"])
    for case in changes.CASES:
        if case in document:
            pages["models.md"] += _change_table(document[case])
    return {page: "\n".join(lines) + "\n" for page, lines in pages.items() if lines}


def _machine(found: dict[str, Any]) -> str:
    machine = found["environment"]
    return f"{machine['cores']} cores ({machine['cpu']}), load {machine['load'][0]:.1f}"


def _latency_table(found: dict[str, Any]) -> list[str]:
    lines = [
        f"`{found['workload']}`, limit {1e3 * found['limit_seconds']:g} ms, {found['validation_samples']} "
        f"validation samples, {_machine(found)}, in {found['seconds']:.0f} s: {found['reason']}",
        "",
        "| form | P95, ms | speedup of the P95 | drop of accuracy, % | model, KiB |",
        "| --- | --- | --- | --- | --- |",
    ]
    for variant in found["variants"]:
        if variant["status"] not in ("measured", "screened"):
            continue
        p95 = _interval(variant["p95"], 1e3) if variant["p95"] else f"{1e3 * variant['screened_p95']:.3g} (a look)"
        lines.append(
            f"| {variant['name']} | {p95} | {_interval(variant['ratio'], 1.0)} | {_interval(variant['drop'], 100.0)} | "
            f"{variant['model_bytes'] / 1024:.0f} |"
        )
    tested = found["acceptance"]
    if tested:
        lines += ["", "Its acceptance test, in a process without autoopt:", "", "```", tested["output"], "```"]
    return [*lines, ""]


def _interval(estimate: dict[str, Any] | None, scale: float = 1.0) -> str:
    if estimate is None:
        return "not measured"
    value, low, high = (scale * estimate[key] for key in ("value", "low", "high"))
    return f"{value:.3g} [{low:.3g}, {high:.3g}]"


def _tune_table(found: dict[str, Any]) -> list[str]:
    names = {"own": "the workload's own", "autoopt": "`--tune`", "optuna": "plain Optuna (TPE, median pruner)"}
    counts = {"own": "-", "autoopt": str(len(found["trials"])), "optuna": str(found["optuna"]["trials"])}
    lines = [
        f"`{found['workload']}`, `--tune {found['space']}`, {found['search_seconds']:.0f} s of search for each of "
        f"the two, {_machine(found)}; then {len(FRESH)} fresh seeds, in turns:",
        "",
        "| learning rate of | value | trials | steps to the target | seconds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, runs in found["fresh"].items():
        rate = found["rates"][name]
        steps = ", ".join("not reached" if run["steps"] is None else str(run["steps"]) for run in runs)
        seconds = ", ".join(f"{run['seconds']:.1f}" for run in runs)
        shown = "none found" if rate is None else f"{rate:.3g}"
        lines.append(f"| {names[name]} | {shown} | {counts[name]} | {steps or '-'} | {seconds or '-'} |")
    verdict = found["verdict"]
    told = f"The run's own verdict on it: {verdict['verdict']}; {verdict['reason']}." if verdict else ""
    return [*lines, "", told, ""]


def _change_table(found: dict[str, Any]) -> list[str]:
    goal, base = found["objective"], found["baseline"]
    sign = "at least" if goal["mode"] == "max" else "at most"
    lines = [
        f"`{found['workload']}` to {goal['metric']} {sign} {goal['target']:.4g}, `--budget "
        f"{found['budget_seconds']:.0f}s`, {_machine(found)}:",
        "",
        "| change | throughput | time to target | metric | trained parameters | peak memory, MiB | verdict |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        f"| as it is | 1 | {_seconds(base['time_to_target_seconds'])} | {_number(base['metric'])} | "
        f"{_count(base['trained_parameters'])} | {_mebibytes(base['peak_memory_bytes'])} | |",
    ]
    for trial in found["trials"]:
        setting = _setting(trial["setting"])
        metric = (trial["quality"] or {}).get("candidate")
        lines.append(
            f"| {trial['strategy']}, {setting} | {_ratio(trial['throughput'])} | {_ratio(trial['time_to_target'])} | "
            f"{_number(metric)} | {_count(trial['trained_parameters'])} | {_mebibytes(trial['peak_memory_bytes'])} | "
            f"{trial['verdict'].replace('_', ' ')}: {trial['reason']} |"
        )
    return [*lines, ""]


def _setting(setting: dict[str, Any]) -> str:
    """Its numbers, and how many layers it is about."""
    told = [f"{name} {value}" for name, value in setting.items() if isinstance(value, int | float)]
    layers = [f"{len(setting['targets'])} layers"] if "targets" in setting else []
    return ", ".join(layers + told)


def _ratio(estimate: dict[str, Any] | None) -> str:
    return "not measured" if estimate is None else f"{_interval(estimate)}x"


def _seconds(estimate: dict[str, Any] | None) -> str:
    return "not measured" if estimate is None else f"{_interval(estimate)} s"


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.4g}"


def _count(value: int | None) -> str:
    return "not measured" if value is None else f"{value:,}"


def _mebibytes(value: int | None) -> str:
    return "not measured" if value is None else f"{value / 2**20:.0f}"
