"""docs/measurements/ and the README's table, made from benchmarks/results/*.json alone.

    python -m benchmarks.pages            # writes every page
    python -m benchmarks.pages --check    # writes nothing; exit code 1 where a page is not what the results hold

A page is a title, one or two lines of reading help, a table, and the machine. No figure of a page stands anywhere else.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.documents import RESULTS, load
from benchmarks.gauntlet import page as gauntlet_page
from benchmarks.peers import page as peers_page
from benchmarks.truth import headline_coverage
from benchmarks.whole_runs import page as whole_runs_page

ROOT = Path(__file__).resolve().parents[1]
README_MARKS = ("<!-- whole runs: made by python -m benchmarks.pages -->", "<!-- end -->")
MISSING = "not measured"
Document = dict[str, Any]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; a cell's bars and line breaks break no row."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(str(cell).split()).replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def speedup(estimate: Document | None, unit: str = "×") -> str:
    """A ratio with its interval and its count."""
    if not estimate:
        return MISSING
    if estimate.get("low") is None:
        return f"{estimate['value']:.2f}{unit} (1 pair)"
    count = f" ({estimate['n']} pairs)" if estimate.get("n") else ""
    return f"{estimate['value']:.2f}{unit} [{estimate['low']:.2f}, {estimate['high']:.2f}]{count}"


def number(estimate: Document | None, scale: float = 1.0) -> str:
    """A value with its interval, three digits each."""
    if not estimate:
        return MISSING
    return "{:.3g} [{:.3g}, {:.3g}]".format(*(scale * estimate[key] for key in ("value", "low", "high")))


def names(changes: Iterable[Document]) -> str:
    """The strategies of a plan, at most five with a count of the rest."""
    found = [f"`{change['strategy']}`" for change in changes]
    return ", ".join(found[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "") or "nothing kept"


def machine(*environments: Document) -> str:
    """Where and when: processor, cores, load range and dates of the measurements of a page."""
    seen = [one for one in environments if one]
    if not seen:
        return ""
    kinds = sorted({f"{one['cores']} cores of {one['cpu']}" for one in seen})
    dates = sorted({str(one["at"])[:10] for one in seen if "at" in one})
    loads = [one["load"][0] for one in seen if "load" in one]
    parts = [", ".join(kinds)]
    parts += [f"load {min(loads):.1f} to {max(loads):.1f}"] if loads else []
    parts += [dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"] if dates else []
    return f"Machine: {'; '.join(parts)}."


def whole_runs(results: Path) -> str:
    """Whole runs of untouched, patched and expert's scripts, process start to process end."""
    return whole_runs_page.render(load(results / "whole_runs.json"))


def whole_rows(results: Path) -> str:
    """The table of whole runs alone, as the README shows it."""
    document = load(results / "whole_runs.json")
    cells = whole_runs_page.short_rows(document)
    if not cells:
        return "No whole run has been measured at this revision yet. `python -m benchmarks.pages` fills this table."
    head = ["script", "speedup of the whole run (95 % interval)", "an expert's edit", "what was changed"]
    return (
        f"{table(head, cells)}\n\nReproduce: `python -m benchmarks.whole_runs search SCRIPT`, then `judge SCRIPT`. "
        "Patches and all runs: [whole runs](docs/measurements/whole-runs.md)."
    )


