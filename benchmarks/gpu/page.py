"""docs/results.md from benchmarks/results/*.json: what was run on which device, and what was not run.

python -m benchmarks.gpu.page            # writes the page
python -m benchmarks.gpu.page --check    # exit code 1 where the page is not what the results say
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu import table

ROOT = Path(__file__).resolve().parents[2]

PAGE = ROOT / "docs" / "results.md"
CASES = {
    "resnet50": "ResNet-50 from JPEG files, decoded per sample, fp32, no workers, batch 32",
    "bert": "BERT-base from its configuration, sequence 128, batch 32, fp32, 2 workers",
    "gpt2": "GPT-2, 124M parameters, hand-written attention, context 1024, fp32, batch 8",
    "llm_fit": "a decoder of about 7B parameters that does not fit as it is",
    "cifar": "ResNet-18 on 32x32 images to a target accuracy",
    "tiny": "a small MLP on small batches, bound by launches",
}
HEAD = """# Results on GPUs

Made by `python -m benchmarks.gpu.page` from the documents in `benchmarks/results`; do not edit.
Each case is a naive first script with generated data (`benchmarks/gpu/cases`); it is run by
`python -m benchmarks.gpu CASE --minutes M` on a machine with a CUDA device, no network needed.
MFU is the share of the best matrix-multiplication rate measured on the same device, not of a datasheet's.
"All tips on": workers, pinned memory, TF32, bf16 autocast, channels-last, `torch.compile`, a fused optimizer.
"""
HOW = """## How to run them

What is needed: a CUDA device, Python 3.11 or newer, torch 2.6 or newer, and this checkout; `pillow` for `resnet50`,
`transformers` for `bert`, `nvidia-ml-py` for utilization and power, a C compiler where `torch.compile` is to be tried
(Triton builds its launcher with it). With a network, `pip install -e '.[examples,transformers,profilers,dev]'` brings
the rest. Without one, take along what the machine lacks, fetched elsewhere for its version of Python:

```console
$ pip download --dest wheels --only-binary=:all: --python-version 3.12 pydantic
$ pip download --dest wheels --only-binary=:all: --no-deps torch-tb-profiler
```

and there, from the checkout, which then need not be installed:

```console
$ pip install --no-index --find-links wheels --no-deps wheels/*.whl
$ export PYTHONPATH=$PWD:$PWD/strategies:$PWD/reports
$ python -m autoopt doctor
```

`doctor` names what is missing. Of torch-tb-profiler the trace's reading depends, and nothing else.

**The tests** of everything that is CUDA's alone. `--timeout` needs pytest-timeout; the slowest are those of the
compiler and of the hang that must be survived:

```console
$ python -m pytest -m gpu tests/gpu -q --timeout 240 --durations 10
```

**A first look.** Versions, clocks, start-up costs, `tests/gpu`, peaks beside sustained rates, what measuring costs,
predictions beside direct comparisons, a ladder of fixed plans and loader workers:
`python -m benchmarks.gpu.first_look 1 --out look.json`, then `2`, `3` and `page`, each under ten minutes.

**A case.** `--minutes` is for all of it: generating data, optimizing (65 %), and the race of the plan with its rivals.
It ends within a minute or two of that. Where commands are cut off after ten minutes, ask for eight:

```console
$ python -m benchmarks.gpu resnet50 --minutes 8 --out out/results.json
```

Each part is printed as soon as it is known, and `out/results.json` is written again with it (`state` says how far it
has come), so that a run that was cut off leaves what it had; beside it lie `resnet50-report.html`, `resnet50-plan.json`
and `resnet50-optimized_train.py`. Progress goes to standard error. Without `--out` the document goes to
`benchmarks/results/<device>-<date>.json`, of which this page is made; several cases of a day share it.

**More time than a command may take**: `--until` ends the command, and the same command goes on from the run's journal
(exit code 75 until it is done). Time in between is not charged, `--runs` must outlast it:

```console
$ python -m benchmarks.gpu gpt2 --minutes 18 --until 9.5 --runs runs --out out/results.json
$ python -m benchmarks.gpu gpt2 --minutes 18 --until 9.5 --runs runs --out out/results.json
```

