"""Mixed precision where the script has an autocast of its own that was off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoopt.export.script_patch import placed
from autoopt.records import Place, Plan, ScriptPatch, Site, Sites
from scripted import BF16, FP16, REGISTRY

SCRIPT = """\
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--amp", action="store_true")
parser.add_argument("--mixed", type=bool, default=False)
args = parser.parse_args()
for x, y in loader:
    with AUTOCAST:
        loss = model(x)
    loss.backward()
"""
OFF = {"device": "cpu", "dtype": "bfloat16", "enabled": False}


def patch_of(
    folder: Path, autocast: str, change: Any = BF16, model: int = 10, end: int = 10, **options: Any
) -> ScriptPatch:
    (folder / "train.py").write_text(SCRIPT.replace("AUTOCAST", autocast))

    def at(line: int, end: int = 0, **site: Any) -> Site:
        return Site(file="train.py", line=line, end_line=max(line, end), **site)

    used = (Place(file="train.py", line=model, end_line=model),)
    sites = (
        at(9, end, kind="autocast", call="autocast", options={**OFF, **options}),
        at(3, kind="model", call="Net", used=used),
        at(11, kind="loss", call="backward"),
    )
    found = Sites(command=("python", "train.py"), cwd=str(folder), sites=sites)
    return placed(found, Plan(changes=(change,)), REGISTRY, "cpu").patch


@pytest.mark.parametrize(
    ("autocast", "options", "added"),
    [
        ('torch.autocast("cpu", enabled=args.amp)', {}, '    with torch.autocast("cpu", enabled=True):'),
        (
            'torch.autocast("cpu", torch.float16, False)',
            {"dtype": "float16"},
            '    with torch.autocast("cpu", torch.bfloat16, True):',
        ),
        (
            'torch.amp.autocast("cpu", enabled=args.mixed)',
            {},
            'parser.add_argument("--mixed", type=bool, default=True)',
        ),
    ],
)
def test_it_is_turned_on_where_it_is_turned_off(
    tmp_path: Path, autocast: str, options: dict[str, Any], added: str
) -> None:
    patch = patch_of(tmp_path, autocast, **options)
    assert [change.how for change in patch.changes] == ["patched"], patch.changes
    assert patch == patch_of(tmp_path, autocast, end=9, **options), "lines of the call, or of all that stands below it"
    lines = [line for line in patch.diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert lines == [f"+{added}"]


@pytest.mark.parametrize(
    ("autocast", "more"),
    [
        ("ctx", {}),
        ('torch.autocast("cpu", enabled=args.amp)', {"model": 4}),  # around something else
        ('torch.autocast("cpu", enabled=args.amp)', {"device": "cuda"}),
        ('torch.autocast("cpu", enabled=args.amp)', {"change": FP16}),
        ('torch.autocast("cpu", enabled=args.amp, dtype=wanted)', {"dtype": "float16"}),
    ],
)
def test_else_its_line_is_told(tmp_path: Path, autocast: str, more: dict[str, Any]) -> None:
    patch = patch_of(tmp_path, autocast, **more)
    (change,) = patch.changes
    assert (patch.diff, change.how, change.file, change.line) == ("", "by hand", "train.py", 9)
    assert "train.py:9 has an autocast of its own: write enabled=True" in change.reason
