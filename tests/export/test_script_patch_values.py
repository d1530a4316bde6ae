"""Where a value is changed: at the call, at what makes it, in a file of options, or in place of what computes it."""

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

from autoopt.export.applying import apply_diff
from autoopt.records import Change, ScriptPatch, Site, SiteKind, Sites
from scripted import BF16, FUSED, SEEN, changed_lines, places, put, sites_of

WORKERS = Change(strategy="workers", setting={"num_workers": 2})
PERSISTENT = Change(strategy="workers", setting={"num_workers": 2, "persistent_workers": True})
NO_WORKERS = Change(strategy="workers", setting={"num_workers": 0})
PINNED = Change(strategy="pin_memory", setting={"pin_memory": True, "non_blocking": False})
LARGER = Change(strategy="batch_size", setting={"size": 64, "learning_rate_factor": 1.0, "warmup_steps": 0})

WIDE = "# a line of a script whose lines are long: " + 120 * "-"
HEAD = f"{WIDE}\nimport torch\nfrom torch.utils.data import DataLoader\n"
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


def patched(sites: Sites, *changes: Change) -> ScriptPatch:
    """The patch, put on the files by git, which then are what was promised."""
    folder, found = Path(sites.cwd), put(sites, *changes)
    patch, after = found.patch, found.texts
    assert bool(after) == bool(patch.diff)
    if patch.diff:
        (folder / "patch.diff").write_text(patch.diff)
        subprocess.run(["git", "apply", "patch.diff"], cwd=folder, check=True, capture_output=True)
    for name, text in after.items():
        if name.endswith(".py"):
            compile(text, name, "exec")
        assert (folder / name).read_bytes() == text.encode()
    return patch


def called(folder: Path, call: str, *changes: Change, words: tuple[str, ...] = (), **site: Any) -> ScriptPatch:
    """The patch of a script with one call of a DataLoader."""
    return patched(sites_of(folder, LOADER.replace("CALL", call), "loader = ", *words, **site), *changes)


def following(
    folder: Path, text: str, *changes: Change, files: dict[str, str] | None = None, words: tuple[str, ...] = (),
    start: str = "DataLoader(", **site: Any,
) -> ScriptPatch:  # fmt: skip
    """The patch of a script whose call takes a value from elsewhere: from other lines, or from these files."""
    for name, content in (files or {}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode())
    (folder / "train.py").write_text(HEAD + text)
    made = {"kind": "loader_training", "call": "DataLoader", **site}
    found = Site(**places(HEAD + text, start)[0].model_dump(), **made)
    return patched(Sites(command=("python", "train.py", *words), cwd=str(folder), sites=(found,)), *changes)


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


NODE = """\
class Node:
    pass


def default():
    C = Node()
    C.batch_size = 8
    C.num_workers = 0
    return C
"""
FROM_CONFIG = "from cfg import default\nconfig = default()\nDataLoader(data, 4, num_workers=config.num_workers)\n"
CONSTANT = {"constants.py": "WORKERS = 0\n"}
CLASS = {"pkg/__init__.py": "", "pkg/config.py": "class Config:\n    workers: int = 0\n"}
SPACES = {"conf.py": "from types import SimpleNamespace as Space\ncfg = Space(data=Space(\n  num_workers=0))\n"}


