"""A result as a card for a README: one before and after with its interval, as SVG and as PNG.

Both are drawn from one list of shapes, so that they say the same.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from xml.sax.saxutils import escape

from autoopt.records import Result
from autoopt_reports.view import units
from autoopt_reports.view.claims import claim_of
from autoopt_reports.view.verdict import VerdictView

WIDTH, HEIGHT = 720, 236
"""Pixels: as wide as a README shows pictures."""
PNG_SCALE = 2
"""Pixels of the picture to one of the drawing: screens are dense."""
_LEFT, _BAR_AT, _BAR_MOST = 32, 136, 420
"""Pixels from the left to the text and to the bars, and the longest bar; its figure fits behind it."""
_INK, _MUTED, _PAPER, _BEFORE, _AFTER = "#1b1f24", "#59636e", "#ffffff", "#b3bac2", "#2f6f4f"


@dataclass(frozen=True, slots=True)
class Box:
    x: float
    y: float
    width: float
    height: float
    fill: str


@dataclass(frozen=True, slots=True)
class Text:
    x: float
    y: float
    text: str
    size: int
    fill: str = _INK
    bold: bool = False


Shape = Box | Text


def shapes(result: Result) -> list[Shape]:
    """The items on the card, in pixels from the upper left corner."""
    verdict = VerdictView(result)
    found: list[Shape] = [Box(0, 0, WIDTH, HEIGHT, _PAPER), Box(0, 0, 6, HEIGHT, _AFTER)]
    found.append(_fitted(_LEFT, 46, str(verdict.headline), 28, bold=True))
    found.append(_fitted(_LEFT, 74, "; ".join(map(str, verdict.qualifiers)) or str(verdict.support[-1]), 15, _MUTED))
    found += _bars(result)
    machine = result.environment.device_name or result.environment.device
    checked = "verified end to end" if result.speedup.end_to_end_verified else "not verified end to end"
    names = [each if len(each) <= 24 else each[:23] + "…" for each in (result.workload.name, machine)]
    parts = [*names, f"autoopt {result.autoopt_version}", result.created[:10], *([checked] if result.found else [])]
    found.append(_fitted(_LEFT, HEIGHT - 20, " · ".join(filter(None, parts)), 13, _MUTED))
    return found


def _bars(result: Result) -> list[Shape]:
    """Seconds before and after, the interval of the factor upon the second."""
    facts = ((fact.label, fact.before.value, fact.after.value) for fact in VerdictView(result).facts[:2])
    # the first time of the page that both sides have
    pair = next(((label, before, after) for label, before, after in facts if before and after), None)
    if pair is None:
        return [_fitted(_LEFT, 130, "before and after: not measured", 16, _MUTED)]
    title, before, after = pair
    claim = claim_of(result)
    bounds: tuple[float, ...] = ()  # seconds after, at both ends of the factor's interval
    low, high = (claim.interval.low.value, claim.interval.high.value) if claim.interval is not None else (None, None)
    if low and high and claim.status != "none":
        bounds = before / high, before / low
    longest = max(before, after, *bounds)
    shapes: list[Shape] = [_fitted(_LEFT, 104, title, 13, _MUTED)]
    bars = [(116, "before", before, _BEFORE), (154, "after", after, _AFTER)]
    if not result.found:
        bars = [(116, "as it is", before, _BEFORE)]
    for top, label, seconds, fill in bars:
        length = _BAR_MOST * seconds / longest
        shapes += [Text(_LEFT, top + 21, label, 16), Box(_BAR_AT, top, length, 28, fill)]
        end = max(seconds, *bounds) if label == "after" and bounds else seconds
        shapes.append(Text(_BAR_AT + _BAR_MOST * end / longest + 12, top + 21, units.duration(seconds), 16, bold=True))
    if bounds:
        left, right = (_BAR_AT + _BAR_MOST * seconds / longest for seconds in bounds)
        shapes += [Box(left, 167, right - left, 2, _INK), *(Box(at - 1, 161, 2, 14, _INK) for at in (left, right))]
    return shapes


def _fitted(x: float, y: float, text: str, size: int, fill: str = _INK, *, bold: bool = False) -> Text:
    # about the width of a letter over its size
    most = int((WIDTH - x - 16) / (size * 0.56))
    flat = " ".join(text.split())
    return Text(x, y, flat if len(flat) <= most else flat[: most - 1] + "…", size, fill, bold)


def svg(result: Result) -> str:
    """The card as one SVG file that asks for nothing else; names of the user's are escaped."""
    drawn = "\n".join(_drawn(shape) for shape in shapes(result))
    title = _escaped(str(VerdictView(result).headline))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">\n'
        f"<title>{title}</title>\n{drawn}\n</svg>\n"
    )


def _drawn(shape: Shape) -> str:
    if isinstance(shape, Box):
        place = f'x="{shape.x:g}" y="{shape.y:g}" width="{shape.width:.1f}" height="{shape.height:g}"'
        return f'<rect {place} fill="{shape.fill}"/>'
    weight = ' font-weight="600"' if shape.bold else ""
    return (
        f'<text x="{shape.x:.1f}" y="{shape.y:g}" font-size="{shape.size}" fill="{shape.fill}"{weight}>'
        f"{_escaped(shape.text)}</text>"
    )


def _escaped(text: str) -> str:
    """Text for an SVG, without characters that XML knows no way to hold."""
    kept = "".join(c for c in text if c.isprintable())
    return escape(kept, {'"': "&quot;"})


def _plain(text: str) -> str:
    """Text that the font which Pillow brings can show."""
    known = text.replace("×", "x").replace("–", "-").replace("→", "to").replace("…", "...").replace("·", "|")
    return "".join(c if " " <= c <= "~" else "?" for c in known)


def png(result: Result) -> bytes:
    """The card as a PNG, at twice the size.

    Raises:
        ModuleNotFoundError: Pillow is not installed.
    """
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (WIDTH * PNG_SCALE, HEIGHT * PNG_SCALE), _PAPER)
    draw = ImageDraw.Draw(image)
    font: Callable[[int], Any] = lambda size: ImageFont.load_default(size * PNG_SCALE)  # noqa: E731
    for shape in shapes(result):
        if isinstance(shape, Box):
            x, y, right, low = (
                PNG_SCALE * n for n in (shape.x, shape.y, shape.x + shape.width, shape.y + shape.height)
            )
            draw.rectangle((x, y, max(right - 1, x), low - 1), fill=shape.fill)
        else:
            at = (PNG_SCALE * shape.x, PNG_SCALE * shape.y)
            weight = 1 if shape.bold else 0
            draw.text(at, _plain(shape.text), shape.fill, font(shape.size), anchor="ls", stroke_width=weight)
    out = io.BytesIO()
    image.save(out, "PNG", optimize=True)
    return out.getvalue()
