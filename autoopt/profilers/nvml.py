"""Readings of an NVIDIA device while it trains, plotted over time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autoopt.benchmark.environment import nvml_handle
from autoopt.errors import EnvironmentLacks
from autoopt.records import JsonDict

_SECONDS = 10.0
_EVERY = 0.1
_UNITS = {"utilization": "%", "memory": "MiB", "power": "W", "temperature": "°C"}
_WIDTH, _HEIGHT = 640, 90


def record(live: Any, folder: Path, step: Callable[[], None]) -> JsonDict:
    """Trains for ten seconds and samples the device.

    Raises:
        EnvironmentLacks: the training is not on an NVIDIA device, or its driver does not answer.
    """
    if live.device.kind != "cuda":
        raise EnvironmentLacks(
            f"--with nvml: the training is on {live.device}", hint="--device cuda, on an NVIDIA device"
        )
    import pynvml  # type: ignore[import-untyped]

    try:
        pynvml.nvmlInit()
        handle = nvml_handle(pynvml, live.device)
    except (pynvml.NVMLError, LookupError) as error:
        raise EnvironmentLacks(f"--with nvml: the driver does not answer: {error}", hint="try nvidia-smi") from None
    series: dict[str, list[tuple[float, float]]] = {name: [] for name in _UNITS}
    began = last = time.perf_counter()
    while last - began < _SECONDS:
        step()
        now = time.perf_counter()
        if now - last >= _EVERY or not series["power"]:
            last = now
            for name, value in _read(pynvml, handle).items():
                series[name].append((now - began, value))
    (folder / "nvml.json").write_text(json.dumps(series), encoding="utf-8")
    path = folder / "nvml.svg"
    path.write_text(plot(series), encoding="utf-8")
    lines = [f"{name}: mean {_mean(points):.0f} {_UNITS[name]}, most {max(v for _, v in points):.0f}"
             for name, points in series.items() if points]  # fmt: skip
    return {"file": str(path), "lines": lines}


def _read(pynvml: Any, handle: Any) -> dict[str, float]:
    questions: dict[str, Callable[[], float]] = {
        "utilization": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "memory": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used / 2**20,
        "power": lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        "temperature": lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
    }
    found = {}
    for name, ask in questions.items():
        try:
            found[name] = float(ask())
        except pynvml.NVMLError:
            continue  # not every device tells everything
    return found


def _mean(points: list[tuple[float, float]]) -> float:
    return sum(value for _, value in points) / len(points)


def plot(series: dict[str, list[tuple[float, float]]]) -> str:
    """An SVG with one band for each series, from zero to its largest value."""
    bands = []
    for row, (name, points) in enumerate((n, p) for n, p in series.items() if p):
        top, most = row * (_HEIGHT + 30) + 20, max(value for _, value in points) or 1.0
        end = points[-1][0] or 1.0
        path = " ".join(f"{_WIDTH * t / end:.1f},{top + _HEIGHT * (1 - value / most):.1f}" for t, value in points)
        bands.append(
            f'<text x="0" y="{top - 4}">{name} (0 to {most:.0f} {_UNITS[name]}, {end:.1f} s)</text>'
            f'<polyline fill="none" stroke="#0b62a8" points="{path}"/>'
        )
    height = len(bands) * (_HEIGHT + 30) + 10
    style = 'font-family="sans-serif" font-size="12"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" {style}>{"".join(bands)}</svg>\n'