@pytest.mark.parametrize(
    ("text", "files", "changed"),
    [
        ("import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--workers', default=0)\n"
         "args = parser.parse_args()\nworkers = args.workers\nDataLoader(data, 4, num_workers=workers)\n", {},
         "parser.add_argument('--workers', default=2)"),
        ("@dataclass\nclass Config:\n    workers: int = 0\n"
         "cfg = Config()\nDataLoader(data, 4, num_workers=cfg.workers)\n", {}, "    workers: int = 2"),
        ("workers, epochs = 0, 3\nDataLoader(data, 4, num_workers=workers)\n", {}, "workers, epochs = 2, 3"),
        ("epochs, workers = 3, 0\nDataLoader(data, 4, num_workers=workers)\n", {}, "epochs, workers = 3, 2"),
        ("CFG = {'workers': 0}\nDataLoader(data, 4, num_workers=CFG['workers'])\n", {}, "CFG = {'workers': 2}"),
        ("def load(data, workers=0):\n    return DataLoader(data, 4, num_workers=workers)\nload(data)\n", {},
         "def load(data, workers=2):"),
        ("def load(data, workers=1):\n    return DataLoader(data, 4, num_workers=workers)\nload(data, 0)\n", {},
         "load(data, 2)"),
        ("class Trainer:\n    def __init__(self, data, workers=0):\n        self.workers = workers\n"
         "    def loader(self):\n        return DataLoader(data, 4, num_workers=self.workers)\n"
         "Trainer(data).loader()\n", {}, "    def __init__(self, data, workers=2):"),
        ("class Data(LightningDataModule):\n    def __init__(self, size=4, workers: int = 0):\n"
         "        super().__init__()\n        self.save_hyperparameters()\n    def train_dataloader(self):\n"
         "        return DataLoader(data, self.hparams.size, num_workers=self.hparams.workers)\nfit(Data(8))\n", {},
         "    def __init__(self, size=4, workers: int = 2):"),
        (FROM_CONFIG, {"cfg.py": NODE}, "    C.num_workers = 2"),
        *((f"{imported}\nDataLoader(data, 4, num_workers={name})\n", CONSTANT, "WORKERS = 2")
          for imported, name in (("from constants import WORKERS", "WORKERS"), ("from constants import *", "WORKERS"),
                                 ("import constants as c", "c.WORKERS"))),
        ("from pkg.config import Config\ncfg = Config()\nDataLoader(data, 4, num_workers=cfg.workers)\n", CLASS,
         "    workers: int = 2"),
        ("from conf import cfg\nDataLoader(data, 4, num_workers=cfg.data.num_workers)\n", SPACES,
         "  num_workers=2))"),
    ],
)  # fmt: skip
def test_a_value_is_changed_where_it_is_made(tmp_path: Path, text: str, files: dict[str, str], changed: str) -> None:
    patch = following(tmp_path, text, WORKERS, files=files, options={"num_workers": 0, "batch_size": 4})
    assert [(change.how, change.reason) for change in patch.changes] == [("patched", "")]
    (name,) = [name for name, content in files.items() if content] or ["train.py"]
    assert re.findall(r"^\+\+\+ b/(.*)$", patch.diff, re.MULTILINE) == [name]
    removed, added = changed_lines(patch.diff)
    assert removed.startswith("-")
    assert added == f"+{changed}"


def given(computed: str) -> str:
    """A script whose call takes a number of workers that is computed of its options."""
    return LOADER.removeprefix(HEAD).replace("CALL", f"DataLoader(list(range(8)), num_workers={computed})")


PARSER = """import argparse


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=1)
    return parser.parse_args()
"""
OTHER_PARSER = '\n\ndef other(parser):\n    parser.add_argument("--workers", default=4)\n'
APART = """\
from settings.options import parse
args = parse()
loader = DataLoader(list(range(8)), num_workers=args.workers)
print(loader.num_workers)
"""
FROM_FILE = "import hydra\ncfg = hydra.compose('train')\nDataLoader(data, 4, num_workers=cfg.data.num_workers)\n"
NO_ONE_LINE = "which no one line was seen to set"


