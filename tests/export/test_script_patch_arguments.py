"""Arguments that a script passes on, computes of its options or gives to a class that it picks as it runs."""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import runpy
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from autoopt.records import Change, ScriptPatch, Site, SiteKind, Sites
from scripted import SEEN, put, sites_of

WORKERS = Change(strategy="workers", setting={"num_workers": 2})
PERSISTENT = Change(strategy="workers", setting={"num_workers": 2, "persistent_workers": True})
NO_WORKERS = Change(strategy="workers", setting={"num_workers": 0})
PINNED = Change(strategy="pin_memory", setting={"pin_memory": True, "non_blocking": False})
FUSED = Change(strategy="fused_optimizer", setting={"implementation": "fused"})
LARGER = Change(strategy="batch_size", setting={"size": 64, "learning_rate_factor": 1.0, "warmup_steps": 0})

WIDE = "# a line of a script whose lines are long: " + 120 * "-"
LOADER = f"""\
{WIDE}
import argparse

import torch
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("-j", "--workers", type=int, default=1)
parser.add_argument("--no-cuda", action="store_true")
opt = parser.parse_args()
kwargs = {{"num_workers": 1, "pin_memory": False}} if not opt.no_cuda else {{}}
loader = CALL
print(loader.num_workers, loader.batch_size, loader.persistent_workers, loader.pin_memory)
"""


def called(folder: Path, call: str, *changes: Change, words: tuple[str, ...] = (), **site: Any) -> ScriptPatch:
    """The patch of a script with one call of a DataLoader; what it changes is checked to apply."""
    return patched(sites_of(folder, LOADER.replace("CALL", call), "loader = ", *words, **site), *changes)


def patched(sites: Sites, *changes: Change) -> ScriptPatch:
    """The patch, put on the files by git, which then are what was promised."""
    folder, found = Path(sites.cwd), put(sites, *changes)
    patch, after = found.patch, found.texts
    assert bool(after) == bool(patch.diff)
    if patch.diff:
        (folder / "patch.diff").write_text(patch.diff)
        subprocess.run(["git", "apply", "patch.diff"], cwd=folder, check=True, capture_output=True)
    for name, text in after.items():
        compile(text, name, "exec")
        assert (folder / name).read_text() == text
    return patch


def line_of(folder: Path, start: str) -> str:
    return next(line for line in (folder / "train.py").read_text().splitlines() if line.startswith(start))


