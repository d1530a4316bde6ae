"""The diff of the user's own module: comments stay, nothing is written unless asked, the rest is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoopt.errors import UsageError
from autoopt.export.patch import patch
from autoopt.records import Change, Plan
from autoopt.registry import load_strategies

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
    diff, notes = patch(path, PLAN, load_strategies(), target="lightning")
    added = [line[1:] for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert added == [
        "train = DataLoader(data, batch_size=32, shuffle=True, num_workers=2)  # mine",
        "    num_workers=2,",
        'trainer = Trainer(max_epochs=3, precision="bf16-mixed")',
    ]
    assert path.read_text() == SOURCE
    assert [note.split(":")[0] for note in notes] == ["threads", "threads"]
    assert "by hand: torch.set_num_threads(1)" in notes[1]


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


def test_only_the_calls_of_the_target_are_edited(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "trainer = Trainer(model, TrainingArguments(output_dir=here))\nloader = DataLoader(a, shuffle=True)\n"
    )
    diff, notes = patch(path, PLAN, load_strategies(), target="transformers")
    (added,) = [line for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    assert added == "+trainer = Trainer(model, TrainingArguments(output_dir=here, dataloader_num_workers=2, bf16=True))"
    assert [note.split(":")[0] for note in notes] == ["threads", "threads"]


def test_arguments_without_names_and_loaders_for_validation(tmp_path: Path) -> None:
    plan = Plan(
        changes=(
            Change(strategy="workers", setting={"num_workers": 2}),
            Change(strategy="batch_size", setting={"size": 64, "learning_rate_factor": 2.0, "warmup_steps": 3}),
        )
    )
    path = tmp_path / "mine.py"
    path.write_text(
        "DataLoader(a, 32, True)\nDataLoader(b, batch_size=8, shuffle=False)\nDataLoader(c, 8, False)\n"
        "DataLoader(d, batch_sampler=mine)\nDataLoader(e, 4, None, sampler)\n"
    )
    patch(path, plan, load_strategies(), write=True)
    assert path.read_text().splitlines() == [
        "DataLoader(a, 64, True, num_workers=2)",
        "DataLoader(b, batch_size=8, shuffle=False)",
        "DataLoader(c, 8, False)",
        "DataLoader(d, batch_sampler=mine, num_workers=2)",
        "DataLoader(e, 64, None, sampler, num_workers=2)",
    ]
    path.write_text("DataLoader(a, shuffle=True, **options)\n")
    diff, notes = patch(path, plan, load_strategies(), target="lightning")
    assert diff == ""
    assert "workers: mine.py passes some arguments of DataLoader on with a star: nothing was put there" in notes
    assert any("multiply the learning rate by 2" in note for note in notes)


def test_line_ends_mode_and_links_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "real.py", tmp_path / "link.py"
    real.write_bytes(b"# -*- coding: latin-1 -*-\r\nname = 'caf\xe9'\r\nDataLoader(a, shuffle=True)")
    real.chmod(0o755)
    link.symlink_to(real)
    diff, _ = patch(link, PLAN, load_strategies(), write=True)
    assert real.read_bytes().endswith(b"'caf\xe9'\r\nDataLoader(a, shuffle=True, num_workers=2)")
    assert real.stat().st_mode & 0o777 == 0o755
    assert link.is_symlink()
    assert "No newline at end of file" in diff