def adoption(results: Path) -> str:
    examples = load(results / "adoption.json").get("examples", {})
    rows = []
    for name, entry in examples.items():
        checked, own = entry.get("verify", {}), entry.get("own_trainer") or {}
        held = f" {'holds' if checked.get('holds') else 'does not hold'}" if checked else ""
        rows.append(
            [
                f"`{name}`",
                names(entry.get("optimize", {}).get("plan", [])),
                speedup(entry.get("optimize", {}).get("throughput")),
                speedup(entry.get("script", {}).get("speedup")),
                speedup(checked.get("measured")) + held,
                speedup(own.get("steps", {}).get("speedup")),
                speedup(own.get("whole", {}).get("speedup")),
            ]
        )
    head = ["example", "plan", "step, reported", "script to target", "verify", "own Trainer, step", "own Trainer, run"]
    help_ = (
        "Each column is a speedup over the untouched side. The first was reported by `autoopt optimize`; the others "
        "were measured afterwards with the exported script, `autoopt verify` and the user's own Trainer. "
        "Wide intervals come from two pairs of runs.\n\nReproduce: `python -m benchmarks.adoption EXAMPLE`.\n\n"
    )
    places = [stage["environment"] for entry in examples.values() for stage in entry.values() if "environment" in stage]
    return help_ + table(head, rows) + "\n\n" + machine(*places)


def oracle(results: Path) -> str:
    document = load(results / "oracle.json")
    titles = {
        "oracle": "best of all combinations",
        "autoopt": "autoopt",
        "tpe": "Optuna TPE",
        "random": "Optuna random",
        "baseline": "baseline (control)",
    }
    parts = [
        "Every combination of the settings that apply to an example was measured. The best one, confirmed in pairs "
        "with the baseline, is the reference. autoopt and Optuna then searched the same settings; all choices "
        "ran against the baseline in interleaved pairs. *Share* is the choice's speedup over the reference's; *search* "
        "is the share of the exhaustive search's seconds.\n\nReproduce: `python -m benchmarks.oracle --help`.\n"
    ]
    for name, found in document.get("examples", {}).items():
        setup, race, seconds = found["setup"], found["race"] or {}, found["seconds"]
        rows = []
        for who, title in titles.items():
            if who not in race:
                continue
            one = race[who]
            share = one.get("share")
            spent = seconds.get("lattice" if who == "oracle" else "autoopt" if one["replayed"] else who) or 0.0
            rows.append(
                [
                    title + (" (replayed)" if one["replayed"] else ""),
                    speedup(one.get("time_to_target")),
                    "{value:.0%} [{low:.0%}, {high:.0%}]".format(**share) if share and who != "oracle" else "",
                    f"{spent / seconds['lattice']:.0%}" if spent else "",
                    one["told"],
                ]
            )
        commit = str((found["autoopt"] or {}).get("commit"))[:7]
        parts.append(
            f"## {name}\n\n{setup['points']} combinations; target {setup['metric']} {setup['target']:g}; "
            f"autoopt at revision {commit}.\n\n"
            + table(["searcher", "speedup to target", "share", "search", "chosen"], rows)
            + "\n"
        )
    means = document.get("means", {})
    ahead = "; ".join(f"over {titles[who]} {speedup(found)}" for who, found in means.get("ahead", {}).items())
    parts.append(
        f"Geometric mean of autoopt's share over the samplers': {ahead or MISSING}. An interval that holds 1 shows no "
        "difference. A replayed sampler drew from the readings of the exhaustive search; its median choice was raced."
        "\n\n" + machine(document.get("environment", {}))
    )
    return "\n".join(parts)


def gauntlet(results: Path) -> str:
    """Whole runs to a target, beside experts, placebos and other tools."""
    document = load(results / "gauntlet.json")
    places = [row["environment"] for row in document.get("judgements", [])]
    return f"{gauntlet_page.render(document)}\n{machine(*places)}"


def peers(results: Path) -> str:
    """Other people's scripts, beside other tools."""
    document = load(results / "peers.json")
    places = [row["environment"] for row in document.get("judgements", [])]
    return f"{peers_page.render(document)}\n{machine(*places)}"


