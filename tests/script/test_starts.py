"""The start of a script: which lines import for long, and batches that a resumed one reads for nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autoopt.records import Site, Sites
from autoopt.script.advice import advice_of
from autoopt.script.imports import ImportClock, import_sites
from tests.script.conftest import StartScript, sites_of

RESUMED = """
import slow
import torch
import late
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,))), batch_size=4)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
next(iter(loader))
for epoch in range(9):
    for i, (x, y) in enumerate(loader):
        if epoch == 0 and i < 5:
            continue
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


def test_a_line_has_what_it_imports_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outer_one.py").write_text("import time\nimport inner_one\ntime.sleep(0.06)\n")
    (tmp_path / "inner_one.py").write_text("import time\ntime.sleep(0.2)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("autoopt.script.imports.is_users", lambda file: file.startswith((str(tmp_path), __file__)))
    clock = ImportClock()
    clock.start()
    try:
        import outer_one  # noqa: F401
    finally:
        clock.stop()
    inner, outer = import_sites(clock)
    assert (Path(inner.file).name, inner.line, inner.call) == ("outer_one.py", 2, "inner_one")
    assert (Path(outer.file).name, outer.call) == (Path(__file__).name, "outer_one")
    assert inner.options["seconds"] >= 0.2
    assert outer.options["seconds"] < 0.2, "what it imports in turn is another line's"
    assert clock.seconds >= 0.26
    assert "torch" in sys.modules, "what is there already takes nothing"


def test_a_look_at_the_first_batch_is_no_resuming() -> None:
    def told(batches: int) -> list[str]:
        site = Site(
            kind="passed_over", file="train.py", line=9, end_line=9, options={"batches": batches, "seconds": 7.0}
        )
        return [each.title for each in advice_of(Sites(command=("train.py",), cwd="/", sites=(site,)))]

    assert told(1) == []
    assert told(500) == ["500 batches are read and passed over before the first step"]


@pytest.mark.slow
def test_slow_imports_and_batches_passed_over_have_their_lines(start_script: StartScript, folder: Path) -> None:
    (folder / "slow.py").write_text("import time\ntime.sleep(0.1)\n")
    (folder / "late.py").write_text("import time\ntime.sleep(0.2)\n")
    (folder / "resumed.py").write_text(RESUMED)
    with start_script("resumed.py", fresh=True) as process:
        sites = sites_of(process, steps=9, seconds=60.0)
    assert [(site.line, site.call) for site in sites.of("import")] == [(4, "late"), (2, "slow")]
    (passed,) = sites.of("passed_over")
    assert (passed.line, passed.options["batches"]) == (14, 5)
