"""A plain script, its sites, and the patch of a plan on it, checked to go on by git and off again."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path
from typing import Any

from autoopt.export.script_patch import Placed, placed
from autoopt.records import Change, Place, Plan, Site, SiteKind, Sites
from autoopt.registry import load_strategies

REGISTRY = load_strategies([])
WORKERS = Change(strategy="workers", setting={"num_workers": 2, "persistent_workers": True})
THREADS = Change(strategy="threads", setting={"threads": 1})
BF16 = Change(strategy="amp", setting={"dtype": "bfloat16"})
FP16 = Change(strategy="amp", setting={"dtype": "float16", "loss_scaling": True})
FUSED = Change(strategy="fused_optimizer", setting={"implementation": "fused"})
LAYOUT = Change(strategy="channels_last", setting={})
COMPILE = Change(strategy="compile", setting={"mode": "default", "dynamic": None, "regional": False})

PLAIN = '''\
"""Trains a net."""
import torch
from torch import nn
from torch.utils.data import DataLoader

from data import Pictures  # ours


def main():
    # the data
    loader = DataLoader(Pictures(), batch_size=32, shuffle=True)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in loader:

        # one step
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(loss.item())  # a line as long as those of this script may be: no call up to here needs to be broken


if __name__ == "__main__":
    main()
'''


def calls_in(text: str, start: str | tuple[str, ...]) -> list[tuple[str, Place]]:
    """Names and lines of the calls whose source begins so."""
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    found = [node for node in calls if (ast.get_source_segment(text, node) or "").startswith(start)]
    assert found, f"no call {start!r}"
    return [
        (ast.unparse(node.func), Place(file="train.py", line=node.lineno, end_line=node.end_lineno or 0))
        for node in found
    ]


def places(text: str, start: str | tuple[str, ...]) -> list[Place]:
    """Lines of the calls whose source begins so."""
    return [place for _, place in calls_in(text, start)]


def sites_in(
    folder: Path, text: str, command: tuple[str, ...] = ("python", "train.py"), **wanted: str | tuple[str, ...]
) -> Sites:
    """A script written to a folder, and sites at the calls whose source begins so, by their kind."""
    (folder / "train.py").write_text(text)
    kinds: dict[SiteKind, str | tuple[str, ...]] = {
        "loader_training": ("DataLoader(", "torch.utils.data.DataLoader("),
        "model": ("nn.Linear(", "torch.nn.Linear("),
        "optimizer": "torch.optim.",
        "loss": "loss.backward(",
        "step": "optimizer.step(",
    }
    found = []
    for kind, start in {**kinds, **wanted}.items():
        name, place = calls_in(text, start)[0]
        call = name if kind in ("checkpoint", "forced") else name.rpartition(".")[2]
        used = tuple(places(text, "model(")[:1]) if kind == "model" and "model(" in text else ()
        found.append(Site(**place.model_dump(), kind=kind, call=call, used=used))
    return Sites(command=command, cwd=str(folder), sites=tuple(found))


def seen(
    folder: Path, text: str, *sites: tuple[str, str, str | tuple[str, ...], dict[str, Any]], **more_of_all: Any
) -> Sites:
    """Sites at the calls whose source begins so: kind, what was called, its source, and more of the site.

    ``used`` in what more there is: the beginnings of the calls that use it.
    """
    (folder / "train.py").write_text(text)
    made = []
    for kind, call, start, more in sites:
        at, extra = places(text, start)[0], {**more}
        function = {"function": extra.get("function", "<module>")}
        used = tuple(p.model_copy(update=function) for begin in extra.pop("used", ()) for p in places(text, begin))
        made.append(Site(**(at.model_dump() | {"kind": kind, "call": call, "used": used, **extra})))
    return Sites(command=("python", "train.py"), cwd=str(folder), sites=tuple(made), **more_of_all)


SEEN = {"num_workers": 1, "batch_size": 8, "persistent_workers": False, "prefetch_factor": 2, "pin_memory": False}


def sites_of(folder: Path, text: str, start: str, *words: str, **site: Any) -> Sites:
    """A script in a folder, and a site at the first line that holds ``start``: a loader's, where nothing else is said.

    Args:
        words: of the script's command.
    """
    (folder / "train.py").write_text(text)
    line = 1 + text[: text.index(start)].count("\n")
    wanted = {"kind": "loader_training", "call": "DataLoader", "options": SEEN, **site}
    found = Site(file="train.py", line=line, end_line=line, **wanted)
    return Sites(command=("python", "train.py", *words), cwd=str(folder), sites=(found,))


def put(sites: Sites, *changes: Change) -> Placed:
    """A plan in copies of a script's files."""
    return placed(sites, Plan(changes=changes), REGISTRY, "cpu")


def patched(folder: Path, text: str, *changes: Change, sites: Sites | None = None) -> tuple[str, Any]:
    sites = sites or sites_in(folder, text)
    found = put(sites, *changes)
    patch, after = found.patch, found.texts.get("train.py", text)
    compile(after, "train.py", "exec")
    if patch.diff:
        (folder / "patch.diff").write_text(patch.diff)
        for direction, expected in (((), after), (("-R",), text)):
            subprocess.run(["git", "apply", *direction, "patch.diff"], cwd=folder, check=True, capture_output=True)
            assert (folder / "train.py").read_text() == expected
    return after, patch


def changed_lines(diff: str) -> list[str]:
    return [line for line in diff.splitlines() if line[:1] in "+-" and not line.startswith(("+++", "---"))]
