"""The benchmark of adoption: the gate that holds a Trainer between steps, ratios, the table; a real Trainer at it."""

from __future__ import annotations

import json
import os
import threading
import warnings
from pathlib import Path

import pytest

from benchmarks.adoption import own_trainer_side as side
from benchmarks.adoption.own_trainer import interval

ROOT = Path(__file__).parents[2]


def test_the_gate_holds_the_loop_between_steps() -> None:
    gate = side.Gate()

    def loop() -> None:
        with gate.condition:
            gate.condition.wait_for(lambda: gate.enough is not None)
        for _ in range(5):
            gate.step(8)
        with gate.condition:
            gate.ended = "the end"
            gate.condition.notify_all()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    gate.run(lambda now: gate.steps >= 2)
    assert (gate.steps, gate.samples) == (2, 16)
    gate.run(lambda now: True)
    assert gate.steps == 3
    with pytest.raises(RuntimeError, match="the end"):
        gate.run(lambda now: False)
    thread.join()


def test_a_ratio_has_an_interval_from_two_pairs_on() -> None:
    assert interval([0.0])["low"] is None
    found = interval([0.1, 0.2, 0.3])
    assert found["n"] == 3
    assert found["low"] < 1.2214 < found["high"]
    assert found["value"] == pytest.approx(1.2214, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("example", "target"), [("lightning_digits", "lightning"), ("hf_text", "transformers")])
def test_a_real_trainer_goes_step_by_step(
    example: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(target)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(os.environ, "OWN_TRAINER", json.dumps({"folder": str(tmp_path), "target": target}))
    gate = side.Gate()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        spec = f"{ROOT / 'examples' / example}.py:build"
        fit = side.built(spec, False, 0, side.WITHOUT_END[target], gate)
        threading.Thread(target=fit, daemon=True).start()
        gate.run(lambda now: gate.steps >= 3)
    assert gate.steps == 3
    assert gate.samples == 3 * {"lightning": 32, "transformers": 16}[target]