def prediction(results: Path) -> str:
    document = load(results / "prediction.json")
    found = document.get("summary", {})
    rows = [
        ["planted bottlenecks named right", found.get("named_right", MISSING)],
        ["chains that end at the planted line", found.get("line_found", MISSING)],
        ["ceilings that a measurement beat", found.get("ceilings_violated", MISSING)],
    ]
    for title, key in (
        ("error of the simulated step", "step_error"),
        ("error of a predicted gain, input side", "input_gain_error"),
        ("error of a predicted gain, compute side", "compute_gain_error"),
    ):
        values = [found.get(f"{key}_{which}") for which in ("median", "worst")]
        rows.append([title, MISSING if None in values else "median {:.1%}, worst {:.0%}".format(*values)])
    return (
        "Bottlenecks were planted in small pipelines, then autoopt named them. Each predicted gain was then measured "
        "in pairs of processes. A prediction orders the search; no change is kept because of one.\n\n"
        "Reproduce: `python -m benchmarks.prediction --seconds 400`.\n\n"
        + table(["question", "answer"], rows)
        + "\n\n"
        + machine(document.get("environment", {}))
    )


def reported_cases(results: Path) -> str:
    from benchmarks.reports.cases import REPORTS

    answers = load(results / "reports.json").get("reports", {})
    rows = []
    for case in REPORTS:
        found = answers.get(case.build or "")
        how = names(found["changes"]) if found and "changes" in found else (found or {}).get("refused") or case.note
        rows.append([case.kind, how or MISSING, speedup((found or {}).get("throughput"))])
    return (
        "Slow trainings from public issue trackers, each rebuilt as a small workload that shows one cause. The figure "
        "is the speedup of a step with the first setting that the strategy tries. In your run the cause may be a "
        "small part, and so is the gain.\n\nReproduce: `python -m benchmarks.reports --seconds 280`.\n\n"
        + table(["reported", "strategy", "speedup of a step"], rows)
        + "\n\n"
        + machine(*(one["environment"] for one in answers.values()))
    )


def what_is_slow(results: Path) -> str:
    from benchmarks.reports.asked import ASKS, ELSEWHERE

    answers = load(results / "reports.json").get("asks", {})
    rows = []
    for ask in ASKS:
        found = answers.get(ask.script) or {}
        said = [f"`{name}`" for name in found.get("kept", [])] + found.get("advice", []) + found.get("said", [])[:1]
        said += [found["why_not"]] if found.get("why_not") else []
        brings = speedup(found.get("headline")) if found.get("kept") else MISSING
        if not found.get("kept") and found.get("advice_seconds"):
            brings = f"{found['advice_seconds']:.3g} s of each run, by hand"
        wanted = f"expected: {', '.join(f'`{name}`' for name in ask.wanted)}"
        rows.append([ask.kind, "; ".join(said) or ("; ".join(found.get("failed", [])) or wanted), brings])
    return (
        "Ten small scripts, each slow for one reason that users know, and what one command of four minutes reports "
        "of it. The speedup is that of the whole run where whole runs were measured. An expected answer stands where "
        "nothing was measured yet.\n\n"
        "Reproduce: `python -m benchmarks.reports --asks 10`, on a machine that does nothing else.\n\n"
        + table(["what is slow", "what autoopt reports", "what it brings"], rows)
        + "\n\nKinds that these scripts do not show:\n\n"
        + table(["what is slow", "who answers it"], ELSEWHERE)
        + "\n\n"
        + machine(*(one["environment"] for one in answers.values()))
    )


def attention(results: Path) -> str:
    document = load(results / "attention.json")
    rows = []
    for row in document.get("rows", []):
        how = "switched" if row["switched"] else f"{row['rewritten']} rewritten" if row["rewritten"] else "unchanged"
        gain = speedup(row | {"value": row["speedup"]}) if row["speedup"] is not None else MISSING
        rows.append([row["model"], how, MISSING if row["difference"] is None else f"{row['difference']:.0e}", gain])
    return (
        "Two layers of width 256 with eight heads on 4 sequences of 256 tokens: a rewritten and an unchanged copy, "
        "interleaved. *Difference* is the largest difference of a gradient over the largest gradient.\n\n"
        "Reproduce: `python -m benchmarks.attention --write`.\n\n"
        + table(["model", "attention modules", "difference", "speedup of forward and backward"], rows)
        + "\n\n"
        + machine(document.get("environment", {}))
    )


