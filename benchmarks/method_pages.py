"""Pages on the method: searches, predictions, error rates and coverage, made from benchmarks/results alone."""

from __future__ import annotations

from pathlib import Path

from benchmarks.documents import MISSING, Document, load, machine, names, number, sections, speedup, table


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
    return sections(
        "Bottlenecks were planted in small pipelines, then autoopt named them. Each predicted gain was then measured "
        "in pairs of processes. A prediction orders the search; no change is kept because of one.\n\n"
        "Reproduce: `python -m benchmarks.prediction --seconds 400`.",
        table(["question", "answer"], rows),
        machine(document.get("environment", {})),
    )


def reported_cases(results: Path) -> str:
    from benchmarks.reports.cases import REPORTS

    answers = load(results / "reports.json").get("reports", {})
    rows = []
    for case in REPORTS:
        found = answers.get(case.build or "")
        how = names(found["changes"]) if found and "changes" in found else (found or {}).get("refused") or case.note
        rows.append([case.kind, how or MISSING, speedup((found or {}).get("throughput"))])
    return sections(
        "Slow trainings from public issue trackers, each rebuilt as a small workload that shows one cause. The figure "
        "is the speedup of a step with the first setting that the strategy tries. In your run the cause may be a "
        "small part, and so is the gain.\n\nReproduce: `python -m benchmarks.reports --seconds 280`.",
        table(["reported", "strategy", "speedup of a step"], rows),
        machine(*(one["environment"] for one in answers.values())),
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
            brings = f"{found['advice_seconds']:.3g} s of each run, manual"
        wanted = f"expected: {', '.join(f'`{name}`' for name in ask.wanted)}"
        rows.append([ask.kind, "; ".join(said) or ("; ".join(found.get("failed", [])) or wanted), brings])
    return sections(
        "Small scripts, each slow for one reason that users know, and what one command of four minutes reports of it. "
        "The speedup is that of the whole run where whole runs were measured. An expected answer stands where nothing "
        "was measured yet.\n\n"
        f"Reproduce: `python -m benchmarks.reports --asks {len(ASKS)}`, on a machine that does nothing else.",
        table(["what is slow", "what autoopt reports", "what it brings"], rows),
        "Kinds that these scripts do not show:",
        table(["what is slow", "who answers it"], ELSEWHERE),
        machine(*(one["environment"] for one in answers.values())),
    )


def attention(results: Path) -> str:
    document = load(results / "attention.json")
    rows = []
    for row in document.get("rows", []):
        how = "switched" if row["switched"] else f"{row['rewritten']} rewritten" if row["rewritten"] else "unchanged"
        gain = speedup(row | {"value": row["speedup"]}) if row["speedup"] is not None else MISSING
        rows.append([row["model"], how, MISSING if row["difference"] is None else f"{row['difference']:.0e}", gain])
    return sections(
        "Two layers of width 256 with eight heads on 4 sequences of 256 tokens: a rewritten and an unchanged copy, "
        "interleaved. *Difference* is the largest difference of a gradient over the largest gradient.\n\n"
        "Reproduce: `python -m benchmarks.attention --write`.",
        table(["model", "attention modules", "difference", "speedup of forward and backward"], rows),
        machine(document.get("environment", {})),
    )


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
    power = f"True gains, simulated:\n\n{table(heads, gains)}" if gains else ""
    live = document.get("live", {}).get("asks", [])
    rows += [["commits on a real machine", len(live), sum(one["answer"] == "faster" for one in live)]] if live else []
    gained = [one["answer"] for one in document.get("gains", {}).get("asks", [])]
    true = f"True gains on a real machine: {gained.count('faster')} of {len(gained)} found." if gained else ""
    two = document.get("revisions") or {}
    real = f"A real change, the example's images decoded once: {speedup(two.get('throughput'))} a step." if two else ""
    return sections(
        "Placebo changes, asked again and again under one `--ledger`. The last column counts false answers; at most "
        "5 % of ledgers may hold one.\n\nReproduce: `python -m benchmarks.asks --help`.",
        table(["placebo changes", "asks", "answered faster"], rows),
        power,
        true,
        real,
        machine(*(one["environment"] for one in document.get("simulated", {}).values())),
    )


def judge_loop(results: Path) -> str:
    found = load(results / "asks.json").get("loop")
    if not found:
        return "Not measured yet: `python -m benchmarks.asks --loop 60` judges ten edits of a scripted agent.\n"
    rows = []
    for place, each in enumerate(found["asks"], 1):
        left = f"{each['error']['left']:.2g}" if "error" in each else MISSING
        measured = [_interval(each.get("speedup")), each.get("quality", MISSING), each.get("seconds", MISSING), left]
        rows.append([place, each["edit"], each["kind"], each["verdict"], *measured])
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
        f"{table(heads, rows)}\n\n{machine(*machines)}"
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
    return sections(intro, *parts, machine(*seen))


def _latest(document: Document, part: str) -> Document:
    found = document.get(part, {})
    return found.get("latest") or found.get("first") or {}


def coverage(results: Path) -> str:
    """Simulations with known truth: the headline, loaders that deliver in bunches, processes that are unequal."""
    headline = load(results / "headline_coverage.json")
    parts = [
        "How often a 95 % interval holds the truth, and how often a change that brings nothing is accepted.",
        "## The headline\n\n" + (_headline(headline) if "rows" in headline else MISSING),
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
    return sections(*parts)


def _headline(document: Document) -> str:
    """The lowest coverage of each noise over the plans, and of prediction intervals of the next session."""
    rows = []
    for name in dict.fromkeys(row["name"] for row in document["rows"]):
        mine = [row for row in document["rows"] if row["name"] == name]
        least = [min(row["headline"][column] for row in mine) for column in mine[0]["headline"]]
        factors = [min(row[part]["while wide"] for row in mine) for part in ("step_ratio", "steps_ratio")]
        rows.append([name, *(f"{100 * share:.1f}" for share in (*least, *factors))])
    sessions = []
    for scatter in dict.fromkeys(row["scatter"] for row in document["sessions"]):
        shares = [row["coverage"] for row in document["sessions"] if row["scatter"] == scatter]
        sessions.append([f"{100 * scatter:.0f} %", *(f"{100 * share:.1f}" for share in shares)])
    steps = ", ".join(str(need) for need in dict.fromkeys(row["steps"] for row in document["rows"]))
    head = ["noise", "2 pairs", "3 pairs", "4 pairs", "pairs added while wide", "seconds a step", "steps"]
    return (
        f"Coverage of 95 % intervals in per cent, the lowest over plans that need {steps} times the steps "
        f"({document['repeats']} simulated runs each; `python -m benchmarks.truth.headline_coverage`):\n\n"
        + table(head, rows, numbers=True)
        + "\n\nPrediction interval of the next session:\n\n"
        + table(["sessions differ by", "2 known", "3 known", "4 known"], sessions, numbers=True)
    )
