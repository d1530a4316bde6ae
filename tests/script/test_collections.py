"""A script that is forked collects as much garbage as in an interpreter of its own."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from autoopt.script import execute
from autoopt.script.boot import Orders
from autoopt.trial.protocol import ScriptSpec, TrialSpec


def test_what_the_server_has_frozen_is_looked_at_by_the_scripts_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TrialSpec(workload="train.py", script=ScriptSpec(command=("python", "train.py")))
    frozen: list[int] = []
    prepared = (["python", "train.py"], Orders(spec=spec), dict[str, str]())
    monkeypatch.setattr(execute, "_prepared", lambda *_: prepared)
    monkeypatch.setattr(execute, "listen", lambda *_: None)
    monkeypatch.setattr(execute, "run", lambda *_: frozen.append(gc.get_freeze_count()))
    monkeypatch.setattr(execute.sys, "path", [])
    gc.freeze()
    try:
        channel: Any = None
        execute.run_here(channel, {})
    finally:
        gc.unfreeze()
    assert frozen == [0]
