"""The start of a script: which lines import for long."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autoopt.script.frames import ImportClock, import_sites
from tests.script.conftest import StartScript, sites_of

IMPORTING = """
import slow
import torch
import late
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,))), batch_size=4)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(9):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


def test_a_line_has_what_it_imports_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outer_one.py").write_text("import time\nimport inner_one\ntime.sleep(0.06)\n")
    (tmp_path / "inner_one.py").write_text("import time\ntime.sleep(0.2)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("autoopt.script.frames.is_users", lambda file: file.startswith((str(tmp_path), __file__)))
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


@pytest.mark.slow
def test_slow_imports_have_their_lines(start_script: StartScript, folder: Path) -> None:
    (folder / "slow.py").write_text("import time\ntime.sleep(0.1)\n")
    (folder / "late.py").write_text("import time\ntime.sleep(0.2)\n")
    (folder / "importing.py").write_text(IMPORTING)
    with start_script("importing.py", fresh=True) as process:
        sites = sites_of(process, steps=9, seconds=60.0)
    assert [(site.line, site.call) for site in sites.of("import")] == [(4, "late"), (2, "slow")]
