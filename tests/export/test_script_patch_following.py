"""Arguments whose value is made elsewhere in the file, calls that outgrow their line, and trainers' arguments."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from autoopt.export.script_patch.editing import diff_of
from autoopt.export.script_patch.placing import Placing
from autoopt.export.script_patch.source import NoHonestEditError
from autoopt.records import Site, Sites
from autoopt.strategy import Edit
from scripted import changed_lines, places

HEAD = "import torch\nfrom torch.utils.data import DataLoader\n"


def site_of(text: str, start: str, **site: Any) -> Site:
    """The site of the first call whose source begins so."""
    return Site(**places(text, start)[0].model_dump(), **site)


def placed(folder: Path, text: str, site: Site, *edits: Edit) -> list[str]:
    """The lines that the patch takes out and puts in."""
    (folder / "train.py").write_text(text)
    placing = Placing(Sites(command=("python", "train.py"), cwd=str(folder), sites=(site,)))
    for edit in edits:
        placing.place(edit)
    edited = placing.files["train.py"]
    compile(edited.code(), "train.py", "exec")
    return changed_lines(diff_of(text, edited.code(), "train.py"))


def loader_in(text: str, seen: int = 0) -> Site:
    options = {"num_workers": seen, "batch_size": 4}
    return site_of(text, "DataLoader(", kind="loader_training", call="DataLoader", options=options)


WORKERS = Edit("loader", arguments={"num_workers": 2})


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        (
            "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--workers', default=0)\n"
            "args = parser.parse_args()\nworkers = args.workers\nDataLoader(data, 4, num_workers=workers)\n",
            "parser.add_argument('--workers', default=2)",
        ),
        (
            "@dataclass\nclass Config:\n    workers: int = 0\n"
            "cfg = Config()\nDataLoader(data, 4, num_workers=cfg.workers)\n",
            "    workers: int = 2",
        ),
        ("workers, epochs = 0, 3\nDataLoader(data, 4, num_workers=workers)\n", "workers, epochs = 2, 3"),
        ("epochs, workers = 3, 0\nDataLoader(data, 4, num_workers=workers)\n", "epochs, workers = 3, 2"),
        ("CFG = {'workers': 0}\nDataLoader(data, 4, num_workers=CFG['workers'])\n", "CFG = {'workers': 2}"),
        (
            "def load(data, workers=0):\n    return DataLoader(data, 4, num_workers=workers)\nload(data)\n",
            "def load(data, workers=2):",
        ),
        (
            "def load(data, workers=1):\n    return DataLoader(data, 4, num_workers=workers)\nload(data, 0)\n",
            "load(data, 2)",
        ),
        (
            "class Trainer:\n    def __init__(self, data, workers=0):\n        self.workers = workers\n"
            "    def loader(self):\n        return DataLoader(data, 4, num_workers=self.workers)\n"
            "Trainer(data).loader()\n",
            "    def __init__(self, data, workers=2):",
        ),
        (
            "class Data(LightningDataModule):\n    def __init__(self, size=4, workers: int = 0):\n"
            "        super().__init__()\n        self.save_hyperparameters()\n"
            "    def train_dataloader(self):\n"
            "        return DataLoader(data, self.hparams.size, num_workers=self.hparams.workers)\n"
            "fit(Data(8))\n",
            "    def __init__(self, size=4, workers: int = 2):",
        ),
    ],
)
def test_a_value_is_changed_where_it_is_made(tmp_path: Path, text: str, changed: str) -> None:
    removed, added = placed(tmp_path, HEAD + text, loader_in(HEAD + text), WORKERS)
    assert removed.startswith("-")
    assert added == f"+{changed}"


@pytest.mark.parametrize(
    ("text", "seen", "reason"),
    [
        (
            "class Config:\n    workers: int = 0\n"
            "cfg = Config(workers=given)\nDataLoader(data, 4, num_workers=cfg.workers)\n",
            3,
            "takes it from cfg.workers, which no one line was seen to set",
        ),
        (
            "CFG = {'workers': 0}\nCFG.update(read())\nDataLoader(data, 4, num_workers=CFG['workers'])\n",
            1,
            "takes it from CFG.'workers'., which no one line",
        ),
        (
            "CFG = {'workers': 0}\nCFG.update(read())\nDataLoader(data, 4, num_workers=CFG['workers'])\n",
            0,
            "takes it from CFG.'workers'., which no one line",
        ),
        (
            "def load(workers=0):\n    return DataLoader(data, 4, num_workers=workers)\nload()\nload(1)\n",
            0,
            "whose workers it is, in 2 places",
        ),
        (
            "def load(workers=0):\n    return DataLoader(data, 4, num_workers=workers)\nload()\n",
            5,
            "not what arrives: 5 does",
        ),
        (
            "class Data(LightningDataModule):\n    def __init__(self, workers: int = 0):\n"
            "        self.save_hyperparameters('size')\n    def train_dataloader(self):\n"
            "        return DataLoader(data, num_workers=self.hparams.workers)\nfit(Data())\n",
            0,
            "takes it from self.hparams.workers, which no one line was seen to set",
        ),
        ("a = b\nb = a\nDataLoader(data, 4, num_workers=a)\n", 0, "takes it from b"),
    ],
)
def test_what_more_than_one_place_decides_is_written_into_the_call(
    tmp_path: Path, text: str, seen: int, reason: str
) -> None:
    """The call is what ran with the value; a person who keeps the setting finds its place in the note."""
    site = loader_in(HEAD + text, seen)
    removed, added = placed(tmp_path, HEAD + text, site, WORKERS)
    assert removed.replace(removed[removed.index("num_workers=") :].rstrip(")"), "num_workers=2") == f"-{added[1:]}"
    placing = Placing(Sites(command=("python", "train.py"), cwd=str(tmp_path), sites=(site,)))
    placing.place(WORKERS)
    (note,) = placing.notes
    assert re.search(reason, note)
    assert note.endswith("; 2 stands in the call in its place")


ARGS = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument('--batch-size', type=int, default=4)
args = parser.parse_args()
"""


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        (ARGS + "train = Stream(data, args.batch_size)\n@", "DataLoader(seen, 64)"),
        (
            ARGS + "train = Stream(data, args.batch_size)\nsize = args.batch_size\nDataLoader(seen, size)\n",
            "(seen, 64)",
        ),
        (ARGS + "@", "parser.add_argument('--batch-size', type=int, default=64)"),
        ("size = 4\ntrain = DataLoader(data, size)\nDataLoader(seen, size)\n", "DataLoader(seen, 64)"),
        ("size = 4\nDataLoader(seen, size)\n", "size = 64"),
        (
            "def loaders(size=4):\n    return Stream(data, size), DataLoader(seen, batch_size=size)\nloaders()\n",
            "return Stream(data, size), DataLoader(seen, batch_size=64)",
        ),
        ("CFG = {'size': 4}\nStream(data, CFG['size'])\nDataLoader(seen, CFG['size'])\n", "DataLoader(seen, 64)"),
    ],
)
def test_an_argument_of_evaluation_never_reaches_the_training(tmp_path: Path, text: str, changed: str) -> None:
    text = HEAD + text.replace("@", "DataLoader(seen, args.batch_size)\n")
    site = site_of(text, "DataLoader(seen", kind="loader_validation", call="DataLoader", options={"batch_size": 4})
    removed, added = placed(tmp_path, text, site, Edit("evaluation", arguments={"batch_size": 64}))
    assert removed.startswith("-")
    assert added.endswith(changed)


