"""A measured script may write below its own folder and nowhere else, whatever links lead there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WRITES = """
import sys
from autoopt.script.boot import guard
guard([sys.argv[1]])
open(sys.argv[2], "w").write("x")
"""


def write(allowed: Path, file: Path, home: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WRITES, str(allowed), str(file)]
    return subprocess.run(command, env={"HOME": str(home)}, capture_output=True, text=True, check=False)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name in ("scratch/runs", "data", "home/.cache"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "runs").symlink_to(tmp_path / "scratch" / "runs")
    (tmp_path / "linked_home").symlink_to(tmp_path / "home")
    return tmp_path


def test_a_folder_that_is_reached_over_a_link_stays_writable(place: Path) -> None:
    ended = write(place / "runs", place / "runs" / "file", place / "home")
    assert ended.returncode == 0, ended.stderr
    assert write(place / "runs", place / "scratch" / "runs" / "file", place / "home").returncode == 0


def test_a_cache_in_a_home_that_is_a_link_stays_writable(place: Path) -> None:
    assert write(place / "runs", place / "home" / ".cache" / "file", place / "linked_home").returncode == 0


def test_what_lies_elsewhere_is_refused_by_name(place: Path) -> None:
    ended = write(place / "runs", place / "data" / "file", place / "home")
    assert ended.returncode == 1
    assert f"change {place / 'data' / 'file'}, which lies outside" in ended.stderr
    assert not (place / "data" / "file").exists()