@pytest.mark.parametrize(
    ("text", "seen", "reason", "files", "words"),
    [
        ("class Config:\n    workers: int = 0\n"
         "cfg = Config(workers=given)\nDataLoader(data, 4, num_workers=cfg.workers)\n", 3,
         f"takes it from cfg.workers, {NO_ONE_LINE}", {}, ()),
        *(("CFG = {'workers': 0}\nCFG.update(read())\nDataLoader(data, 4, num_workers=CFG['workers'])\n", seen,
           "takes it from CFG['workers'], which no one line", {}, ()) for seen in (0, 1)),
        ("def load(workers=0):\n    return DataLoader(data, 4, num_workers=workers)\nload()\nload(1)\n", 0,
         "whose workers it is, in 2 places", {}, ()),
        ("def load(workers=0):\n    return DataLoader(data, 4, num_workers=workers)\nload()\n", 5,
         "not what arrives: 5 does", {}, ()),
        ("class Data(LightningDataModule):\n    def __init__(self, workers: int = 0):\n"
         "        self.save_hyperparameters('size')\n    def train_dataloader(self):\n"
         "        return DataLoader(data, num_workers=self.hparams.workers)\nfit(Data())\n", 0,
         f"takes it from self.hparams.workers, {NO_ONE_LINE}", {}, ()),
        ("a = b\nb = a\nDataLoader(data, 4, num_workers=a)\n", 0, "takes it from b", {}, ()),
        # of options of the command
        (given("min(cores, opt.workers)"), 1, "computes it", {}, ()),
        (given("opt.unknown // 2"), 1, "computes it", {}, ()),
        (given("self.workers"), 1, f"takes it from self.workers, {NO_ONE_LINE}", {}, ()),
        (given("int(opt.workers)"), 6, "6 does", {}, ()),
        (given("opt.workers // 2"), 1, "the command gives -j4", {}, ("-j4",)),
        (given("int(opt.workers)"), 1, "the command gives --workers", {}, ("--workers=4",)),
        # in other files
        (APART, None, "--workers no longer decides", {"settings/options.py": PARSER}, ()),
        (APART, 3, "settings/options.py:6 gives --workers a default that is not", {"settings/options.py": PARSER}, ()),
        (APART, 1, "takes it from args.workers", {"settings/options.py": PARSER + OTHER_PARSER}, ()),
        *((FROM_FILE, 4, NO_ONE_LINE, files, ()) for files in (
            {"conf/other.yaml": "data:\n  num_workers: 4  # as many as cores\n"},
            {"conf.json": '{"num_workers": 4, "x": 1}\n'},  # several keys on a line
            {"a.yaml": "num_workers: 4\n", "b.yaml": "num_workers: 4\n"},
            {"conf/train.yaml": "num_workers: 8\n"},
            {".hidden/a.yaml": "num_workers: 4\n"})),
        *((FROM_FILE, 4, f"the command gives {word[:-2]}", {"a.yaml": "num_workers: 4\n"}, (word,))
          for word in ("data.num_workers=4", "--data.num-workers=4")),
    ],
)  # fmt: skip
def test_what_more_than_one_place_decides_is_written_into_the_call(
    tmp_path: Path, text: str, seen: int | None, reason: str, files: dict[str, str], words: tuple[str, ...]
) -> None:
    """The call is what ran with the value; a person who keeps the setting finds its place in the note."""
    options = {} if seen is None else {"num_workers": seen, "batch_size": 4}
    patch = following(tmp_path, text, WORKERS, files=files, words=words, options=options)
    removed, added = changed_lines(patch.diff)
    assert added[1:] == f"{removed[1 : removed.index('num_workers=')]}num_workers=2)"
    (change,) = patch.changes
    assert (change.how, change.file) == ("patched", "train.py")
    assert reason in change.reason
    assert re.search("; 2 stands in the call in its place$|: 2 stands in its place$", change.reason)


def test_an_option_that_is_made_whole_is_changed_at_its_default(tmp_path: Path) -> None:
    patch = called(tmp_path, "DataLoader(list(range(8)), num_workers=int(opt.workers))", WORKERS)
    assert patch.changes[0].reason == ""
    assert line_of(tmp_path, 'parser.add_argument("-j"').endswith("default=2)")
    assert [prints(tmp_path, *words)[0] for words in ((), ("-j3",))] == ["2", "3"]


def test_a_default_in_another_file_is_changed_where_it_is_what_arrives(tmp_path: Path) -> None:
    files = {"settings/options.py": PARSER, "unrelated.py": PARSER}
    patch = following(tmp_path, APART, WORKERS, files=files, options=SEEN)
    assert re.findall(r"^\+\+\+ b/(.*)$", patch.diff, re.MULTILINE) == ["settings/options.py"]
    assert [prints(tmp_path, *words) for words in ((), ("--workers=1",))] == ["2", "1"]


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


def test_lines_that_set_it_to_something_else_than_arrived_are_not_in_question(tmp_path: Path) -> None:
    text = "import other\nconfig = other.C\nDataLoader(data, 4, num_workers=config.num_workers)\n"
    files = {"cfg.py": NODE, "other.py": "import cfg\nC = cfg.default()\nC.num_workers = 8\n"}
    options = {"num_workers": 8, "batch_size": 4}
    assert "+++ b/other.py" in following(tmp_path, text, WORKERS, files=files, options=options).diff
    files["other.py"] += "C.num_workers = read()\n"
    patch = following(tmp_path, text, WORKERS, files=files, options=options)
    assert NO_ONE_LINE in patch.changes[0].reason
    assert "other.py" not in patch.diff


