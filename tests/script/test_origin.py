"""Where the batches of a script without a DataLoader come from, as its source tells."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoopt.records import Change, Place, Plan, Site, Sites
from autoopt.script.observer import origin_of
from autoopt.script.sayable import unsayable, without_loader
from autoopt.search.planner import Choice, build_queue
from autoopt.setup import Setup
from autoopt.testing.strategies import sample_case
from scripted import REGISTRY
from tests.script.conftest import SCRIPTS

IN_LOOP = """
x, y = get_batch("val")
for it in range(9):
    logits = model(x, y)
    x, y = get_batch("train")
"""
MOVED = """
for it in range(9):
    x = data[it * 8 : it * 8 + 8]
    x = x.to(device)
    loss = criterion(model(x), x)
"""
HANDED = """
def train_step(model, batch):
    return model(**batch)

stream = endless(files)
while True:
    batch = next(stream)
    train_step(model, batch)
"""
CLOSURE = """
points = torch.linspace(0, 1, 50)
def closure():
    out = net(points)
    return out
"""
DIRECT = "loss = model(sample(64))\n"
STREAMED = """
class Trainer:
    def fit(self):
        for batch in self.batches():
            self.model(batch)
"""
OWN = """
class Trainer:
    def __init__(self, text):
        self.tokens = encode(text)
    def fit(self):
        self.model(self.tokens)
"""
OUT_OF_SIGHT = "def forward(x):\n    return model(x)\n"


@pytest.mark.parametrize(
    ("text", "calls", "made_by"),
    [
        (IN_LOOP, ["model(x, y)"], "get_batch('train')"),
        (MOVED, ["criterion(model(x)"], "data[it * 8:it * 8 + 8]"),
        (HANDED, ["return model(", "train_step(model, batch)\n"], "next(stream)"),
        (CLOSURE, ["net(points)"], "torch.linspace(0, 1, 50)"),
        (DIRECT, ["model("], "sample(64)"),
        (STREAMED, ["self.model("], "self.batches()"),
        (OWN, ["self.model("], "encode(text)"),
        (OUT_OF_SIGHT, ["model(x)"], None),
        ("def broken(:\n", ["broken"], None),
    ],
)
def test_what_makes_a_batch_is_read_from_the_lines_that_led_to_the_call(
    tmp_path: Path, text: str, calls: list[str], made_by: str | None
) -> None:
    file = tmp_path / "train.py"
    file.write_text(text)
    lines = [text[: text.rindex(call)].count("\n") + 1 for call in calls]
    found = origin_of(tuple(Place(file=str(file), line=line, end_line=line) for line in lines))
    assert found.get("made_by") == made_by
    if made_by is not None:
        assert found["file"] == str(file)
        assert found["line"] != lines[0] or text == DIRECT


def test_a_long_expression_is_shortened(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"x = [{', '.join(map(str, range(90)))}]\nmodel(x)\n")
    found = origin_of((Place(file=str(file), line=2, end_line=2),))
    assert len(found["made_by"]) == 60


def test_a_strategy_of_the_loader_says_where_a_script_without_one_gets_its_batches() -> None:
    text = (SCRIPTS / "get_batch.py").read_text()
    line = text[: text.index("model(X, Y)")].count("\n") + 1
    origin = origin_of((Place(file=str(SCRIPTS / "get_batch.py"), line=line, end_line=line),))
    called = Site(file="get_batch.py", line=line, end_line=line, kind="batch_without_loader", options=origin)
    sites = Sites(command=("python", "get_batch.py"), cwd=str(SCRIPTS), sites=(called,))
    case = replace(sample_case(), sites=sites)

    queue = build_queue(REGISTRY, case, Choice(), 1.01)
    told = {skipped.strategy.name: skipped.reason for skipped in queue.skipped}
    wanted = f"the script has no DataLoader: its batches come from get_batch() ({SCRIPTS / 'get_batch.py'}:{line + 2})"
    for name in ("workers", "prepared_samples", "pin_memory"):
        assert told[name] == wanted, name
    assert not any("Dataset" in reason for name, reason in told.items())
    assert unsayable(REGISTRY.fold(Plan(changes=(Change(strategy="workers", setting={"num_workers": 2}),))), sites)


def test_a_call_whose_batch_shows_nowhere_is_named_itself() -> None:
    called = Site(file="train.py", line=7, end_line=7, kind="batch_without_loader")
    sites = Sites(command=("python", "train.py"), cwd="/", sites=(called,))
    reason = without_loader(Setup().with_loader(num_workers=2), sites)
    assert reason == (
        "the script has no DataLoader: its own lines make the batches that the model is called with (train.py:7)"
    )
    assert without_loader(Setup(), sites) is None
