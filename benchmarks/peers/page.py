"""docs/peers.md, made from benchmarks/results/peers.json alone."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.peers.judge import UNTOUCHED, as_good, interval, ratio, same_losses

HEAD = """# Beside the rivals

Made by `python -m benchmarks.peers collect` from `benchmarks/results/peers.json`; the rules were fixed before anything
was measured and stand in `benchmarks/peers/__init__.py`. Figures are seconds of the untouched script over seconds of
the tool's result for the same steps, as fresh processes in turn, by a clock of neither tool; above 1 is faster. "-" is
not measured, and says nothing for or against anyone.
"""
SOURCES = {
    "autoopt": "this revision: `autoopt optimize SCRIPT --budget B`",
    "train-doctor": "[train-doctor](https://pypi.org/project/train-doctor/): `train-doctor fix -- python SCRIPT`",
    "loadtune": "[loadtune](https://pypi.org/project/loadtune/): `loadtune tune FILE`, settings put on for it",
    "pytorch-autotune": "[pytorch-autotune](https://pypi.org/project/pytorch-autotune/): `autotune(model, batch)`",
    "lightning-tuner": "[Lightning's Tuner](https://lightning.ai/docs/pytorch/stable/): `scale_batch_size`",
    "optuna": "[Optuna](https://optuna.org): TPE over workers, threads, AMP, channels-last, fused, compile",
    "tips": "all that a page of tips names switched on, unmeasured",
}


ROWS = """## A row of this page

On a machine that does nothing else, with `pip install train-doctor loadtune pytorch-autotune` beside autoopt:

```
python -m benchmarks.peers fetch
for tool in autoopt train-doctor loadtune pytorch-autotune lightning-tuner optuna tips; do
  python -m benchmarks.peers search mingpt $tool --budget 240
done
python -m benchmarks.peers judge mingpt --rounds 6
python -m benchmarks.peers collect
```

What was measured is not measured again; a call that was cut goes on where it was.
"""


def render(document: dict[str, Any]) -> str:
    """The page: results, what each tool said, means, the scripts as autoopt met them, the machine."""
    workloads = document["workloads"]
    parts = [HEAD, *_missing(workloads), _tools(workloads), _results(workloads), _means(workloads), _said(workloads)]
    return "\n".join([*parts, _scripts(workloads), _sources(workloads), _machine(workloads), ROWS])


def figure(estimate: dict[str, Any] | None) -> str:
    """A ratio with its interval, or - where there is none."""
    if estimate is None:
        return "-"
    if estimate["low"] is None:
        return f"{estimate['value']:.2f}× (one pair)"
    return f"{estimate['value']:.2f}× [{estimate['low']:.2f}–{estimate['high']:.2f}]"


def verdict(workload: dict[str, Any], rival: str) -> tuple[str, float | None]:
    """The table's cell for a tool on a script, and the logarithm that counts in the mean."""
    outcome = workload["rivals"][rival]
    if outcome is None:
        return "-", None
    if outcome["status"] == "cannot":
        return "cannot", None
    if outcome["status"] in ("nothing", "stopped", "failed"):
        return {"nothing": "no change", "stopped": "no result in time", "failed": "broke"}[outcome["status"]], 0.0
    runs = workload["judged"]["runs"]
    found = ratio(runs, rival)
    if found is None:
        broke = [run["error"] for run in runs if run["side"] == rival and "error" in run]
        late = next((error for error in broke if error.startswith("not done in")), None)
        return late or ("its result does not run" if broke else "not judged"), (0.0 if broke else None)
    if as_good(runs, rival) is False:
        return f"losses differ ({figure(found)})", 0.0
    return figure(found) + (", same losses" if same_losses(runs, rival) else ""), math.log(found["value"])


