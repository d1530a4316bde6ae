"""The diff of the user's own module: comments stay, nothing is written unless asked, the rest is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoopt.errors import UsageError
from autoopt.records import Change, Plan
from autoopt.registry import load_strategies

pytest.importorskip("libcst")

from autoopt.export.patch import patch

SOURCE = '''\
"""My training."""
from torch.utils.data import DataLoader

train = DataLoader(data, batch_size=32, shuffle=True)  # mine
other = torch.utils.data.DataLoader(
    data,
    shuffle=True,
    num_workers=0,
)
valid = DataLoader(data, batch_size=64)
trainer = Trainer(max_epochs=3)
'''
PLAN = Plan(
    changes=(
        Change(strategy="workers", setting={"num_workers": 2}),
        Change(strategy="amp", setting={"dtype": "bfloat16"}),
        Change(strategy="threads", setting={"threads": 1}),
    )
)


def test_diff_sets_keywords_and_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    diff, notes = patch(path, PLAN, load_strategies())
    added = [line[1:] for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert added == [
        "train = DataLoader(data, batch_size=32, shuffle=True, num_workers=2)  # mine",
        "    num_workers=2,",
        'trainer = Trainer(max_epochs=3, precision="bf16-mixed")',
    ]
    assert path.read_text() == SOURCE
    assert [note.split(":")[0] for note in notes] == ["threads"]


def test_written_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    patch(path, PLAN, load_strategies(), write=True)
    text = path.read_text()
    compile(text, "mine.py", "exec")
    assert "valid = DataLoader(data, batch_size=64)\n" in text
    assert patch(path, PLAN, load_strategies())[0] == ""


def test_a_file_that_is_no_python_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def (")
    with pytest.raises(UsageError, match="cannot be read as Python"):
        patch(path, PLAN, load_strategies())
