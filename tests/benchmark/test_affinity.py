"""Cores that were lost are told with their cause, and given back to every thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from autoopt.benchmark import affinity
from autoopt.registry import load_strategies
from autoopt.testing.strategies import sample_case

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(affinity.cores()) < 2, reason="needs two cores to lose one"
)

LOSING = """
import json, os, threading
from autoopt.benchmark import affinity
ready, go = threading.Event(), threading.Event()
seen = []
def other():
    ready.set(); go.wait(); seen.append(len(os.sched_getaffinity(0)))
os.sched_setaffinity(0, {affinity.AT_START[0]})  # as an import of another library does
thread = threading.Thread(target=other); thread.start(); ready.wait()
said = affinity.lost_affinity_warning(affinity.AT_START, "import vision")
affinity.bind(affinity.AT_START)
go.set(); thread.join()
print(json.dumps([said, affinity.lost_affinity_warning(affinity.AT_START, ""), seen, len(affinity.AT_START)]))
"""


def test_lost_cores_are_told_and_every_thread_gets_them_back() -> None:
    done = subprocess.run([sys.executable, "-c", LOSING], capture_output=True, text=True, check=True)
    said, still_lost, seen, cores = json.loads(done.stdout)
    assert said.startswith(f"import vision bound the process to 1 of {cores} cores")
    assert "OMP_PROC_BIND" in said
    assert not still_lost
    assert seen == [cores]


def test_the_strategy_gives_back_what_was_lost() -> None:
    strategy = load_strategies()["affinity"]
    case = sample_case(inspected={"affinity": {"affinity": [0, 1, 2], "lost": [1, 2]}})
    assert strategy.applies(case)
    assert list(strategy.settings(case)) == [{"affinity": [0, 1, 2]}]
    assert not strategy.applies(sample_case(inspected={"affinity": {"affinity": [0, 1], "lost": []}}))
