"""Mixed precision where the script has an autocast of its own that was off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoopt.records import Place, ScriptPatch, Site, Sites
from scripted import BF16, FP16, changed_lines, put, seen

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
    return put(found, change).patch


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
    assert changed_lines(patch.diff)[1:] == [f"+{added}"]


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


ONE_FUNCTION = """\
import torch
from torch.nn.functional import cross_entropy


def run_epoch(model, batches, optimizer=None):
    with torch.set_grad_enabled(optimizer is not None):
        for x, y in batches:
            LINES


model = Net()
run_epoch(model, train, torch.optim.SGD(model.parameters(), lr=0.1))
"""


def patched(folder: Path, text: str) -> ScriptPatch:
    """The patch of bfloat16 on a script that calls ``model(x)`` once and ``loss.backward()`` in other lines."""
    model, loss = {"used": ["model(x)"]}, ("loss", "backward", "loss.backward(", {})
    sites = seen(folder, text, ("model", "Net", "Net(", model), loss)
    return put(sites, BF16).patch


def added(patch: ScriptPatch) -> list[str]:
    """The lines that a patch adds, without their indentation."""
    return [line[1:].strip() for line in changed_lines(patch.diff) if line.startswith("+ ")]


def test_a_function_that_trains_and_evaluates_is_in_mixed_precision_where_it_trains(tmp_path: Path) -> None:
    lines = ["scores = model(x)", "loss = cross_entropy(scores, y)", "if optimizer:", "    loss.backward()"]
    patch = patched(tmp_path, ONE_FUNCTION.replace("LINES", "\n            ".join(lines)))
    assert added(patch) == [
        'with torch.autocast("cpu", dtype=torch.bfloat16, enabled=torch.is_grad_enabled()):',
        "scores = model(x)",
        "loss = cross_entropy(scores, y)",
    ]


@pytest.mark.parametrize(
    "lines",
    [
        ["scores = model(x)", "if optimizer:", "    loss = cross_entropy(scores, y)", "    loss.backward()"],
        ["loss = model(x)", "for _ in range(2):", "    loss.backward()"],
        ["if optimizer:", "    loss = cross_entropy(model(x), y)", "else:", "    loss.backward()"],
    ],
    ids=["the loss elsewhere", "in a loop", "in another branch"],
)
def test_a_backward_pass_that_is_not_simply_chosen_is_left_alone(tmp_path: Path, lines: list[str]) -> None:
    patch = patched(tmp_path, ONE_FUNCTION.replace("LINES", "\n            ".join(lines)))
    assert (patch.diff, patch.changes[0].how) == ("", "plan only")


def test_a_context_of_the_scripts_own_stays_with_autocast_beside_it(tmp_path: Path) -> None:
    text = "import torch\nmodel = Net()\nfor x, y in batches:\n  with ctx:\n    loss = model(x)\n  loss.backward()\n"
    assert added(patched(tmp_path, text)) == ['with torch.autocast("cpu", dtype=torch.bfloat16), ctx:']
    longer = text.replace("ctx:", "strategy.forward_context(step, epoch, model, scaler):")
    assert 'with torch.autocast("cpu", dtype=torch.bfloat16):' in added(patched(tmp_path, longer))