def test_a_call_that_outgrows_its_line_is_broken_as_a_formatter_would(tmp_path: Path) -> None:
    more = Edit("loader", arguments={"num_workers": 2, "prefetch_factor": 4, "persistent_workers": True})
    text = HEAD + "def load(data):\n    return DataLoader(data, batch_size=4, shuffle=True)\n"
    assert placed(tmp_path, text, loader_in(text), more)[1:] == [
        "+    return DataLoader(",
        "+        data,",
        "+        batch_size=4,",
        "+        shuffle=True,",
        "+        num_workers=2,",
        "+        prefetch_factor=4,",
        "+        persistent_workers=True,",
        "+    )",
    ]
    few = Edit("loader", arguments={"num_workers": 2, "pin_memory": True})
    assert placed(
        tmp_path,
        text.replace("return", "of_all_that_is_there ="),
        loader_in(text.replace("return", "of_all_that_is_there =")),
        few,
    )[1:] == [
        "+    of_all_that_is_there = DataLoader(",
        "+        data, batch_size=4, shuffle=True, num_workers=2, pin_memory=True",
        "+    )",
    ]


def test_arguments_of_a_trainer_that_are_passed_on(tmp_path: Path) -> None:
    text = "from transformers import TrainingArguments\nwanted = TrainingArguments(**kwargs)\n"
    site = site_of(text, "TrainingArguments(", kind="trainer", call="TrainingArguments")
    bf16 = Edit("trainer", arguments={"bf16": True, "dataloader_num_workers": 2})
    assert placed(tmp_path, text, site, bf16)[1:] == [
        '+wanted = TrainingArguments(**{**kwargs, "bf16": True, "dataloader_num_workers": 2})'
    ]


@pytest.mark.parametrize(
    ("call", "command", "told"),
    [
        (
            "parse_yaml_file(path)",
            ("python", "train.py", "conf/run.yaml"),
            'train.py:1 reads it from a file: write "bf16": true, "dataloader_num_workers": 2 into conf/run.yaml',
        ),
        (
            "parse_args_into_dataclasses()",
            ("python", "train.py"),
            "train.py:1 reads it from the command: add --bf16 True --dataloader_num_workers 2 to it",
        ),
        ("parse_json_file(path)", ("python", "train.py"), "give what it makes bf16=True, dataloader_num_workers=2"),
        ("parse_dict(read())", ("python", "train.py", "a.yaml"), "train.py:1 has no call of TrainingArguments: give"),
    ],
)
def test_arguments_of_a_trainer_that_a_parser_makes_are_told(
    tmp_path: Path, call: str, command: tuple[str, ...], told: str
) -> None:
    (tmp_path / "train.py").write_text(f"wanted, = parser.{call}\n")
    site = Site(kind="trainer", call="TrainingArguments", file="train.py", line=1, end_line=1)
    placing = Placing(Sites(command=command, cwd=str(tmp_path), sites=(site,)))
    with pytest.raises(NoHonestEditError) as caught:
        placing.place(Edit("trainer", arguments={"bf16": True, "dataloader_num_workers": 2}))
    assert told in str(caught.value)
    assert caught.value.by_hand


def test_a_loader_that_a_library_listens_to_is_patched_where_the_user_makes_it(tmp_path: Path) -> None:
    text = HEAD + "def train_dataloader(data):\n    return DataLoader(data, 4)\n"
    heard = loader_in(text).model_copy(update={"direct": False})
    assert placed(tmp_path, text, heard, WORKERS)[1:] == ["+    return DataLoader(data, 4, num_workers=2)"]
    made = heard.model_copy(update={"line": 2, "end_line": 2})
    with pytest.raises(NoHonestEditError, match="a library makes it"):
        placed(tmp_path, text, made, WORKERS)
