"""Another micro-batch in a script's lines: pieces of each batch, or larger batches that are added up less often."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autoopt.export.applying import apply_diff
from autoopt.records import Change, Place, ScriptPatch, Sites
from autoopt_strategies.training.accumulation import pieces
from scripted import BF16, changed_lines, put, seen

HEAD = """\
from torch.utils.data import DataLoader
import torch
loader = DataLoader(data, batch_size=16)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


def sites_in(folder: Path, body: str, accumulation: float = 1, head: str = HEAD) -> Sites:
    """The script's file, and its sites by what stands on its lines."""
    text = head + body
    line = next(n for n, words in enumerate(text.splitlines(), 1) if "loader:" in words or "(loader)" in words)
    loop = Place(file="train.py", line=line, end_line=line)
    found = seen(
        folder,
        text,
        ("loader_training", "DataLoader", "DataLoader(", {"options": {"batch_size": 16}}),
        ("model", "Net", "Net(", {"used": ["model("]}),
        ("optimizer", "SGD", "torch.optim.SGD(", {}),
        ("loss", "backward", ("loss.backward(", "criterion(model(x), y).backward("), {}),
        ("step", "step", "optimizer.step(", {}),
        accumulation=accumulation,
    )
    return found.model_copy(update={"sites": (found.sites[0].model_copy(update={"used": (loop,)}), *found.sites[1:])})


def patch_of(sites: Sites, size: int, accumulation: int, *before: Change) -> ScriptPatch:
    change = Change(strategy="accumulation", setting={"size": size, "accumulation": accumulation})
    return put(sites, *before, change).patch


def body_of(folder: Path, patch: ScriptPatch) -> str:
    """The patched loop."""
    assert [change.how for change in patch.changes] == ["patched"] * len(patch.changes), patch.changes
    apply_diff(patch.diff, folder)
    text = (folder / "train.py").read_text()
    return text[text.index("for ") :]


PLAIN = """\
for i, (x, y) in enumerate(loader):
    x, y = x.to("cpu"), y.to("cpu")
    output = model(x)
    loss = criterion(output, y, reduction="mean")  # of a batch
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss.item() * x.size(0)
"""


def test_a_batch_is_taken_in_pieces(tmp_path: Path) -> None:
    patch = patch_of(sites_in(tmp_path, PLAIN), 4, 4)
    assert (
        body_of(tmp_path, patch)
        == """\
for i, (x, y) in enumerate(loader):
    x, y = x.to("cpu"), y.to("cpu")
    optimizer.zero_grad()
    whole_loss = 0.0
    for share, x_piece, y_piece in pieces(4, x, y):
        output = model(x_piece)
        loss = criterion(output, y_piece, reduction="mean")  # of a batch
        (loss * share).backward()
        whole_loss += loss.detach() * share
    loss = whole_loss
    optimizer.step()
    total += loss.item() * x.size(0)
"""
    )
    beside = (tmp_path / "prepared.py").read_text()
    assert "def pieces(count, *batch):" in beside
    assert "autoopt" not in beside


def test_under_autocast_and_in_one_line(tmp_path: Path) -> None:
    body = """\
for batch in loader:
    optimizer.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
"""
    patch = patch_of(sites_in(tmp_path, body), 8, 2, BF16)
    assert (
        body_of(tmp_path, patch)
        == """\
for batch in loader:
    optimizer.zero_grad()
    for share, batch_piece in pieces(2, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**batch_piece).loss
        (loss * share).backward()
    optimizer.step()
"""
    )
    one = "for x, y in loader:\n    criterion(model(x), y).backward()\n    optimizer.step()\n"
    (tmp_path / "prepared.py").unlink()
    assert body_of(tmp_path, patch_of(sites_in(tmp_path, one), 8, 2)) == (
        "for x, y in loader:\n    for share, x_piece, y_piece in pieces(2, x, y):\n"
        "        (criterion(model(x_piece), y_piece) * share).backward()\n    optimizer.step()\n"
    )


def test_tensors_in_a_list_are_cut_as_those_by_themselves() -> None:
    x, y = torch.arange(6), torch.arange(12.0).view(6, 2)
    found = list(pieces(4, [x, {"y": y}], x, "all"))
    assert [share for share, *_ in found] == [2 / 6] * 3
    assert all(both[0].equal(alone) and text == "all" for _, both, alone, text in found)
    assert torch.cat([both[1]["y"] for _, both, *_ in found]).equal(y)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            "    total +=",
            "    right += (output.argmax(1) == y).sum()\n    total +=",
            "output would be of the last piece",
        ),
        ("    loss =", "    seen += len(x)\n    loss =", "seen adds up something"),
        ("    output", "    n = x.size(0)\n    output", "n is counted of the whole batch"),
        ("    loss.backward()", "    optimizer.step()\n    loss.backward()", "optimizer.step() stands between"),
        ("loss.backward()", "loss.backward(retain_graph=True)", "takes no gradients of a loss"),
        ("    output", "    share = 1\n    output", "which of the names"),
    ],
)
def test_what_pieces_would_change_is_refused(tmp_path: Path, old: str, new: str, reason: str) -> None:
    body = PLAIN.replace(old, new).replace("output, y, red", "output, y, n, red" if "n =" in new else "output, y, red")
    (change,) = patch_of(sites_in(tmp_path, body), 4, 4).changes
    assert change.how == "plan only"
    assert reason in change.reason