def prints(folder: Path, *words: str) -> str:
    """The output of the script as it stands in the folder, run within this process: torch is imported once."""
    out = io.StringIO()
    argv = mock.patch.object(sys, "argv", ["train.py", *words])
    path = mock.patch.object(sys, "path", [str(folder), *sys.path])
    for name in ("settings", "settings.options"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    with argv, path, warnings.catch_warnings(), contextlib.redirect_stdout(out):
        warnings.simplefilter("ignore")  # a machine of few cores warns of workers
        runpy.run_path(str(folder / "train.py"))
    return out.getvalue().strip()


STARRED = "DataLoader(list(range(8)), batch_size=8, shuffle=True, **kwargs)"


def test_keys_are_merged_into_what_is_passed_on_with_two_stars(tmp_path: Path) -> None:
    patch = called(tmp_path, STARRED, PERSISTENT, PINNED, LARGER)
    assert [(change.how, change.reason) for change in patch.changes] == [("patched", "")] * 3
    assert line_of(tmp_path, "loader") == (
        "loader = DataLoader(list(range(8)), batch_size=64, shuffle=True, "
        '**{**kwargs, "num_workers": 2, "persistent_workers": True, "pin_memory": True})'
    )
    assert prints(tmp_path) == prints(tmp_path, "--no-cuda") == "2 64 True True"


@pytest.mark.parametrize(
    ("passed", "expected"),
    [
        ("**kwargs if opt.workers else {}", '**{**(kwargs if opt.workers else {}), "num_workers": 2}'),
        ("**kwargs or {}", '**{**(kwargs or {}), "num_workers": 2}'),
        ("**dict(kwargs)", '**{**dict(kwargs), "num_workers": 2}'),
        ("**{'num_workers': 1}", "**{'num_workers': 2}"),
        ("**{**kwargs, 'num_workers': 1}", "**{**kwargs, 'num_workers': 2}"),
        ("**{'num_workers': 1, **kwargs,}", "**{'num_workers': 1, **kwargs, \"num_workers\": 2,}"),
        ("**{}", '**{"num_workers": 2}'),
    ],
)
def test_whatever_is_passed_on_the_key_wins(tmp_path: Path, passed: str, expected: str) -> None:
    called(tmp_path, f"DataLoader(list(range(8)), {passed})", WORKERS)
    assert line_of(tmp_path, "loader") == f"loader = DataLoader(list(range(8)), {expected})"
    assert prints(tmp_path).startswith("2 1 ")


def test_without_workers_goes_what_torch_refuses_beside_none(tmp_path: Path) -> None:
    call = "DataLoader(list(range(8)), **{**kwargs, 'persistent_workers': True, 'prefetch_factor': 3})"
    called(tmp_path, call, NO_WORKERS, options={**SEEN, "persistent_workers": True, "prefetch_factor": 3})
    assert prints(tmp_path) == "0 1 False False"


@pytest.mark.parametrize("call", ["DataLoader(list(range(8)))", "DataLoader(list(range(8)), **kwargs)"])
def test_a_change_without_workers_takes_back_what_another_gave_them(tmp_path: Path, call: str) -> None:
    several = {"num_workers": 1, "prefetch_factor": 2, "persistent_workers": True}
    rows = Change(strategy="prepared_samples", setting={"form": "rows", "where": "memory"})
    called(tmp_path, call, Change(strategy="workers", setting=several), rows)
    line = line_of(tmp_path, "loader")
    assert "Rows(" in line
    assert not re.search(r"prefetch_factor\W+2|persistent_workers\W+True", line)


@pytest.mark.parametrize(
    ("passed", "expected"),
    [
        ("{'num_workers': 2}", "**{'num_workers': 0})"),
        ("{'num_workers': 2, 'prefetch_factor': 2}", "**{'num_workers': 0, 'prefetch_factor': None})"),
    ],
)
def test_what_a_literal_does_not_set_is_not_unset(tmp_path: Path, passed: str, expected: str) -> None:
    seen = {**SEEN, "num_workers": 2, "prefetch_factor": 2}
    called(tmp_path, f"DataLoader(list(range(8)), **{passed})", NO_WORKERS, options=seen)
    assert line_of(tmp_path, "loader").endswith(expected)
    assert prints(tmp_path).startswith("0 ")


@pytest.mark.parametrize(
    ("call", "change", "options", "why"),
    [
        ("DataLoader(*[list(range(8))])", WORKERS, SEEN, "arguments on with a star"),
        ("DataLoader(list(range(8)), **kwargs, **{})", WORKERS, SEEN, "several mappings"),
        (STARRED, WORKERS, {}, "not seen"),
        ("DataLoader(list(range(8)), **batches)", LARGER, {**SEEN, "batch_size": None}, "batch_sampler"),
    ],
)
def test_what_cannot_be_merged_stays_with_the_plan(
    tmp_path: Path, call: str, change: Change, options: dict[str, Any], why: str
) -> None:
    patch = called(tmp_path, call, change, options=options)
    assert (patch.diff, patch.changes[0].how) == ("", "plan only")
    assert why in patch.changes[0].reason


def test_an_option_that_is_made_whole_is_changed_at_its_default(tmp_path: Path) -> None:
    patch = called(tmp_path, "DataLoader(list(range(8)), num_workers=int(opt.workers))", WORKERS)
    assert patch.changes[0].reason == ""
    assert line_of(tmp_path, 'parser.add_argument("-j"').endswith("default=2)")
    assert [prints(tmp_path, *words)[0] for words in ((), ("-j3",))] == ["2", "3"]


@pytest.mark.parametrize(
    ("computed", "change", "option"),
    [
        ("num_workers=max(1, opt.workers // 2)", WORKERS, "--workers"),
        ("pin_memory=not opt.no_cuda", PINNED, "--no-cuda"),
    ],
)
def test_what_is_computed_of_options_alone_is_replaced_and_said(
    tmp_path: Path, computed: str, change: Change, option: str
) -> None:
    patch = called(tmp_path, f"DataLoader(list(range(8)), {computed})", change)
    name, _, old = computed.partition("=")
    new = change.setting[name]
    assert line_of(tmp_path, "loader") == f"loader = DataLoader(list(range(8)), {name}={new})"
    told = f"{option} no longer decides what {old} was: {new} stands in its place"
    assert [(row.how, row.reason) for row in patch.changes] == [("patched", told)]
    assert str(new) in prints(tmp_path)


@pytest.mark.parametrize(
    ("computed", "words", "options", "why"),
    [
        ("min(cores, opt.workers)", (), SEEN, "computes it"),
        ("opt.unknown // 2", (), SEEN, "computes it"),
        ("self.workers", (), SEEN, "takes it from self.workers, which no one line was seen to set"),
        ("int(opt.workers)", (), {**SEEN, "num_workers": 6}, "6 does"),
        ("opt.workers // 2", ("-j4",), SEEN, "the command gives -j4"),
        ("int(opt.workers)", ("--workers=4",), SEEN, "the command gives --workers"),
    ],
)
def test_what_another_decides_too_is_written_into_the_call(
    tmp_path: Path, computed: str, words: tuple[str, ...], options: dict[str, Any], why: str
) -> None:
    call = f"DataLoader(list(range(8)), num_workers={computed})"
    patch = called(tmp_path, call, WORKERS, words=words, options=options)
    assert "num_workers=2" in line_of(tmp_path, "loader")
    assert [row.how for row in patch.changes] == ["patched"]
    assert why in patch.changes[0].reason


APART = """from torch.utils.data import DataLoader
from settings.options import parse
args = parse()
loader = DataLoader(list(range(8)), num_workers=args.workers)
print(loader.num_workers)
"""
PARSER = """import argparse


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=1)
    return parser.parse_args()
"""


def apart(folder: Path, options: dict[str, Any], more: str = "") -> ScriptPatch:
    """The patch of a script whose options are in a package beside it."""
    (folder / "settings").mkdir()
    (folder / "settings" / "options.py").write_text(PARSER + more)
    (folder / "unrelated.py").write_text(PARSER)
    return patched(sites_of(folder, APART, "loader = ", options=options), WORKERS)


def test_a_default_in_another_file_is_changed_where_it_is_what_arrives(tmp_path: Path) -> None:
    patch = apart(tmp_path, SEEN)
    assert patch.diff.count("+++ ") == 1
    assert "+++ b/settings/options.py" in patch.diff
    assert [prints(tmp_path, *words) for words in ((), ("--workers=1",))] == ["2", "1"]


def test_a_default_in_another_file_that_was_not_seen_to_arrive_is_left_and_the_call_has_the_value(
    tmp_path: Path,
) -> None:
    patch = apart(tmp_path, {})
    assert "+++ b/train.py" in patch.diff
    assert "--workers no longer decides" in patch.changes[0].reason
    assert prints(tmp_path) == "2"


@pytest.mark.parametrize(
    ("options", "more", "why"),
    [
        ({**SEEN, "num_workers": 3}, "", "settings/options.py:6 gives --workers a default that is not"),
        (
            SEEN,
            '\n\ndef other(parser):\n    parser.add_argument("--workers", default=4)\n',
            "takes it from args.workers",
        ),
    ],
)
def test_a_default_in_another_file_that_does_not_decide_alone_stays(
    tmp_path: Path, options: dict[str, Any], more: str, why: str
) -> None:
    patch = apart(tmp_path, options, more)
    assert "+++ b/settings" not in patch.diff
    assert "num_workers=2" in patch.diff
    assert why in patch.changes[0].reason


PICKED = f"""{WIDE}
import torch

opts = {{"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}}
name = "AdamW"
kind = getattr(torch.optim, name)
model = torch.nn.Linear(2, 2)
optimizer = CALL
print(optimizer.defaults["fused"], optimizer.defaults["lr"])
"""


def picked(folder: Path, call: str) -> ScriptPatch:
    """The patch of a script that picks its optimizer's class as it runs."""
    site = {"kind": "optimizer", "call": "AdamW", "options": {"lr": 0.1, "fused": None}}
    return patched(sites_of(folder, PICKED.replace("CALL", call), "optimizer = ", **site), FUSED)


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ('opts["adamw"](model.parameters(), lr=0.1)', 'opts["adamw"]'),
        ("kind(filter(lambda p: p.requires_grad, model.parameters()), lr=0.1)", "kind"),
        ("getattr(torch.optim, name)(model.parameters(), lr=0.1)", "getattr(torch.optim, name)"),
    ],
)
def test_a_class_that_is_picked_gets_arguments_and_its_user_is_told(tmp_path: Path, call: str, what: str) -> None:
    patch = picked(tmp_path, call)
    assert line_of(tmp_path, "optimizer") == f"optimizer = {call[:-1]}, fused=True)"
    told = f"AdamW was seen, and {what} may make another, which must take this, too"
    assert [(row.how, row.reason) for row in patch.changes] == [("patched", told)]
    assert prints(tmp_path) == "True 0.1"


