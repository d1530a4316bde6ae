"""Whole runs by turns: each comes to its end, and what fails or takes too long is told apart."""

from __future__ import annotations

import sys

import pytest

from autoopt.script.whole_run import Command, run_in_turns

COUNTS = "for i in range(3_000_000): pass\nprint('counted')"
FAILS = "print('no data'); raise SystemExit(3)"
FOR_EVER = "print('here', flush=True)\nwhile True: pass"
WITH_A_CHILD = (
    "import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', 'print(7)'], capture_output=True).stdout)"
)


def python(code: str, text: str = "") -> Command:
    return Command((sys.executable, "-c", code), text=text)


@pytest.mark.parametrize("turn", [0.01, float("inf")])
def test_runs_that_take_turns_come_to_their_ends(turn: float) -> None:
    found = run_in_turns([python(COUNTS), python(WITH_A_CHILD)], timeout=60, shares=[1.0, 3.0], turn=turn)
    assert [(run.code, run.last) for run in found] == [(0, "counted"), (0, "b'7\\n'")]
    for run in found:
        assert 0 < run.lines[-1][0] <= run.seconds
        assert run.own_cpu_seconds > 0


@pytest.mark.parametrize(("all_of_them", "other"), [(False, None), (True, 0)])
def test_one_that_fails_ends_the_others_where_nobody_asks_for_all(all_of_them: bool, other: int | None) -> None:
    found = run_in_turns([python(FAILS), python(COUNTS)], timeout=60, all_of_them=all_of_them)
    assert (found[0].code, found[0].last, found[1].code) == (3, "no data", other)


def test_one_that_takes_too_long_is_ended() -> None:
    found = run_in_turns([python(FOR_EVER), python(FOR_EVER)], timeout=0.5, turn=0.1)
    assert None in {run.code for run in found}
    assert all(run.code is None for run in found)


def test_one_that_ends_before_it_is_ready_was_not_begun() -> None:
    (found,) = run_in_turns([python(FAILS, text="{}")], timeout=60)
    assert (found.begun, found.code, found.last) == (False, 3, "no data")


def test_seconds_count_from_where_a_process_stops_itself() -> None:
    waits = "import os, signal, sys; sys.stdin.read(); os.kill(os.getpid(), signal.SIGSTOP); print('on')"
    (found,) = run_in_turns([python(waits, text="{}")], timeout=60)
    assert (found.begun, found.code, found.last) == (True, 0, "on")