@pytest.mark.parametrize(
    ("imports", "name", "text", "changed"),
    [
        (
            "import hydra\ncfg = hydra.compose('train')",
            "conf/train.yaml",
            "data:\n  batch_size: 8\n  num_workers: 4  # not 8\n",
            "  num_workers: 2  # not 8",
        ),
        ("cfg = json.load(open('c.json'))", "c.json", '{\n  "num_workers": 4,\n  "x": 1}\n', '  "num_workers": 2,'),
        ("cfg = toml.load('c.toml')", "c.toml", "[data]\r\nnum_workers = 4\r\n", "num_workers = 2"),
        ("cfg = OmegaConf.load('c.yaml')", "c.yaml", "num_workers: 4", "num_workers: 2"),
    ],
    ids=["YAML that is named by its stem", "JSON", "TOML", "no line's end"],
)
def test_a_value_is_changed_in_the_file_that_the_script_reads(
    tmp_path: Path, imports: str, name: str, text: str, changed: str
) -> None:
    script = f"{imports}\nDataLoader(data, 4, num_workers=cfg.data.num_workers)\n"
    options = {"num_workers": 4, "batch_size": 4}
    patch = following(tmp_path, script, PERSISTENT, options=options)
    assert "no one line" in patch.changes[0].reason, "the file is not there yet"
    patch = following(tmp_path, script, PERSISTENT, files={name: text}, options=options)
    assert [change.how for change in patch.changes] == ["patched"]
    assert "persistent_workers=True" in patch.diff
    after = (tmp_path / name).read_bytes().decode()
    assert changed in after.splitlines()
    assert after == text.replace("4", "2")
    assert set(apply_diff(patch.diff, tmp_path, revert=True)) == {name, "train.py"}
    assert (tmp_path / name).read_bytes() == text.encode()


@pytest.mark.parametrize("value", ["os.cpu_count()", "os.cpu_count() // 2", "min(8, os.cpu_count() or 1)", "WORKERS"])
def test_what_asks_the_machine_becomes_the_number(tmp_path: Path, value: str) -> None:
    text = f"import os\nWORKERS = len(os.sched_getaffinity(0))\nDataLoader(data, 4, num_workers={value})\n"
    patch = following(tmp_path, text, WORKERS, options={"num_workers": 4, "batch_size": 4})
    assert [change.how for change in patch.changes] == ["patched"]
    assert ("+WORKERS = 2" if value == "WORKERS" else "num_workers=2") in patch.diff


ARGS = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument('--batch-size', type=int, default=4)
args = parser.parse_args()
"""
BY_ARGS = "DataLoader(seen, args.batch_size)\n"


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        (f"{ARGS}train = Stream(data, args.batch_size)\n{BY_ARGS}", "DataLoader(seen, 64)"),
        (f"{ARGS}train = Stream(data, args.batch_size)\nsize = args.batch_size\nDataLoader(seen, size)\n",
         "(seen, 64)"),
        (f"{ARGS}{BY_ARGS}", "parser.add_argument('--batch-size', type=int, default=64)"),
        ("size = 4\ntrain = DataLoader(data, size)\nDataLoader(seen, size)\n", "DataLoader(seen, 64)"),
        ("size = 4\nDataLoader(seen, size)\n", "size = 64"),
        ("def loaders(size=4):\n    return Stream(data, size), DataLoader(seen, batch_size=size)\nloaders()\n",
         "return Stream(data, size), DataLoader(seen, batch_size=64)"),
        ("CFG = {'size': 4}\nStream(data, CFG['size'])\nDataLoader(seen, CFG['size'])\n", "DataLoader(seen, 64)"),
    ],
)  # fmt: skip
def test_an_argument_of_evaluation_never_reaches_the_training(tmp_path: Path, text: str, changed: str) -> None:
    evaluation = Change(strategy="validation_loader", setting={"batch_size": 64})
    site = {"start": "DataLoader(seen", "kind": "loader_validation", "options": {"batch_size": 4}}
    removed, added = changed_lines(following(tmp_path, text, evaluation, **site).diff)
    assert removed.startswith("-")
    assert added.endswith(changed)


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


def both_sites(folder: Path, text: str, start: str, **site: Any) -> Sites:
    """Sites of the training's loader, and of what is made where the text begins so."""
    other = sites_of(folder, text, start, **site).sites
    sites = sites_of(folder, text, "loader = ")
    return sites.model_copy(update={"sites": (*sites.sites, *other)})


def test_an_argument_that_a_picked_class_has_already_is_nothing_to_tell_of(tmp_path: Path) -> None:
    text = PICKED.replace("CALL", "kind(model.parameters(), lr=0.1)")
    text += "loader = torch.utils.data.DataLoader([], batch_size=32)\n"
    sites = both_sites(tmp_path, text, "optimizer = ", kind="optimizer", call="AdamW", options={"lr": 0.1})
    doubled = LARGER.model_copy(update={"setting": {**LARGER.setting, "learning_rate_factor": 2.0}})
    assert [(row.how, row.reason) for row in patched(sites, doubled).changes] == [("patched", "")]
    assert line_of(tmp_path, "optimizer") == "optimizer = kind(model.parameters(), lr=0.2)"