With little time, name what may be tried, the likeliest first; what was left out is then not known:

```console
$ python -m benchmarks.gpu resnet50 --minutes 8 --only workers,pin_memory,amp,channels_last,compile,batch_size
$ python -m benchmarks.gpu bert --minutes 8 --only amp,matmul_precision,fused_optimizer,compile,batch_size
$ python -m benchmarks.gpu gpt2 --minutes 8 --only flash_attention,amp,matmul_precision,compile,fused_optimizer
$ python -m benchmarks.gpu tiny --minutes 6 --only device_dataset,cuda_graphs,compile,fused_optimizer
$ python -m benchmarks.gpu cifar --minutes 9 --only workers,device_dataset,amp,channels_last,compile,one_cycle
$ python -m benchmarks.gpu llm_fit --minutes 9 --only checkpointing,accumulation,amp,flash_attention
```

`--toy --device cpu --minutes 3` runs the same commands at toy size on any machine: a check of the code, no figure.
`python -m benchmarks.gpu.page` writes this page anew.
"""


def load(folder: Path) -> list[dict[str, Any]]:
    """The documents of GPU cases in a folder, toys left out; the latest last."""
    found = []
    for file in sorted(folder.glob("*.json")):
        document = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(document, dict) and document.get("kind") == "gpu_cases":
            cases = {name: case for name, case in document["cases"].items() if not case["toy"]}
            found.append({**document, "cases": cases, "file": file.name})
    return sorted((d for d in found if d["cases"]), key=lambda document: str(document["date"]))


def render(documents: list[dict[str, Any]]) -> str:
    """The page."""
    parts = [HEAD, summary(documents), HOW]
    for document in documents:
        for name in CASES:
            if name in document["cases"]:
                parts.append(section(document, document["cases"][name]))
    return "\n".join(parts).rstrip() + "\n"


def summary(documents: list[dict[str, Any]]) -> str:
    """One row for each case, run or not."""
    lines = ["| case | what it is | state |", "| --- | --- | --- |"]
    missing = []
    for name, text in CASES.items():
        where = [d for d in documents if name in d["cases"]]
        if not where:
            missing.append(name)
        state = "; ".join(outcome(d, d["cases"][name]) for d in where) or "**not run**"
        lines.append(f"| `{name}` | {text} | {state} |")
    lines.append("")
    if missing:
        which = "No case was" if len(missing) == len(CASES) else f"{', '.join(missing)}: not"
        lines.append(
            f"{which} run on a GPU: no figure for it is claimed anywhere. The tests train every case at toy size on "
            "the CPU (`tests/benchmarks/test_gpu_cases.py`), which shows that the code runs and nothing about speed on "
            "a GPU; the tests under `tests/gpu` are collected and skipped where there is no CUDA device."
        )
        lines.append("")
    return "\n".join(lines)


def outcome(document: dict[str, Any], case: dict[str, Any]) -> str:
    where = f"{device(case)}, {document['date']}"
    if "autoopt" not in case:
        stopped = case.get("fit", {}).get("plan") is not None or "fit" not in case
        return f"{where}: {'ended before anything was measured' if stopped else 'did not fit'}"
    return f"{where}: {table.ratio(case['autoopt']['time_to_target'])} to target"


def device(case: dict[str, Any]) -> str:
    return str((case.get("environment") or {}).get("device_name") or case["device"])


def section(document: dict[str, Any], case: dict[str, Any]) -> str:
    """A case as it was run, with its environment."""
    environment = case.get("environment") or {}
    versions = f"torch {environment.get('torch')}, CUDA {environment.get('cuda')}, Python {environment.get('python')}"
    return "\n".join(
        [
            f"## {case['case']} on {device(case)}",
            "",
            f"{document['date']}, {case['minutes']:g} minutes, {versions}, commit {environment.get('git_commit')}; "
            f"`benchmarks/results/{document['file']}`.",
            "",
            "```",
            table.render(case),
            "```",
            "",
        ]
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 where the page is stale")
    given = parser.parse_args(arguments)
    page = render(load(ROOT / "benchmarks" / "results"))
    if given.check:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page)
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
