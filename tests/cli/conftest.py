from __future__ import annotations

from pathlib import Path

import pytest

M = """
from autoopt import Applies, Risk, Strategy


class S(Strategy):
    name = "mine"
    stages = {"forward"}
    risk = Risk.EXACT

    def applies(self, case):
        return Applies.no("for its name alone")

    def settings(self, case):
        return []

    def apply(self, setup, setting):
        return setup
"""


@pytest.fixture(autouse=True)
def modules_to_name(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commands look for the modules that they are given before anything else: these are there; no trial is started."""
    monkeypatch.setattr("autoopt.trial.start.begin_server", lambda: None)
    folder = tmp_path_factory.mktemp("modules")
    (folder / "m.py").write_text(M)
    (folder / "my_module.py").write_text("raise AssertionError('a workload is imported by trials alone')\n")
    monkeypatch.syspath_prepend(str(folder))
    return folder