ADDED_UP = """\
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y) / 4
    loss.backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
NAMED = ADDED_UP.replace("/ 4", "/ count").replace("% 4", "% count")
BY_BATCH = "BATCH = 16\ncount = 64 // BATCH\nloader = DataLoader(data, batch_size=BATCH)"
SKIPPED = ADDED_UP.replace(
    "== 0:\n        optimizer.step()\n        o", "!= 0:\n        continue\n    optimizer.step()\n    o"
)
AT_ONCE = "CLASSES, count = 20, 4\n" + NAMED
LARGER, HALF = ("+loader = DataLoader(data, batch_size=64)", "+loader = DataLoader(data, batch_size=32)")


@pytest.mark.parametrize(
    ("body", "size", "count", "added"),
    [
        (ADDED_UP, 32, 2, [HALF, "+    loss = criterion(model(x), y) / 2", "+    if (i + 1) % 2 == 0:"]),
        (SKIPPED, 64, 1, [LARGER, "+    loss = criterion(model(x), y) / 1", "+    if (i + 1) % 1 != 0:"]),
        pytest.param("count = 4\n" + NAMED, 64, 1, [LARGER, "+count = 1"], id="a name is changed where it is made"),
        pytest.param(AT_ONCE, 32, 2, [HALF, "+CLASSES, count = 20, 2"], id="with others at once"),
        pytest.param(NAMED, 64, 1, ["+BATCH = 64"], id="a count that is computed from the batch follows it"),
    ],
)  # fmt: skip
def test_larger_batches_are_added_up_less_often(
    tmp_path: Path, body: str, size: int, count: int, added: list[str]
) -> None:
    head = HEAD.replace("loader = DataLoader(data, batch_size=16)", BY_BATCH) if body is NAMED else HEAD
    patch = patch_of(sites_in(tmp_path, body, 4, head), size, count)
    assert [change.how for change in patch.changes] == ["patched"], patch.changes
    assert [line for line in changed_lines(patch.diff) if line.startswith("+")] == added


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (" / 4", "", "not seen to be divided"),
        ("(i + 1) % 4 == 0", "i % 4 == 3", "not seen to be divided"),
        ("model(x), y)", "model(x), y, reduction='sum')", "is a sum"),
        ("for i", 'criterion = torch.nn.MSELoss(reduction="sum")\nfor i', "is a sum"),
        ("4 == 0", "count() == 0", "not seen to be divided"),
    ],
)
def test_what_larger_batches_would_change_is_refused(tmp_path: Path, old: str, new: str, reason: str) -> None:
    (change,) = patch_of(sites_in(tmp_path, ADDED_UP.replace(old, new), 4), 64, 1).changes
    assert change.how == "plan only"
    assert reason in change.reason


PARSED = """\
import argparse
from torch.utils.data import DataLoader
import torch
parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--accumulation-steps", type=int, default=4)
args = parser.parse_args()
loader = DataLoader(data, batch_size=args.batch_size)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = len(data) // args.accumulation_steps
"""
BY_OPTIONS = """\
for i, (x, y) in enumerate(loader):
    loss = criterion(model(x), y)
    loss = loss / args.accumulation_steps
    loss.backward()
    if (i + 1) % args.accumulation_steps == 0:
        optimizer.step()
        optimizer.zero_grad()
        print(loss.item())
"""


@pytest.mark.parametrize(
    ("words", "added", "reason"),
    [
        ((), ('"--batch-size", type=int, default=64)', '"--accumulation-steps", type=int, default=1)'), ""),
        (
            ("--batch-size", "16", "--accumulation-steps=4"),
            ("batch_size=64)", "steps = len(data) // 1", "loss = loss / 1", "if (i + 1) % 1 == 0:"),
            "the command gives --accumulation-steps; 1 stands in its place",
        ),
    ],
)
def test_options_are_changed_where_they_decide(
    tmp_path: Path, words: tuple[str, ...], added: tuple[str, ...], reason: str
) -> None:
    sites = sites_in(tmp_path, BY_OPTIONS, 4, PARSED)
    patch = patch_of(sites.model_copy(update={"command": (*sites.command, *words)}), 64, 1)
    (change,) = patch.changes
    assert change.how == "patched", change.reason
    lines = [line for line in patch.diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert len(lines) == len(added)
    assert all(line.endswith(end) for line, end in zip(lines, added, strict=True))
    assert reason in change.reason
    assert "loss is divided by 1, no longer by 4" in change.reason


def test_a_batch_that_no_line_can_say_is_not_called_patched(tmp_path: Path) -> None:
    """Without a loader another size at as many batches a step changed nothing, and counted as written."""
    sites = sites_in(tmp_path, PLAIN)
    sites = sites.model_copy(update={"sites": tuple(site for site in sites.sites if site.kind != "loader_training")})
    (change,) = patch_of(sites, 256, 1).changes
    assert change.how != "patched"
    assert "no other size of them is said by a line" in change.reason
