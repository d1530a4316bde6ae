"""The card of a result, and two runs side by side."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from autoopt.cli.entry import run
from autoopt.records import Result
from autoopt_reports import against, card
from autoopt_reports.view import units
from sample import DOCUMENTS, no_gain, win

NAMES = [name for name in DOCUMENTS if name != "thousand"]


@pytest.mark.parametrize("name", NAMES)
def test_any_result_has_a_card_that_stays_within_itself(name: str) -> None:
    result = DOCUMENTS[name]()
    tree = ElementTree.fromstring(card.svg(result))
    assert tree.tag.endswith("svg")
    assert "script" not in {element.tag.rpartition("}")[2] for element in tree.iter()}
    for shape in card.shapes(result):
        assert 0 <= shape.x <= card.WIDTH
        assert 0 <= shape.y <= card.HEIGHT
        if isinstance(shape, card.Box):
            assert shape.x + shape.width <= card.WIDTH + 1e-6
            assert shape.width >= 0


def test_the_card_says_what_the_report_says(tmp_path: Path) -> None:
    result = win()
    texts = [shape.text for shape in card.shapes(result) if isinstance(shape, card.Text)]
    estimate, before = result.speedup.time_to_target, result.baseline.time_to_target_seconds
    assert texts[0] == f"{estimate.value:.2f}× faster to target"
    assert units.duration(before.value) in texts
    assert units.duration(before.value / estimate.value) in texts, "who divides the seconds gets the factor"
    assert "CI" in texts[1]
    bars = {
        shape.fill: shape.width for shape in card.shapes(result) if isinstance(shape, card.Box) and shape.height == 28
    }
    assert max(bars.values()) / min(bars.values()) == pytest.approx(estimate.value)


def test_a_card_without_a_gain_claims_none() -> None:
    texts = [shape.text for shape in card.shapes(no_gain()) if isinstance(shape, card.Text)]
    assert texts[0] == "No safe gain found"
    assert "after" not in texts
    assert not any(re.search(r"\d× faster", text) for text in texts)


def test_the_png_is_drawn_from_the_same_shapes() -> None:
    image = pytest.importorskip("PIL.Image")
    drawn = image.open(io.BytesIO(card.png(win())))
    assert drawn.size == (card.PNG_SCALE * card.WIDTH, card.PNG_SCALE * card.HEIGHT)
    after = next(s for s in card.shapes(win()) if isinstance(s, card.Box) and s.fill == card._AFTER and s.height == 28)
    inside = (card.PNG_SCALE * (after.x + 4), card.PNG_SCALE * (after.y + 4))
    assert "#{:02x}{:02x}{:02x}".format(*drawn.getpixel(inside)) == card._AFTER


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    for name, result in (("old", no_gain()), ("new", win())):
        (tmp_path / name).mkdir()
        (tmp_path / name / "result.json").write_text(result.model_dump_json())
    return tmp_path / "old", tmp_path / "new"


def test_the_command_writes_both_files(
    runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["report", str(runs[1]), "--card"]) == 0
    assert capsys.readouterr().out.splitlines() == [str(runs[1] / name) for name in ("card.svg", "card.png")]
    assert (runs[1] / "card.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setitem(sys.modules, "PIL", None)  # as where it is not installed
    assert run(["report", str(runs[1]), "--card", "--out", str(runs[1] / "other")]) == 4
    assert (runs[1] / "other.svg").exists()
    assert "autoopt[card]" in capsys.readouterr().err
    assert run(["report", str(runs[1]), "--card", "--json"]) == 2


def test_two_runs_stand_side_by_side(runs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", str(runs[1]), "--against", str(runs[0])]) == 0
    page = Path(capsys.readouterr().out.strip()).read_text()
    assert page.lower().startswith("<!doctype html>")
    assert "no worse" in page
    assert "2.31× faster to target" in page
    assert "No safe gain found" in page
    assert "http" not in re.sub(r"http://www.w3.org/\S+", "", page.partition("<main>")[2].partition("<script>")[0])


def test_what_differs_between_two_runs_is_told_first() -> None:
    old: Result = win()
    other = old.model_copy(update={"environment": old.environment.model_copy(update={"torch": "1.0", "cores": 3})})
    told = list(against.differences(other, old))
    assert f"torch: {old.environment.torch} → 1.0" in told
    assert f"cores: {old.environment.cores} → 3" in told
    assert list(against.differences(old, old)) == []
    rows = {row[0]: row[1:] for table in against.tables(no_gain(), win()) for row in table.rows}
    assert rows["verdict"][1] == "No safe gain found"
    assert "×" in rows["amp=bfloat16"][0]