def _missing(workloads: list[dict[str, Any]]) -> list[str]:
    """Which scripts nothing was judged on, said before anything else."""
    missing = [one["name"] for one in workloads if not one["judged"]["runs"]]
    if not missing:
        return []
    which = "any script" if len(missing) == len(workloads) else ", ".join(missing)
    return [f"**Not measured yet on {which}**: no figure here speaks of it, and none is claimed elsewhere.\n"]


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    return (
        "\n".join(
            [
                *lines,
                *("| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) + " |" for row in rows),
            ]
        )
        + "\n"
    )


def _tools(workloads: list[dict[str, Any]]) -> str:
    versions = {}
    for workload in workloads:
        for rival, outcome in workload["rivals"].items():
            if outcome and outcome.get("version"):
                versions[rival] = outcome["version"]
    return _table(["tool", "version", "run as"], [[r, versions.get(r, "-"), how] for r, how in SOURCES.items()])


def _results(workloads: list[dict[str, Any]]) -> str:
    rows = []
    for one in workloads:
        untouched = [run["seconds"] for run in one["judged"]["runs"] if run["side"] == UNTOUCHED and "error" not in run]
        step = f"{1000 * min(untouched) / one['steps'][1]:.0f} ms" if untouched else "-"
        rows.append([one["name"], one["kind"], step, *(verdict(one, rival)[0] for rival in SOURCES)])
    return "## Results\n\n" + _table(["script", "kind", "untouched step", *SOURCES], rows)


def _means(workloads: list[dict[str, Any]]) -> str:
    rows = []
    for rival in SOURCES:
        if rival == "autoopt":
            continue
        differences = []
        for one in workloads:
            ours, theirs = verdict(one, "autoopt")[1], verdict(one, rival)[1]
            if ours is not None and theirs is not None:
                differences.append(ours - theirs)
        rows.append([rival, str(len(differences)), figure(interval(differences))])
    text = (
        "## autoopt over each rival\n\nGeometric mean over the scripts on which both have a figure (no change is 1), "
        "with Student's 95 % interval over the scripts; below 1 the rival's result is the faster one.\n\n"
    )
    return text + _table(["rival", "scripts", "autoopt / rival"], rows)


def _said(workloads: list[dict[str, Any]]) -> str:
    rows = []
    for one in workloads:
        for rival, outcome in one["rivals"].items():
            if outcome is None:
                continue
            said = " ".join(outcome["said"].split())
            refused = outcome["more"].get("patch_refused")
            after = f"; git refuses its patch: {refused}" if refused else ""
            after += _earlier(outcome)
            seconds, load = f"{outcome['seconds']:.0f} s", f"{outcome['load']:.1f}"
            rows.append([one["name"], rival, outcome["status"], seconds, load, said[-260:] + after])
    head = ["script", "tool", "ended with", "worked", "load at start", "in its own words (the end of them)"]
    return "## What each tool said\n\n" + _table(head, rows)


def _earlier(outcome: dict[str, Any]) -> str:
    """The finds of the tool in searches before this one, where it searched again at a later revision."""
    found = [
        f"{one['status']}{': ' + ', '.join(change['strategy'] for change in one['plan']) if one['plan'] else ''}"
        for one in outcome.get("earlier") or []
    ]
    return f"; searched again, before: {'; '.join(found)}" if found else ""


def _scripts(workloads: list[dict[str, Any]]) -> str:
    rows = [[one["name"], *_met(one.get("met")), *_optimized(one["rivals"]["autoopt"])] for one in workloads]
    head = ["script", "sites found", "said by a patch", "not by a patch", "git takes it, and it trains"]
    text = (
        "## The scripts as autoopt met them\n\nThe first columns are from watching each script once "
        "(`python -m benchmarks.peers.sites NAME`), and tell of workers, threads, AMP, channels-last, the fused "
        "optimizer and compile, put on without asking the strategies whether they apply "
        "(torch's Adadelta, for one, has no fused form); the last three are from `autoopt optimize`.\n\n"
    )
    return text + _table([*head, "tried", "kept", "its own figure"], rows)


def _met(met: dict[str, Any] | None) -> list[str]:
    if met is None:
        return ["-"] * 4
    if "error" in met:
        return [f"fails: {met['error'][-200:]}", *["-"] * 3]
    kinds: dict[str, int] = {}
    for kind, *_ in met["sites"]:
        kinds[kind] = kinds.get(kind, 0) + 1
    sites = ", ".join(kind if number == 1 else f"{kind} {number}" for kind, number in kinds.items())
    said = [name for name, fate in met["changes"].items() if fate["how"] == "patched"]
    unsaid = [f"{name} ({fate['reason']})" for name, fate in met["changes"].items() if fate["how"] != "patched"]
    works = "-"
    if met["patch"]:
        works = f"refused: {met['refused']}" if met["refused"] else _ran(met["patched_run"])
    return [sites, ", ".join(said) or "none", "; ".join(unsaid) or "none", works]


def _ran(how: str | None) -> str:
    """How the patched script ran, its error by its last line."""
    return RAN.get(how) or "no: " + str(how).strip().splitlines()[-1]


def _optimized(outcome: dict[str, Any] | None) -> list[str]:
    more = (outcome or {}).get("more") or {}
    if "verdicts" not in more:
        return ["-"] * 3
    tried = sum(len(names) for verdict, names in more["verdicts"].items() if verdict in TRIED)
    if not more["kept"]:
        return [str(tried), "none", "-"]
    verified = "verified" if more["end_to_end_verified"] else "not verified"
    return [str(tried), ", ".join(more["kept"]), f"{figure(more['throughput'])}, {verified} end to end"]


RAN = {"trains": "yes", None: "git takes it; the run was not seen to its end"}
TRIED = ("kept", "no_gain", "harmful", "quality_lost", "inconclusive", "failed")


def _sources(workloads: list[dict[str, Any]]) -> str:
    rows = []
    for one in workloads:
        name, revision = one["source"]
        where = (
            f"[{name}](https://github.com/{name}/tree/{revision}) at `{revision[:10]}`" if name else "this repository"
        )
        rows.append([one["name"], where, f"`{' '.join(one['command'])}`", one["stand_in"]])
    return "## The scripts\n\n" + _table(["script", "from", "command", "data"], rows)


def _machine(workloads: list[dict[str, Any]]) -> str:
    lines = []
    for one in workloads:
        found = one["judged"].get("environment")
        if found:
            load = found["load"][0]
            lines.append(
                f"* {one['name']}: {found['cpu']}, {found['cores']} cores, load {load:.1f} at the start, {found['at']}"
            )
    return "## The machine while judging\n\n" + ("\n".join(lines) or "Nothing was judged.") + "\n"
