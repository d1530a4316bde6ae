"""Numbers, names and sentences as HTML and as SVG text: the only place that makes markup in Python.

A number carries ``data-v`` (its value), ``data-p`` (JSON pointers into the embedded document) and,
where it was derived, ``data-h`` (how). A name is isolated, so that right-to-left text cannot
reorder what stands around it.
"""

from __future__ import annotations

from markupsafe import Markup, escape

from autoopt_reports.view.text import Interval, Name, Number, Part, Phrase


def attributes(number: Number, *, sortable: bool = False) -> Markup:
    """The value stands in the page where it was derived or is sorted by; else the pointer is enough."""
    written = number.value is not None and (sortable or number.how not in ("", "interval"))
    value = Markup('data-v="{}" ').format(f"{number.value:.6g}") if written else Markup("")
    how = Markup(' data-h="{}"').format(number.how) if number.how else Markup("")
    return Markup('{}data-p="{}"{}').format(value, number.source, how)


def show(value: Part | Phrase | Interval | None) -> Markup:
    """Anything of a view, as HTML."""
    if value is None:
        return Markup('<span class="missing">not measured</span>')
    if isinstance(value, Interval):
        return show(value.phrase)
    if isinstance(value, Phrase):
        return Markup("").join(show(part) for part in value.parts)
    if isinstance(value, Number):
        kind = Markup(' class="missing"') if value.missing else Markup("")
        return Markup("<span{} {}>{}</span>").format(kind, attributes(value), value.text)
    if isinstance(value, Name):
        long = Markup(' class="long"') if any(len(word) > 36 for word in value.text.split()) else Markup("")
        return Markup("<bdi{}>{}</bdi>").format(long, value.text)
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


def cell(value: Interval | Number | None, base: str = "", sortable: bool = False) -> Markup:
    """A table cell. An interval is one element: its value, low and high in this order.

    Args:
        value: what it shows; None reads "not measured".
        base: the ``data-at`` of the row; the cell's pointer continues from there, so long tables stay small.
        sortable: whether the script sorts by it, which needs the value itself.
    """
    if value is None:
        return Markup('<td class="missing">not measured</td>')
    if isinstance(value, Interval):
        source = value.value.paths[0].removesuffix("/value")
        value = Number(value.text, value.value.value, (source,), "interval")
    number = Number(
        value.text, value.value, tuple(p.removeprefix(base + "/") if base else p for p in value.paths), value.how
    )
    kind = Markup(' class="missing"') if number.missing else Markup("")
    return Markup("<td{} {}>{}</td>").format(kind, attributes(number, sortable=sortable), number.text)