def latency(results: Path) -> str:
    parts = [
        "P95 over fresh processes with its 90 % interval; the drop of the metric is relative to the unchanged model. "
        "Forms with a P95 from screening were not confirmed.\n\n"
        "Reproduce: `python -m benchmarks.serving --latency text`, then `images`.\n"
    ]
    document = load(results / "serving.json")
    for case in ("text", "images"):
        found = document.get(case)
        if not found:
            continue
        rows = [
            [
                form["name"],
                number(form["p95"], 1e3) if form["p95"] else f"{1e3 * form['screened_p95']:.3g} (screening)",
                number(form["ratio"]),
                number(form["drop"], 100.0),
                f"{form['model_bytes'] / 1024:.0f}",
            ]
            for form in found["variants"]
            if form["status"] in ("measured", "screened")
        ]
        parts.append(
            f"## {case}\n\n`{found['workload']}`: limit {1e3 * found['limit_seconds']:g} ms, "
            f"chosen: {found['chosen']}.\n\n"
            + table(["form", "P95, ms", "speedup of the P95", "drop, %", "model, KiB"], rows)
            + f"\n\n{machine(found['environment'])}\n"
        )
    return "\n".join(parts)


def tuning(results: Path) -> str:
    found = load(results / "serving.json").get("tune")
    if not found:
        return MISSING
    titles = {"own": "the workload's own", "autoopt": "`--tune`", "optuna": "Optuna (TPE, median pruner)"}
    rows = []
    for who, runs in found["fresh"].items():
        rate = found["rates"][who]
        steps = ", ".join("not reached" if run["steps"] is None else str(run["steps"]) for run in runs)
        rows.append([titles[who], "none found" if rate is None else f"{rate:.3g}", steps or "-"])
    verdict = (found["verdict"] or {}).get("verdict", MISSING)
    return (
        "Both searches had the same seconds; their results were then trained from fresh seeds. Fewer steps are better. "
        f"The run's own verdict: {verdict}.\n\nReproduce: `python -m benchmarks.serving --tune 3m`.\n\n"
        f"`{found['workload']}`, `--tune {found['space']}`, {found['search_seconds']:.0f} s for each search.\n\n"
        + table(["learning rate of", "value", "steps to the target, by seed"], rows)
        + "\n\n"
        + machine(found["environment"])
    )


def model_changes(results: Path) -> str:
    document = load(results / "serving.json")
    parts = [
        "Changes of the model itself (`--allow model`), each trained to the target next to the baseline in a budget of "
        "six minutes. A change is kept only where the time to target is shorter.\n\n"
        "Reproduce: `python -m benchmarks.serving --change lora --budget 6m`.\n"
    ]
    for case in ("lora", "pruning", "distillation"):
        found = document.get(case)
        if not found:
            continue
        rows = []
        for trial in found["trials"]:
            setting = ", ".join(f"{k} {v}" for k, v in trial["setting"].items() if isinstance(v, int | float))
            trained = trial["trained_parameters"]
            rows.append(
                [
                    f"{trial['strategy']} ({setting})",
                    number(trial["throughput"]),
                    number(trial["time_to_target"]),
                    MISSING if trained is None else f"{trained:,}",
                    trial["verdict"].replace("_", " "),
                ]
            )
        head = ["change", "throughput", "time to target", "trained parameters", "verdict"]
        parts.append(f"## {case}\n\n`{found['workload']}`\n\n{table(head, rows)}\n\n{machine(found['environment'])}\n")
    return "\n".join(parts)


