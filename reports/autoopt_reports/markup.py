"""Numbers, names and sentences as HTML and as SVG text: the only place that makes markup in Python.

A number carries ``data-v`` (its value), ``data-p`` (JSON pointers into the embedded document) and,
where it was derived, ``data-h`` (how). A name is isolated, so that right-to-left text cannot
reorder what stands around it.
"""

from __future__ import annotations

from markupsafe import Markup, escape

from autoopt_reports.view.text import Interval, Name, Number, Part, Phrase


def attributes(number: Number) -> Markup:
    value = "" if number.value is None else f"{number.value:.6g}"
    how = Markup(' data-h="{}"').format(number.how) if number.how else ""
    return Markup('data-v="{}" data-p="{}"{}').format(value, number.source, how)


def show(value: Part | Phrase | Interval | None) -> Markup:
    """Anything of a view, as HTML."""
    if value is None:
        return Markup('<span class="missing">not measured</span>')
    if isinstance(value, Interval):
        return show(value.phrase)
    if isinstance(value, Phrase):
        return Markup("").join(show(part) for part in value.parts)
    if isinstance(value, Number):
        kind = "n missing" if value.missing else "n"
        return Markup('<span class="{}" {}>{}</span>').format(kind, attributes(value), value.text)
    if isinstance(value, Name):
        return Markup('<bdi class="u">{}</bdi>').format(value.text)
    return Markup(escape(value))


def svg(value: Part | Phrase | None) -> Markup:
    """Anything of a view, inside an SVG text element."""
    if value is None:
        return Markup("")
    if isinstance(value, Phrase):
        return Markup("").join(svg(part) for part in value.parts)
    if isinstance(value, Number):
        return Markup("<tspan {}>{}</tspan>").format(attributes(value), value.text)
    if isinstance(value, Name):
        return Markup('<tspan class="u">{}</tspan>').format(value.text)
    return Markup(escape(value))


def cell(value: Interval | Number | None, extra: str = "") -> Markup:
    """A table cell. An interval is one element: its value, low and high in this order."""
    if value is None:
        return Markup('<td class="missing">not measured</td>')
    if isinstance(value, Interval):
        source = value.value.paths[0].removesuffix("/value")
        number = Number(value.text, value.value.value, (source,), "interval")
        return Markup('<td class="num" {}>{}</td>').format(attributes(number), number.text)
    kind = "num missing" if value.missing else "num"
    return Markup('<td class="{}" {}>{}</td>').format(kind, attributes(value), value.text)


def relative(value: Interval | Number | None, base: str) -> Markup:
    """A cell of a row whose ``data-at`` is ``base``: its pointer continues from there, which keeps long tables small."""
    if isinstance(value, Interval):
        source = value.value.paths[0].removesuffix("/value").removeprefix(base + "/")
        return cell(Number(value.text, value.value.value, (source,), "interval"))
    if isinstance(value, Number):
        return cell(Number(value.text, value.value, tuple(p.removeprefix(base + "/") for p in value.paths), value.how))
    return cell(value)
