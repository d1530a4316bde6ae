"""Changes that a patch says by a file of its own: the whole diff, and the patched script run beside the untouched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import pytest

from autoopt.errors import UsageError
from autoopt.export.applying import apply_diff, patched_texts
from autoopt.export.script_patch import Placed
from autoopt.records import Change, Sites
from modules import printed_by
from scripted import changed_lines, put, sites_in

SCRIPT = '''\
"""Trains a net on rows that are worked out one by one."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, random_split


class Rows1(Dataset):
    transform = None

    def __init__(self):
        self.values = np.random.RandomState(0).rand(50, 4).astype("float32")

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        if self.transform:
            return self.transform(self.values[index]), index % 2
        return SAMPLE


def main():
    torch.manual_seed(3)
    train_set, test_set = random_split(Rows1(), [40, 10])
    loader = DataLoader(train_set, batch_size=7, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=10)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        for batch in loader:
            x, y = OPENED
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(type(batch).__name__, loss.item())
    print(sum(len(batch) for batch in test_loader), torch.rand(1).item())


if __name__ == "__main__":
    main()
'''
TUPLES = ("self.values[index], index % 2", "batch")
DICTS = ('{"x": self.values[index], "y": [index % 2]}', 'batch["x"], batch["y"][0]')
ADDED = "+from prepared import "


def prepared(form: str, where: str = "memory", **options: object) -> Change:
    return Change(strategy="prepared_samples", setting={"form": form, "where": where, **options})


WHOLE, KEPT = prepared("rows"), prepared("samples")
NONE = Change(strategy="workers", setting={"num_workers": 0})


@dataclass(frozen=True)
class Row:
    """One line of the table.

    ``edits``: of the script; ``lines``: that the patch changes in it; ``alike``: the datasets of both loaders were seen
    to be of one class.
    """

    plan: tuple[Change, ...]
    lines: tuple[str, ...]
    sample: tuple[str, str] = TUPLES
    edits: dict[str, str] = field(default_factory=dict)
    length: int = 100
    alike: bool = False

    @property
    def script(self) -> str:
        text = SCRIPT.replace("SAMPLE", self.sample[0]).replace("OPENED", self.sample[1])
        for old, new in self.edits.items():
            assert old in text
            text = text.replace(old, new)
        return text


LOADER, TEST = "DataLoader(train_set, batch_size=7, shuffle=True)", "DataLoader(test_set, batch_size=10)"
WITH_WORKERS = LOADER.replace("True)", "True, num_workers=2, prefetch_factor=4)")


def lines(
    names: str, *inside: str, test: tuple[str, ...] = (), before: str = LOADER, own: str = TEST
) -> tuple[str, ...]:
    """The changed lines of both loaders and of the import; ``before``, ``own``: their calls as they were."""
    removed = (f"-    loader = {before}", *([f"-    test_loader = {own}"] if test else []))
    return (f"{ADDED}{names}", *removed, *call("loader", *inside), *call("test_loader", *test))


def call(name: str, *inside: str) -> tuple[str, ...]:
    """The lines of a call, which is broken as a formatter would where it no longer fits its line."""
    if len(inside) == 1 and "DataLoader(" in inside[0]:
        return (f"+    {name} = {inside[0]}",)
    return (f"+    {name} = DataLoader(", *(f"+        {each}" for each in inside), "+    )") if inside else ()


def around(wrapped: str) -> str:
    return LOADER.replace("train_set", wrapped)


ROWS = ("Rows, collate_whole", "Rows(train_set), batch_size=7, shuffle=True, collate_fn=collate_whole")
COLLATES = (
    "-from torch.utils.data import DataLoader, Dataset, random_split",
    "+from torch.utils.data import DataLoader, Dataset, random_split, default_collate",
)
TRIMMED = (
    "Trimmed",
    "train_set,",
    "batch_size=7,",
    "shuffle=True,",
    "collate_fn=Trimmed(default_collate, multiple=8),",
)
TRIM = Change(strategy="trim_padding", setting={"multiple": 8})
HEAD = Change(strategy="chunked_loss", setting={"path": "", "rows": 64, "labelled": True})
MADE = "def make(data, shuffle):\n    return DataLoader(data, batch_size=7, shuffle=shuffle)\n\n\ndef main"
PICKED = """\
def make(both, train):
    data = both[0 if train else 1]
    return DataLoader(data, batch_size=7, shuffle=train)


def main"""
CHAIN = """\
class Chain:
    transforms = [np.sqrt, lambda x: x * torch.rand(1).item()]

    def __call__(self, x):
        for each in self.transforms:
            x = each(x)
        return x


class Rows1"""
TABLE = {
    "samples kept": Row((KEPT,), lines("KeptSamples", around("KeptSamples(train_set)"))),
    "samples kept, read by threads": Row(
        (prepared("samples", threads=4),),
        lines(
            "KeptSamples, ThreadedSamples",
            "KeptSamples(ThreadedSamples(train_set, threads=4)), batch_size=7, shuffle=True",
        ),
        length=105,
    ),
    "samples kept, no workers": Row(
        (KEPT, NONE),
        lines(
            "KeptSamples",
            around("KeptSamples(train_set)").replace("True)", "True, num_workers=0)"),
            before=WITH_WORKERS,
        ),
        edits={LOADER: WITH_WORKERS},
    ),
    "samples in a file": Row(
        (prepared("samples", "disk"),), lines("MappedSamples", around("MappedSamples(train_set)")), length=175
    ),
    "rows of tuples": Row((WHOLE,), lines(*ROWS)),
    "rows of dicts": Row((WHOLE,), lines(*ROWS), DICTS),
    "rows, all by one index": Row(
        (prepared("rows", index="array"),),
        lines(
            "IndexedBatches, Rows, collate_whole",
            'Rows(IndexedBatches(train_set, index="array")),',
            "batch_size=7,",
            "shuffle=True,",
            "collate_fn=collate_whole,",
        ),
        length=120,
    ),
    "rows by their index": Row(
        (prepared("batches", "dataset", index="array"),),
        lines(
            "IndexedBatches, collate_whole",
            *(
                'IndexedBatches(train_set, index="array"),',
                "batch_size=7,",
                "shuffle=True,",
                "collate_fn=collate_whole,",
            ),
        ),
    ),
    "read by threads": Row(
        (prepared("threads", "dataset", threads=2),),
        lines("ThreadedSamples", "ThreadedSamples(train_set, threads=2), batch_size=7, shuffle=True"),
    ),
    "made by a function for both": Row(
        (KEPT,),
        (
            f"{ADDED}KeptSamples",
            "-    loader = make(train_set, True)",
            "+    loader = make(KeptSamples(train_set), True)",
        ),
        edits={"def main": MADE, LOADER: "make(train_set, True)", TEST: "make(test_set, False)"},
    ),
    "rows for evaluation as well": Row(
        (WHOLE,),
        lines(*ROWS, test=("DataLoader(Rows(test_set), batch_size=10, collate_fn=collate_whole)",)),
        alike=True,
    ),
    "samples for evaluation, whose batches it makes itself": Row(
        (KEPT,),
        lines(
            "KeptSamples",
            around("KeptSamples(train_set)"),
            test=("DataLoader(KeptSamples(test_set), batch_size=10, collate_fn=list)",),
            own=TEST.replace("10", "10, collate_fn=list"),
        ),
        edits={TEST: TEST.replace("10", "10, collate_fn=list")},
        length=110,
        alike=True,
    ),
    "set on the way, for both": Row(
        (KEPT,),
        (
            f"{ADDED}KeptSamples",
            "-    return DataLoader(data, batch_size=7, shuffle=train)",
            "+    return DataLoader(KeptSamples(data), batch_size=7, shuffle=train)",
        ),
        edits={
            "def main": PICKED,
            LOADER: "make((train_set, test_set), True)",
            TEST: "make((train_set, test_set), False)",
        },
        alike=True,
    ),
    "kept before the random transforms": Row(
        (prepared("heads", first=1),),
        lines("KeptHeads", around("KeptHeads(train_set, first=1)")),
        edits={"transform = None": "transform = Chain()", "class Rows1": CHAIN},
        length=140,
    ),
    "logits of rows with a label": Row(
        (HEAD,), (f"{ADDED}defer_head", '+    defer_head(model, path="", rows=64, labelled=True)'), length=320
    ),
    "short batches of ids": Row((TRIM,), (*COLLATES, *lines(*TRIMMED)), length=110),
    "short batches of ids, in evaluation, too": Row(
        (TRIM,),
        (
            *COLLATES,
            *lines(*TRIMMED, test=("test_set, batch_size=10, collate_fn=Trimmed(default_collate, multiple=8)",)),
        ),
        alike=True,
        length=110,
    ),
}


def sites_of(folder: Path, text: str, alike: bool = False) -> Sites:
    """Sites of one of these scripts, both loaders among them."""
    made = "DataLoader(data" if "def make" in text else "DataLoader(train_set"
    other = made if "def make" in text else "DataLoader(test_set"
    sites = sites_in(folder, text, loader_training=made, loader_validation=other)
    if alike:
        of_one = {"options": {"dataset": "Subset", "collate_fn": "default_collate"}}
        loaders = [site.model_copy(update=of_one) if "loader" in site.kind else site for site in sites.sites]
        sites = sites.model_copy(update={"sites": tuple(loaders)})
    if "def make" not in text:
        return sites
    runs = {"loader_training": (0,), "loader_validation": (1,)}
    ours = [site.model_copy(update={"calls": runs.get(site.kind, ())}) for site in sites.sites]
    return sites.model_copy(update={"sites": tuple(ours)})


def put_row(folder: Path, row: Row) -> Placed:
    return put(sites_of(folder, row.script, row.alike), *row.plan)


@pytest.fixture(scope="module")
def patches(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Placed]]:
    """A folder with the script of a row, and the patch of its plan, made once."""

    @cache
    def made(name: str) -> tuple[Path, Placed]:
        folder = tmp_path_factory.mktemp("row")
        return folder, put_row(folder, TABLE[name])

    return made


def test_the_patched_script_trains_as_the_untouched_one_does(
    tmp_path: Path, patches: Callable[[str], tuple[Path, Placed]]
) -> None:
    """Also in a package, whose file is imported from it."""
    places: list[str] = []
    for number, (name, row) in enumerate(TABLE.items()):
        for side in ("untouched", "patched"):
            folder = tmp_path / f"{side} {number}"
            folder.mkdir()
            (folder / "train.py").write_text(row.script)
            places.append(str(folder))
        apply_diff(patches(name)[1].patch.diff, folder)
    printed = printed_by(*places, f"{in_a_package(tmp_path)}:ours.train")
    sides = [*zip(printed[:-1:2], printed[1::2], strict=True), (printed[0], printed[-1])]
    for name, (before, after) in zip([*TABLE, "in a package"], sides, strict=True):
        assert before.count("\n") == 19, name
        assert after == before, name


@pytest.mark.parametrize("name", TABLE)
def test_the_whole_diff_is_what_a_reviewer_accepts(name: str, patches: Callable[[str], tuple[Path, Placed]]) -> None:
    row, (folder, found) = TABLE[name], patches(name)
    assert [change.how for change in found.changes] == ["patched"] * len(row.plan)
    ours, added = found.patch.diff.split("--- /dev/null\n+++ b/prepared.py\n")
    assert tuple(changed_lines(ours)) == row.lines
    module = found.texts["prepared.py"]
    assert changed_lines(added) == [f"+{line}" for line in module.splitlines()]
    assert 20 <= module.count("\n") <= row.length
    assert not any(word in module for word in ("autoopt", "ctypes", "Any", "annotations"))
    assert apply_diff(found.patch.diff, folder) == ("train.py", "prepared.py")
    apply_diff(found.patch.diff, folder, revert=True)
    assert (folder / "train.py").read_text() == row.script
    assert not (folder / "prepared.py").exists()


def test_a_file_that_is_there_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "prepared.py").write_text("mine = 1\n")
    found = put_row(tmp_path, TABLE["samples kept"])
    assert set(found.texts) == {"train.py", "prepared_data.py"}
    assert "from prepared_data import KeptSamples" in found.texts["train.py"]
    texts = patched_texts(found.patch.diff, [tmp_path])
    assert texts == {str(tmp_path / name): text for name, text in found.texts.items()}
    (tmp_path / "prepared_data.py").write_text("mine = 2\n")
    with pytest.raises(UsageError, match=r"prepared_data\.py"):
        apply_diff(found.patch.diff, tmp_path)
    with pytest.raises(UsageError, match=r"prepared_data\.py"):
        patched_texts(found.patch.diff, [tmp_path])
    assert (tmp_path / "prepared_data.py").read_text() == "mine = 2\n"


def in_a_package(folder: Path) -> Path:
    """The script of the first row, patched as a module of a package."""
    (folder / "ours").mkdir()
    sites = sites_of(folder, TABLE["samples kept"].script)
    (folder / "train.py").rename(folder / "ours" / "train.py")
    moved = [site.model_copy(update={"file": "ours/train.py"}) for site in sites.sites]
    sites = sites.model_copy(update={"sites": tuple(moved), "command": ("python", "-m", "ours.train")})
    found = put(sites, KEPT)
    assert "from ours.prepared import KeptSamples" in found.texts["ours/train.py"]
    apply_diff(found.patch.diff, folder)
    return folder


@pytest.mark.parametrize(
    ("edits", "reason"),
    [
        ({"class Rows1": "class KeptSamples:\n    pass\n\n\nclass Rows1"}, "train.py has another KeptSamples"),
        (
            {"DataLoader(train_set, batch_size=7, shuffle=True)": "DataLoader(**{'dataset': train_set})"},
            "does not name",
        ),
    ],
)
def test_what_cannot_be_wrapped_stays_with_the_plan(tmp_path: Path, edits: dict[str, str], reason: str) -> None:
    text = TABLE["samples kept"].script
    for old, new in edits.items():
        text = text.replace(old, new)
    found = put(sites_in(tmp_path, text), KEPT)
    assert (found.changes[0].how, found.texts) == ("plan only", {})
    assert reason in found.changes[0].reason


def test_a_hook_of_the_model_comes_from_the_file_beside_the_script(tmp_path: Path) -> None:
    change = Change(strategy="packing", setting={"multiple": 8})
    found = put_row(tmp_path, replace(TABLE["samples kept"], plan=(change,)))
    assert [each.how for each in found.changes] == ["patched"]
    assert changed_lines(found.patch.diff.split("--- /dev/null")[0]) == [
        f"{ADDED}pack_sequences",
        "+    pack_sequences(model, multiple=8)",
    ]
    module = found.texts["prepared.py"]
    assert module.count("\n") < 130
    assert "autoopt" not in module
    compile(module, "prepared.py", "exec")