def asks(results: Path) -> str:
    document = load(results / "asks.json")
    rows = [
        [f"simulated, {kind} noise", found["ledgers"] * found["asks_each"], found["keeps"]]
        for kind, found in document.get("simulated", {}).items()
    ]
    gains = [
        [f"{row['gain']:.0%}", kind, row["ask"], f"{row['found']} of {row['asks']}", row["in_a_minute"],
         MISSING if row["median_seconds"] is None else row["median_seconds"]]
        for kind, found in document.get("power", {}).items()
        for row in found["rows"]
    ]  # fmt: skip
    heads = ["true gain", "noise", "ask of the ledger", "found", "in a minute", "median seconds"]
    power = f"\n\nTrue gains, simulated:\n\n{table(heads, gains)}" if gains else ""
    live = document.get("live", {}).get("asks", [])
    rows += [["commits on a real machine", len(live), sum(one["answer"] == "faster" for one in live)]] if live else []
    two = document.get("revisions") or {}
    real = (
        f"\n\nA real change, the example's images decoded once: {speedup(two.get('throughput'))} a step." if two else ""
    )
    return (
        "Placebo changes, asked again and again under one `--ledger`. The last column counts false answers; at most "
        "5 % of ledgers may hold one.\n\nReproduce: `python -m benchmarks.asks --help`.\n\n"
        + table(["placebo changes", "asks", "answered faster"], rows)
        + power
        + real
        + "\n\n"
        + machine(*(one["environment"] for one in document.get("simulated", {}).values()))
    )


def judge_loop(results: Path) -> str:
    found = load(results / "asks.json").get("loop")
    if not found:
        return "Not measured yet: `python -m benchmarks.asks --loop 60` judges ten edits of a scripted agent.\n"
    rows = []
    for number, each in enumerate(found["asks"], 1):
        left = f"{each['error']['left']:.2g}" if "error" in each else MISSING
        measured = [_interval(each.get("speedup")), each.get("quality", MISSING), each.get("seconds", MISSING), left]
        rows.append([number, each["edit"], each["kind"], each["verdict"], *measured])
    heads = ["ask", "edit", "in truth", "verdict", "speedup", "quality", "seconds", "error left"]
    return (
        "Ten edits of one script by a scripted agent, each judged by `autoopt judge --baseline HEAD --seconds "
        f"{found['seconds_each']:g}` and committed where the verdict is `keep`: three true gains, five that do "
        "nothing, two cheats. The session measures the baseline again after each commit.\n\n"
        "Reproduce: `python -m benchmarks.asks --loop 60`.\n\n"
        f"{table(heads, rows)}\n\n{machine(found['environment'])}\n"
    )


def _interval(speedup: list[float] | None) -> str:
    return MISSING if not speedup else f"{speedup[0]:.2f}× [{speedup[1]:.2f}, {speedup[2]:.2f}]"


