"""Doubts about a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoopt.cli.doubts import Readings, doubts, probe

GIB = 1024**3
GOOD = Readings(
    cores=8,
    load=0.4,
    threads=8,
    ram_bytes=64 * GIB,
    free_ram_bytes=50 * GIB,
    swapped_bytes=0,
    shared_bytes=32 * GIB,
    governors=frozenset({"performance"}),
    on_battery=False,
    compiler="/usr/bin/g++",
    taken_device_bytes=0,
    device_bytes=80 * GIB,
)


def test_a_good_machine_is_not_doubted() -> None:
    assert doubts(GOOD) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"load": 4.0}, "load 4.0 on 8 cores"),
        ({"cores": 1, "threads": 1, "load": 0.1}, "one core"),
        ({"quota": 2.5}, "allows 2.5 cores' worth"),
        ({"threads": 16}, "16 compute threads on 8 cores"),
        ({"governors": frozenset({"powersave", "performance"})}, "governor powersave"),
        ({"on_battery": True}, "battery"),
        ({"free_ram_bytes": 2 * GIB}, "3% of the memory is free (2.0 GiB)"),
        ({"swapped_bytes": 3 * GIB}, "3.0 GiB of memory lie on disk"),
        ({"shared_bytes": 64 * 1024**2}, "/dev/shm holds 64 MiB"),
        ({"taken_device_bytes": 8 * GIB}, "8.0 GiB of the device's memory"),
        ({"compiler": None}, "no C++ compiler"),
    ],
)
def test_each_reason_is_told_with_what_to_do(change: dict[str, object], word: str) -> None:
    (doubt,) = doubts(replace(GOOD, **change))  # type: ignore[arg-type]
    assert word in doubt.what
    assert doubt.do


def test_what_could_not_be_found_out_is_no_doubt() -> None:
    assert doubts(Readings(cores=4, compiler="c++")) == []


def test_this_machine_can_be_looked_at() -> None:
    machine = probe(threads=1)
    assert machine.cores >= 1
    assert machine.ram_bytes
    doubts(machine)