def with_validation(folder: Path, call: str) -> Sites:
    """Sites of a training's loader, and of a validation's that this call makes."""
    text = LOADER.replace("CALL", "DataLoader(list(range(8)), num_workers=opt.workers)") + f"valid = {call}\n"
    return both_sites(folder, text, "valid = ", kind="loader_validation")


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


# Calls that outgrow their line, and arguments of a library's Trainer.

NARROW = "import torch\nfrom torch.utils.data import DataLoader\n"


@pytest.mark.parametrize(
    ("text", "change", "added"),
    [
        ("return DataLoader(data, batch_size=4, shuffle=True)",
         {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True},
         ["return DataLoader(", "    data,", "    batch_size=4,", "    shuffle=True,", "    num_workers=2,",
          "    prefetch_factor=4,", "    persistent_workers=True,", ")"]),
        ("of_all_that_is_there = DataLoader(data, batch_size=4, shuffle=True)",
         {"num_workers": 2, "persistent_workers": True},
         ["of_all_that_is_there = DataLoader(",
          "    data, batch_size=4, shuffle=True, num_workers=2, persistent_workers=True", ")"]),
    ],
)  # fmt: skip
def test_a_call_that_outgrows_its_line_is_broken_as_a_formatter_would(
    tmp_path: Path, text: str, change: dict[str, Any], added: list[str]
) -> None:
    sites = sites_of(tmp_path, f"{NARROW}def load(data):\n    {text}\n", "DataLoader(data")
    patch = patched(sites, Change(strategy="workers", setting=change))
    assert changed_lines(patch.diff)[1:] == [f"+    {line}" for line in added]


TRAINER = {"kind": "trainer", "call": "TrainingArguments"}


def test_arguments_of_a_trainer_that_are_passed_on(tmp_path: Path) -> None:
    text = "from transformers import TrainingArguments\nwanted = TrainingArguments(**kwargs)\n"
    patch = following(tmp_path, text, BF16, WORKERS, start="TrainingArguments(", **TRAINER)
    wanted = 'wanted = TrainingArguments(**{**kwargs, "bf16": True, "dataloader_num_workers": 2})'
    assert changed_lines(patch.diff)[1:] == [f"+{wanted}"]


@pytest.mark.parametrize(
    ("call", "words", "told"),
    [
        ("parse_yaml_file(path)", ("conf/run.yaml",), "train.py:1 reads it from a file: write"
         ' "dataloader_num_workers": 2, "dataloader_persistent_workers": true into conf/run.yaml'),
        ("parse_args_into_dataclasses()", (), "train.py:1 reads it from the command: add"
         " --dataloader_num_workers 2 --dataloader_persistent_workers True to it"),
        ("parse_json_file(path)", (),
         "give what it makes dataloader_num_workers=2, dataloader_persistent_workers=True"),
        ("parse_dict(read())", ("a.yaml",), "train.py:1 has no call of TrainingArguments: give"),
    ],
)  # fmt: skip
def test_arguments_of_a_trainer_that_a_parser_makes_are_told(
    tmp_path: Path, call: str, words: tuple[str, ...], told: str
) -> None:
    sites = sites_of(tmp_path, f"wanted, = parser.{call}\n", "wanted", *words, **TRAINER)
    (change,) = patched(sites, PERSISTENT).changes
    assert change.how == "by hand"
    assert told in change.reason


def test_a_loader_that_a_library_listens_to_is_patched_where_the_user_makes_it(tmp_path: Path) -> None:
    sites = sites_of(tmp_path, f"{NARROW}def train_dataloader(data):\n    return DataLoader(data, 4)\n",
                     "DataLoader(data", direct=False)  # fmt: skip
    (heard,) = sites.sites
    made = sites.model_copy(update={"sites": (heard.model_copy(update={"line": 2, "end_line": 2}),)})
    (change,) = patched(made, WORKERS).changes
    assert (change.how, "a library makes it" in change.reason) == ("plan only", True), change.reason
    assert changed_lines(patched(sites, WORKERS).diff)[1:] == ["+    return DataLoader(data, 4, num_workers=2)"]