def bisection(results: Path) -> str:
    document, rows, machines = load(results / "bisection.json"), [], []
    for history in ("commits", "packages"):
        for kind, found in document.get(history, {}).items():
            planted = found["rows"]
            blamed = [row for row in planted if row["sure"]]
            right = sum(row["found"] == row["place"] for row in blamed)
            asked = sum(row["comparisons"] for row in planted) / len(planted)
            seconds = sorted(row["seconds"] for row in planted)[len(planted) // 2]
            machines.append(found["environment"])
            rows.append([history, kind, len(planted), right, len(blamed) - right, f"{asked:.1f}", seconds])
    heads = ["history", "noise", "regressions", "right blame", "false blame", "comparisons", "median seconds"]
    return (
        "Regressions of 5 to 30 % planted into histories of 32 commits or 12 packages, in simulated time. A step is "
        "blamed from a probability of 95 % on.\n\nReproduce: `python -m benchmarks.bisection --simulated 20`.\n\n"
        + table(heads, rows) + "\n\n" + machine(*machines) + "\n"
    )  # fmt: skip


def distributed(results: Path) -> str:
    document, trials = load(results / "distributed.json"), load(results / "distributed_trials.json")
    rows = [
        [title, speedup(document.get(key))]
        for key, title in (("autoopt", "autoopt, two processes"), ("by_hand", "torchrun script, two processes"))
    ]
    ray = trials.get("ray")
    cluster = (
        f"{ray['trials']} simulated trials of {ray['trial_seconds']:g} s on {ray['places']} places of a Ray cluster on "
        f"one machine: parallel efficiency {ray['efficiency']:.3f} after {ray['hosts_seconds']:.0f} s of start-up."
        if ray
        else f"Trials on Ray: {MISSING}."
    )
    return (
        "Throughput of two processes over one, on a machine with two cores, where both share cores and memory.\n\n"
        "Reproduce: `python -m benchmarks.distributed` and `python -m benchmarks.distributed.trials`.\n\n"
        + table(["training", "speedup"], rows)
        + f"\n\n{cluster}\n\n"
        + machine(document.get("environment", {}))
    )


def simulated_gpu(results: Path) -> str:
    file = results / "simulated-gpu.json"
    rows = [
        [
            one["case"],
            one["noise"],
            f"{one['budget'] / 60:g}",
            len(one["decided"]),
            " + ".join(f"`{name}`" for name in one["plan"]) or "baseline",
            "nothing to gain" if one["share"] is None else f"{one['share']:.0%}",
        ]
        for one in (load(file) if file.exists() else [])
    ]
    return (
        "The whole search in simulated time: processes start in 5 to 14 s, compilation takes up to 70 s. The gains are "
        "assumed, so this page measures the search and no device. *Attained*: the share of the best possible log "
        "speedup that the final plan has.\n\nReproduce: `python -m benchmarks.search.gpu`.\n\n"
        + table(["case", "noise", "minutes", "decided", "final plan", "attained"], rows)
    )


def gpu(results: Path) -> str:
    cases = {
        "resnet50": "ResNet-50 from JPEG files, fp32, no workers, batch 32",
        "bert": "BERT-base, sequence 128, batch 32, fp32, 2 workers",
        "gpt2": "GPT-2 124M, hand-written attention, context 1024, fp32, batch 8",
        "llm_fit": "a decoder of about 7B parameters that does not fit as it is",
        "cifar": "ResNet-18 on 32x32 images to a target accuracy",
        "tiny": "a small MLP on small batches, bound by launches",
    }
    found: dict[str, list[str]] = {}
    for file in sorted(results.glob("*.json")):
        document = load(file)
        if not isinstance(document, dict) or document.get("kind") != "gpu_cases":
            continue
        for name, case in document["cases"].items():
            if case["toy"]:
                continue
            device = (case.get("environment") or {}).get("device_name") or case["device"]
            ended = speedup(case["autoopt"]["time_to_target"]) if "autoopt" in case else "ended before it was measured"
            found.setdefault(name, []).append(f"{ended} to target on {device}, {document['date']}")
    rows = [[f"`{name}`", text, "; ".join(found.get(name, [])) or "not run"] for name, text in cases.items()]
    none = "\n\nNo case has been run on a GPU. No page claims a figure for one." if not found else ""
    return (
        "Naive first scripts with generated data, on a CUDA device.\n\n"
        "Reproduce: `python -m benchmarks.gpu CASE --minutes 8 --out out/results.json`; `--until 9.5` ends a command "
        "early, and the same command continues. `--toy --device cpu --minutes 3` checks the code on any machine. "
        "`python -m pytest -m gpu tests/gpu` runs the tests that need a device.\n\n"
        + table(["case", "workload", "result"], rows)
        + none
    )


def truth(results: Path) -> str:
    document = load(results / "truth.json")
    rows: list[list[object]] = []
    for title, key in (
        ("20 placebos, one after the other, simulated", "placebo_runs"),
        ("whole searches, simulated", "loop_runs"),
        ("several plans next to one baseline, simulated", "several"),
    ):
        for kind, found in document.get(key, {}).items():
            rows.append([title, kind, found["runs"], found["rule"], _held(found)])
    live = document.get("live_runs")
    if live:
        rows.append(["whole searches over placebos, this machine", "", len(live["runs"]), live["rule"], _held(live)])
    for kind, found in document.get("false_losses", {}).items():
        rows.append(["quality: identical changes", kind, found.get("changes", "-"), found["rule"], _held(found)])
    cost = [
        [f"`{one['workload']}`", speedup({**one, "value": one["ratio"], "n": None})]
        for one in document.get("overhead", [])
    ]
    return (
        "Each row is a rule that was fixed before the measurement, and whether it held. A placebo is a change "
        "without effect: keeping one is an error.\n\nReproduce: `python -m benchmarks.truth --help`.\n\n"
        + table(["experiment", "case", "runs", "rule", "result"], rows)
        + "\n\n## Cost of measuring\n\nSeconds of an instrumented step over those of a bare one.\n\n"
        + table(["workload", "ratio"], cost)
    )


def _held(found: Document) -> str:
    return "holds" if found["holds"] else "**does not hold**"


def quality(results: Path) -> str:
    """Changes whose truth is known before the quality gate, and its price of noise against measured steps."""
    document, parts, seen = load(results / "quality.json"), [], []
    judged = {True: "passed", False: "refused", None: "undecided"}
    rules = {
        "broken": ("Broken changes", "none is kept as `identical` or `equivalent`"),
        "honest": ("Honest changes", "at least 17 of 20 are kept as `identical` or `equivalent`"),
    }
    for key, (title, rule) in rules.items():
        found = _latest(document, key)
        seen.append(found.get("environment", {}))
        rows = [
            [
                f"`{row['case']}`",
                row["workload"],
                row["level"] or "refused",
                judged[row["trained_passed"]] if row["trained_detail"] else "",
                f"{row['seconds']:.1f}",
                (row["trained_detail"] if row["trained_passed"] is False else row["detail"]).partition(";")[0],
            ]
            for row in found.get("cases", [])
        ]
        count = f"{found['kept']} of {found['of']} are kept as `identical` or `equivalent`." if found else MISSING
        head = ["change", "workload", "probes", "trainings", "seconds", "reason"]
        parts.append(f"## {title}\n\nRule: {rule}. {count}" + (f"\n\n{table(head, rows)}" if rows else ""))
    priced = _latest(document, "price")
    seen.append(priced.get("environment", {}))
    rows = [
        [
            pair["workload"],
            f"{pair['gradient_error']:.2f}",
            number(pair["predicted"]),
            number(pair["measured"]),
            pair["measured"]["seeds"],
        ]
        for pair in priced.get("pairs", [])
    ]
    head = ["workload", "error of the gradient", "steps predicted", "steps measured", "seeds"]
    parts.append(
        "## Price of noise\n\nSteps with noise of a known size over steps without it, to the same losses. The "
        "prediction holds for a learning rate that is no larger than pays.\n\n"
        + (table(head, rows) if rows else MISSING)
    )
    intro = (
        "Small workloads of several kinds, each change probed as in a search. What probes pass is trained from two "
        "seeds and judged as at the end of a run.\n\nReproduce: `python -m benchmarks.truth.quality_cases`."
    )
    return "\n\n".join([intro, *parts, machine(*seen)])


def _latest(document: Document, part: str) -> Document:
    found = document.get(part, {})
    return found.get("latest") or found.get("first") or {}


def coverage(results: Path) -> str:
    """Simulations with known truth: the headline, loaders that deliver in bunches, processes that are unequal."""
    headline = load(results / "headline_coverage.json")
    parts = [
        "How often a 95 % interval holds the truth, and how often a change that brings nothing is accepted.",
        "## The headline\n\n" + (headline_coverage.table(headline) if "rows" in headline else MISSING),
    ]
    rows = load(results / "loaders.json").get("rows", [])
    cells = []
    for workers, bound in sorted({(row["workers"], row["bound"]) for row in rows}):
        for gain in (1.0, 1.25, 2.0):
            mine = [r for r in rows if (r["workers"], r["bound"], r["gain"]) == (workers, bound, gain)]
            runs = sum(row["runs"] for row in mine)
            counts = [f"{sum(row[key] for row in mine)} of {runs}" for key in ("accepted", "undecided", "covered")]
            middle = sorted(row["median"] for row in mine)[len(mine) // 2]
            cells.append([workers, bound, f"{gain:.2f}", f"{middle:.2f}", *counts])
    head = ["workers", "bound by", "true ratio", "median", "accepted", "undecided in 2 min", "interval holds it"]
    parts.append(
        "## Loaders that deliver in bunches\n\nA true ratio of 1.00: the candidate shortens what the other hides. "
        "All jitters together.\n\nReproduce: `python -m benchmarks.truth.loaders --out FILE`.\n\n"
        + (table(head, cells) if cells else MISSING)
    )
    rows = load(results / "skewed.json").get("rows", [])
    cells = [
        [
            row["processes"],
            row["noise"],
            f"{row['gain']:.1f}",
            f"{row['accepted']:.0%}",
            f"{row['covered']:.0%}",
            f"{row['pairs']:.0f}",
            f"{row['seconds']:.0f} s",
        ]
        for row in rows
    ]
    head = ["processes", "noise", "true ratio", "accepted", "interval holds it", "pairs", "median time"]
    parts.append(
        "## Processes that are unequal\n\nThe candidate's processes are alike, one in five is slower by a fifth, or "
        f"they scatter twice as much. {rows[0]['runs'] if rows else 0} comparisons a row.\n\n"
        "Reproduce: `python -m benchmarks.truth.skewed --out FILE`.\n\n" + (table(head, cells) if cells else MISSING)
    )
    return "\n\n".join(parts)


PAGES: dict[str, tuple[str, Callable[[Path], str]]] = {
    "measurements/whole-runs.md": ("Whole runs", whole_runs),
    "measurements/gauntlet.md": ("The gauntlet", gauntlet),
    "peers.md": ("Compared with other tools", peers),
    "measurements/examples.md": ("The examples, from search to training", adoption),
    "measurements/exhaustive-search.md": ("Compared with an exhaustive search", oracle),
    "measurements/reported-cases.md": ("Reported cases", reported_cases),
    "measurements/what-is-slow.md": ("What is slow, and what autoopt reports", what_is_slow),
    "measurements/placebos.md": ("Placebos and error rates", truth),
    "measurements/quality.md": ("Quality of broken and honest changes", quality),
    "measurements/coverage.md": ("Coverage of intervals", coverage),
    "measurements/compare.md": ("Placebos under `autoopt compare`", asks),
    "measurements/judge-loop.md": ("A loop of ten edits", judge_loop),
    "measurements/bisection.md": ("Planted regressions, found", bisection),
    "measurements/predictions.md": ("Predictions and ceilings", prediction),
    "measurements/attention.md": ("Attention", attention),
    "measurements/latency.md": ("Serving latency", latency),
    "measurements/tuning.md": ("Learning-rate search", tuning),
    "measurements/model-changes.md": ("Changes of the model", model_changes),
    "measurements/distributed.md": ("Several processes", distributed),
    "measurements/gpu.md": ("GPU cases", gpu),
    "measurements/simulated-gpu.md": ("GPU cases, simulated", simulated_gpu),
}


def rendered(results: Path, readme: str) -> dict[str, str]:
    """Every page by its path below the repository, and the README with its table."""
    pages = {
        f"docs/{name}": f"# {title}\n\nMade by `python -m benchmarks.pages`; do not edit.\n\n"
        + make(results).rstrip()
        + "\n"
        for name, (title, make) in PAGES.items()
    }
    before, _, rest = readme.partition(README_MARKS[0])
    after = rest.partition(README_MARKS[1])[2]
    pages["README.md"] = f"{before}{README_MARKS[0]}\n\n{whole_rows(results)}\n\n{README_MARKS[1]}{after}"
    return pages


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a page is stale")
    given = parser.parse_args(arguments)
    stale = []
    for name, text in rendered(RESULTS, (ROOT / "README.md").read_text(encoding="utf-8")).items():
        file = ROOT / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not given.check:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
    print("\n".join(stale) or "every page is what the results hold")
    return int(given.check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
