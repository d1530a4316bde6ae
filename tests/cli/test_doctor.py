"""The output of ``autoopt doctor``."""

from __future__ import annotations

import json

import pytest

from autoopt.cli import doctor, main
from autoopt.cli.doubts import Doubt
from autoopt.records import Environment, Peaks

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
    assert told["processor"] == "Some CPU"
    assert told["numpy"] == "2.1.0"
    assert told["matmul fp32"] == "85 GFLOP/s"
    assert "memory           64.0 GiB" in text
    assert told["memory"] == "23.1 GB/s"
    assert told["starting an operator"] == "1.50 us"
    assert text.endswith("what makes measuring doubtful\n  it is busy\n    stop other programs")


def test_what_was_not_measured_is_never_a_number() -> None:
    text = "\n".join(doctor.lines(Environment(python="3.12", device="cpu"), []))
    assert text.count("not measured") == 11
    assert "nothing here makes measuring doubtful" in text


def test_it_prints_one_document(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "describe_machine", lambda device: (MACHINE, [Doubt(what="busy", do="wait")]))
    assert main(["doctor", "--json", "--device", "cpu"]) == 0
    document = json.loads(capfd.readouterr().out)
    assert set(document) == {"autoopt", "environment", "doubts"}
    assert Environment.model_validate(document["environment"]) == MACHINE
    assert document["doubts"] == [{"what": "busy", "do": "wait"}]


def test_a_device_that_is_not_there_is_the_environment_s_fault(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--device", "cuda:97"]) == 4
    out, err = capfd.readouterr()
    assert out == ""
    assert "there is no device 'cuda:97'" in err


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
