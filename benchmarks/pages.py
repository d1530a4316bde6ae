"""docs/measurements/ and the README's table, made from benchmarks/results/*.json alone.

    python -m benchmarks.pages            # writes every page
    python -m benchmarks.pages --check    # writes nothing; exit code 1 where a page is not what the results hold
    python -m benchmarks.pages --show bisection    # writes nothing; prints the pages whose name holds this

A page is a title, one or two lines of reading help, a table, and the machine. No figure of a page stands anywhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import method_pages as method
from benchmarks.documents import (
    MISSING,
    RESULTS,
    ROOT,
    Document,
    load,
    machine,
    names,
    number,
    parser_of,
    sections,
    speedup,
    table,
)
from benchmarks.gauntlet import page as gauntlet_page
from benchmarks.peers import page as peers_page
from benchmarks.search import page as search_page
from benchmarks.truth import demos
from benchmarks.whole_runs import page as whole_runs_page

README_MARKS = ("<!-- whole runs: made by python -m benchmarks.pages -->", "<!-- end -->")


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
        "Wide intervals come from two pairs of runs.\n\nReproduce: `python -m benchmarks.adoption EXAMPLE`."
    )
    places = [stage["environment"] for entry in examples.values() for stage in entry.values() if "environment" in stage]
    return sections(help_, table(head, rows), machine(*places))


def gauntlet(results: Path) -> str:
    """Whole runs to a target, beside experts, placebos and other tools."""
    document = load(results / "gauntlet.json")
    return sections(gauntlet_page.render(document), _judged_on(document))


def peers(results: Path) -> str:
    """Other people's scripts, beside other tools."""
    document = load(results / "peers.json")
    return sections(peers_page.render(document), _judged_on(document))


def _judged_on(document: Document) -> str:
    return machine(*(row["environment"] for row in document.get("judgements", [])))


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
    return sections(
        "Both searches had the same seconds; their results were then trained from fresh seeds. Fewer steps are better. "
        f"The run's own verdict: {verdict}.\n\nReproduce: `python -m benchmarks.serving --tune 3m`.\n\n"
        f"`{found['workload']}`, `--tune {found['space']}`, {found['search_seconds']:.0f} s for each search.",
        table(["learning rate of", "value", "steps to the target, by seed"], rows),
        machine(found["environment"]),
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
    return sections(
        "Throughput of two processes over one, on a machine with two cores, where both share cores and memory.\n\n"
        "Reproduce: `python -m benchmarks.distributed` and `python -m benchmarks.distributed.trials`.",
        table(["training", "speedup"], rows),
        cluster,
        machine(document.get("environment", {})),
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


PAGES: dict[str, tuple[str, Callable[[Path], str]]] = {
    "measurements/whole-runs.md": ("Whole runs", whole_runs),
    "measurements/gauntlet.md": ("The gauntlet", gauntlet),
    "peers.md": ("Compared with other tools", peers),
    "measurements/examples.md": ("The examples, from search to training", adoption),
    "measurements/exhaustive-search.md": ("Compared with an exhaustive search", method.oracle),
    "measurements/reported-cases.md": ("Reported cases", method.reported_cases),
    "measurements/what-is-slow.md": ("What is slow, and what autoopt reports", method.what_is_slow),
    "measurements/placebos.md": ("Placebos and error rates", method.truth),
    "measurements/demos.md": ("Ten demos", demos.page),
    "measurements/quality.md": ("Quality of broken and honest changes", method.quality),
    "measurements/coverage.md": ("Coverage of intervals", method.coverage),
    "measurements/compare.md": ("Placebos under `autoopt compare`", method.asks),
    "measurements/judge-loop.md": ("A loop of ten edits", method.judge_loop),
    "measurements/bisection.md": ("Planted regressions, found", method.bisection),
    "measurements/predictions.md": ("Predictions and ceilings", method.prediction),
    "measurements/attention.md": ("Attention", method.attention),
    "measurements/latency.md": ("Serving latency", latency),
    "measurements/tuning.md": ("Learning-rate search", tuning),
    "measurements/model-changes.md": ("Changes of the model", model_changes),
    "measurements/distributed.md": ("Several processes", distributed),
    "measurements/simulated-search.md": ("Simulated searches", search_page.render),
    "measurements/gpu.md": ("GPU cases", gpu),
    "measurements/simulated-gpu.md": ("GPU cases, simulated", method.simulated_gpu),
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
    parser = parser_of("benchmarks.pages", __doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where a page is stale")
    parser.add_argument("--show", metavar="NAME", help="write nothing; print the pages whose name holds this")
    given = parser.parse_args(arguments)
    if given.show:
        print(sections(*(make(RESULTS) for name, (_, make) in PAGES.items() if given.show in name)))
        return 0
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