@pytest.mark.parametrize(
    "call", ['opts["adamw"]([{"params": opts["p"](model), "lr": 0.1}])', "build(model)", "wrapped.optimizer(model)"]
)
def test_a_line_that_does_not_show_which_call_makes_the_optimizer_is_left_alone(tmp_path: Path, call: str) -> None:
    patch = picked(tmp_path, call)
    assert (patch.diff, patch.changes[0].how) == ("", "plan only")
    assert "calls of AdamW" in patch.changes[0].reason


def test_an_argument_that_a_picked_class_has_already_is_nothing_to_tell_of(tmp_path: Path) -> None:
    text = PICKED.replace("CALL", "kind(model.parameters(), lr=0.1)")
    text += "loader = torch.utils.data.DataLoader([], batch_size=32)\n"
    loader = sites_of(tmp_path, text, "loader = ").sites
    site = {"kind": "optimizer", "call": "AdamW", "options": {"lr": 0.1}}
    sites = sites_of(tmp_path, text, "optimizer = ", **site)
    doubled = LARGER.model_copy(update={"setting": {**LARGER.setting, "learning_rate_factor": 2.0}})
    patch = patched(sites.model_copy(update={"sites": (*sites.sites, *loader)}), doubled)
    assert [(row.how, row.reason) for row in patch.changes] == [("patched", "")]
    assert line_of(tmp_path, "optimizer") == "optimizer = kind(model.parameters(), lr=0.2)"


