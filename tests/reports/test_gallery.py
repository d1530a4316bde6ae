"""The gallery: what it says comes from the documents; what cannot be read is one clear error."""

from __future__ import annotations

from pathlib import Path

import pytest

import sample
from autoopt.errors import EnvironmentLacks
from benchmarks import gallery


def run_directory(folder: Path, name: str = "win") -> Path:
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(sample.DOCUMENTS[name]().model_dump_json())
    return folder


def test_pages_and_index(tmp_path: Path) -> None:
    runs = [run_directory(tmp_path / name, name) for name in ("win", "no_gain", "hostile")]
    out = tmp_path / "gallery"
    assert gallery.main([*map(str, runs), "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "hostile.html", "no_gain.html", "win.html"]
    text = (out / "README.md").read_text()
    assert (
        "**2.31× faster to target** (95 % CI 2.24–2.39×, this machine, this hour, verified end to end, same quality"
        in text
    )
    assert "**No safe gain found**" in text
    assert "<script>" not in text.replace("\\<", "")


@pytest.mark.parametrize("content", [None, "{}", "not json", '{"schema_version": 2}'])
def test_what_is_no_result_is_an_error_with_its_path(
    tmp_path: Path, content: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "result.json").write_text(content)
    assert gallery.main([str(tmp_path), "--out", str(tmp_path / "gallery")]) == 2
    assert str(tmp_path) in capsys.readouterr().err


def test_screenshots_without_a_browser(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (
        gallery.main([str(run_directory(tmp_path / "run")), "--screenshots", "--out", str(tmp_path / "gallery")]) == 4
    )
    assert "Chromium" in capsys.readouterr().err


def test_a_screenshot_is_a_picture(tmp_path: Path) -> None:
    try:
        gallery.browser()
    except EnvironmentLacks:
        pytest.skip("chromium is not installed")
    out = tmp_path / "gallery"
    assert gallery.main([str(run_directory(tmp_path / "run")), "--screenshots", "--out", str(out)]) == 0
    assert (out / "run.png").read_bytes().startswith(b"\x89PNG")
    assert "![The first screen of the report](run.png)" in (out / "README.md").read_text()
