"""What commands print: results, the machine, and doubts."""

from __future__ import annotations

import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from autoopt.cli import doctor, main, output
from autoopt.cli.doctor import Doubt, Readings, doubts, probe
from autoopt.records import Environment, Peaks
from modules import run_python


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "terminal", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_when_there_are_colours(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], terminal: bool, expected: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert output.use_color(Terminal() if terminal else io.StringIO()) is expected


def test_prints_of_others_do_not_spoil_the_result() -> None:
    script = (
        "import os, subprocess, sys\n"
        "from autoopt.cli.output import stdout_kept, write_line\n"
        "with stdout_kept():\n"
        "    print('by python', flush=True)\n"
        "    os.write(1, b'by the system\\n')\n"
        "    subprocess.run(['echo', 'by a child'])\n"
        "write_line('the result')\n"
    )
    done = run_python("-c", script)
    assert done.stdout == "the result\n"
    assert done.stderr.splitlines() == ["by python", "by the system", "by a child"]


def test_standard_output_comes_back_after_an_error() -> None:
    before = sys.stdout
    with pytest.raises(ZeroDivisionError), output.stdout_kept():
        raise ZeroDivisionError
    assert sys.stdout is before
    os.fstat(1)


def test_a_result_can_be_written_in_any_encoding() -> None:
    script = "from autoopt.cli.output import write_line; write_line('\\udcff caf\\u00e9 \\u2713')"
    done = run_python("-c", script, env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.stdout == "\\udcff caf\\xe9 \\u2713\n"


@pytest.mark.parametrize("screen", [":1", None])
def test_the_report_is_opened_where_there_is_a_screen_and_named_elsewhere(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, screen: str | None
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    if screen:
        monkeypatch.setenv("DISPLAY", screen)
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    output.show(tmp_path / "a b.html")
    assert opened == ([(tmp_path / "a b.html").as_uri()] if screen else [])
    assert ("a b.html" in capsys.readouterr().err) is not bool(screen)


# The output of ``autoopt doctor``.

MACHINE = Environment(
    python="3.11.9",
    torch="2.13.0",
    device="cpu",
    cpu="Some CPU",
    cores=8,
    threads=4,
    ram_bytes=64 * 1024**3,
    os="Linux",
    packages={"numpy": "2.1.0"},
    peaks=Peaks(
        matmul_fp32_flops_per_second=8.5e10,
        memory_bytes_per_second=2.31e10,
        launch_seconds=1.5e-6,
        measured_at="2026-01-01T00:00:00+00:00",
    ),
)


def test_the_text_tells_machine_peaks_and_doubts() -> None:
    text = "\n".join(doctor.lines(MACHINE, [Doubt(what="it is busy", do="stop other programs")]))
    rows = [tuple(filter(None, line.split("  "))) for line in text.splitlines()]
    told = {row[0].strip(): row[1].strip() for row in rows if len(row) == 2}
    assert told["CPU"] == "Some CPU"
    assert told["numpy"] == "2.1.0"
    assert told["matmul fp32"] == "85.0 GFLOP/s"
    assert told["RAM"] == "64.0 GiB"
    assert told["memory"] == "23.1 GB/s"
    assert told["one launch"] == "1.50 µs"
    assert text.endswith("what makes measuring doubtful\n  it is busy\n    stop other programs")


def test_what_was_not_measured_is_never_a_number() -> None:
    text = "\n".join(doctor.lines(Environment(python="3.12", device="cpu"), []))
    assert text.count("not measured") == 17
    assert "nothing here makes measuring doubtful" in text


def test_it_prints_one_document(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "describe_machine", lambda device: (MACHINE, [Doubt(what="busy", do="wait")]))
    assert main(["doctor", "--json", "--device", "cpu"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert set(document) == {"autoopt", "environment", "doubts"}
    assert Environment.model_validate(document["environment"]) == MACHINE
    assert document["doubts"] == [{"what": "busy", "do": "wait"}]


def test_it_asks_the_engine_for_the_device_that_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    peaks = Peaks(launch_seconds=1e-6)
    monkeypatch.setattr(
        "autoopt.benchmark.environment.environment", lambda device: asked.append(str(device)) or MACHINE
    )
    monkeypatch.setattr("autoopt.simplify.peaks.measured_peaks", lambda device: asked.append(str(device)) or peaks)
    environment, _ = doctor.describe_machine("cpu")
    assert asked == ["cpu", "cpu"]
    assert environment.peaks == peaks
    assert environment.cpu == "Some CPU"


# Doubts about a machine.

GIB = 1024**3
KNOWN = MACHINE.model_copy(update={"load": 0.4, "threads": 8, "compiler": "/usr/bin/g++"})
GOOD = Readings(
    cores=8,
    ram_bytes=64 * GIB,
    free_ram_bytes=50 * GIB,
    swapped_bytes=0,
    shared_bytes=32 * GIB,
    governors=frozenset({"performance"}),
    on_battery=False,
    taken_device_bytes=0,
    device_bytes=80 * GIB,
)


def test_a_good_machine_is_not_doubted() -> None:
    assert doubts(KNOWN, GOOD) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"load": 4.0}, "load 4.0 on 8 cores"),
        ({"cores": 1, "threads": 1, "load": 0.1}, "one core"),
        ({"quota": 2.5}, "allows 2.5 cores' worth"),
        ({"threads": 16}, "16 compute threads on 8 cores"),
        ({"governors": frozenset({"powersave", "performance"})}, "governor powersave"),
        ({"on_battery": True}, "battery"),
        ({"free_ram_bytes": 2 * GIB}, "3% of the memory is free (2.00 GiB)"),
        ({"swapped_bytes": 3 * GIB}, "3.00 GiB of memory lie on disk"),
        ({"shared_bytes": 64 * 1024**2}, "/dev/shm holds 64.0 MiB"),
        ({"taken_device_bytes": 8 * GIB}, "8.00 GiB of the device's memory"),
        ({"compiler": None}, "no C++ compiler"),
    ],
)
def test_each_reason_is_told_with_what_to_do(change: dict[str, object], word: str) -> None:
    known = {name: value for name, value in change.items() if name in {"load", "threads", "compiler"}}
    read = {name: value for name, value in change.items() if name not in known}
    (doubt,) = doubts(KNOWN.model_copy(update=known), replace(GOOD, **read))  # type: ignore[arg-type]
    assert word in doubt.what
    assert doubt.do


def test_what_could_not_be_found_out_is_no_doubt() -> None:
    assert doubts(Environment(python="3.12", device="cpu", compiler="c++"), Readings(cores=4)) == []
    assert probe(torch.device("cpu")).ram_bytes