def with_validation(folder: Path, call: str) -> Sites:
    """Sites of a training's loader, and of a validation's that this call makes."""
    text = LOADER.replace("CALL", "DataLoader(list(range(8)), num_workers=opt.workers)") + f"valid = {call}\n"
    valid = sites_of(folder, text, "valid = ", kind="loader_validation").sites
    sites = sites_of(folder, text, "loader = ")
    return sites.model_copy(update={"sites": (*sites.sites, *valid)})


def test_a_default_of_two_loaders_is_left_to_one_of_them(tmp_path: Path) -> None:
    sites = with_validation(tmp_path, "DataLoader(list(range(8)), num_workers=opt.workers)")
    other = Change(strategy="validation_loader", setting={"num_workers": 3})
    patch = patched(sites, WORKERS, other)
    assert [row.how for row in patch.changes] == ["patched", "patched"]
    assert line_of(tmp_path, 'parser.add_argument("-j"').endswith("default=2)")
    assert line_of(tmp_path, "valid = ").endswith("num_workers=3)")


def test_kept_validation_samples_go_around_the_dataset_of_its_loader_alone(tmp_path: Path) -> None:
    sites = with_validation(tmp_path, "DataLoader(list(range(4)), batch_size=2, num_workers=opt.workers)")
    kept = {"samples": {"where": "memory", "workers": 2}, "num_workers": 0, "batch_size": 4}
    patch = patched(sites, Change(strategy="validation_loader", setting=kept))
    assert [row.how for row in patch.changes] == ["patched"]
    line = line_of(tmp_path, "valid = ")
    assert line == "valid = DataLoader(KeptSamples(list(range(4)), workers=2), batch_size=4, num_workers=0)"
    assert "KeptSamples" not in line_of(tmp_path, "loader = ")
    assert "class KeptSamples" in (tmp_path / "prepared.py").read_text()


@pytest.mark.parametrize("kind", ["loader_training", "loader_validation"])
def test_calls_on_one_line_are_told_apart_by_where_they_end(tmp_path: Path, kind: SiteKind) -> None:
    line = 'return data.DataLoader(train, shuffle="ü"), data.DataLoader(valid)'
    (tmp_path / "train.py").write_text(f"from torch.utils import data\n\n\ndef loaders(train, valid):\n    {line}\n")
    first, second = line.index("), ") + 1, len(line)
    ends = {"loader_training": first + 4 + 1, "loader_validation": second + 4 + 1}  # bytes: one letter has two
    here = {"file": "train.py", "line": 5, "end_line": 5, "call": "DataLoader"}
    sites = tuple(Site(**here, kind=each, end_column=end) for each, end in ends.items())
    found = Sites(command=("python", "train.py"), cwd=str(tmp_path), sites=sites)
    change = WORKERS if kind == "loader_training" else Change(strategy="validation_loader", setting=WORKERS.setting)
    patch = put(found, change).patch
    assert [row.how for row in patch.changes] == ["patched"]
    options = ", num_workers=2)"
    changed = [text[1:].strip() for text in patch.diff.splitlines() if text.startswith("+    ")]
    expected = {
        "loader_training": line.replace("), ", options + ", ", 1),
        "loader_validation": line[:-1] + options,
    }
    assert changed == [expected[kind]]
