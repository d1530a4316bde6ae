"""One self-contained page from one document: ``render`` gives the text, ``write`` puts it on disk.

Nothing in the page asks the network for anything, and its policy would not allow it. A number carries ``data-v`` (its
value), ``data-p`` (JSON pointers into the embedded document) and, where it was derived, ``data-h`` (how). A name is
isolated, so that right-to-left text cannot reorder what stands around it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from autoopt.records import Profile, Record, Result
from autoopt.records.writing import replacing
from autoopt_reports.charts import planes, rows
from autoopt_reports.view import Report
from autoopt_reports.view.page import ProfileView
from autoopt_reports.view.text import Interval, Name, Number, Part, Phrase

REPORT_FILE, PROFILE_FILE = "report.html", "profile.html"


def attributes(number: Number, *, sortable: bool = False) -> Markup:
    """The value stands in the page where it was derived or is sorted by; else the pointer is enough."""
    written = number.value is not None and (sortable or number.how not in ("", "interval"))
    value = Markup('data-v="{}" ').format(f"{number.value:.6g}") if written else Markup("")
    how = Markup(' data-h="{}"').format(number.how) if number.how else Markup("")
    return Markup('{}data-p="{}"{}').format(value, " ".join(number.paths), how)


def show(value: Part | Phrase | Interval | None, *, svg: bool = False) -> Markup:
    """Anything of a view, as HTML; ``svg``: inside an SVG text element."""
    if value is None:
        return Markup("" if svg else '<span class="missing">not measured</span>')
    if isinstance(value, Interval):
        return show(value.phrase)
    if isinstance(value, Phrase):
        return Markup("").join(show(part, svg=svg) for part in value.parts)
    if isinstance(value, Number):
        kind = Markup(' class="missing"') if value.missing and not svg else Markup("")
        return Markup("<{0}{1} {2}>{3}</{0}>").format("tspan" if svg else "span", kind, attributes(value), value.text)
    if isinstance(value, Name):
        long = Markup(' class="long"') if any(len(word) > 36 for word in value.text.split()) else Markup("")
        tag, kind = ("tspan", Markup(' class="u"')) if svg else ("bdi", long)
        return Markup("<{0}{1}>{2}</{0}>").format(tag, kind, value.text)
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


def render(document: Result | Profile) -> str:
    """The report of a run, or of ``autoopt profile``."""
    if isinstance(document, Profile):
        return page("profile.html.j2", document, view=ProfileView(document))
    return page("report.html.j2", document, view=Report(document))


def write_page(document: Result | Profile, complain: Callable[[str], object]) -> Path | None:
    """Writes the page of a run or a profile; None where it has no directory, or the page cannot be made.

    Whatever goes wrong with the page must not cost the result of a run that took hours: it is said, and no more.
    """
    directory = document.reproduce.run_directory
    if directory is None:
        return None
    page = Path(directory) / (REPORT_FILE if isinstance(document, Result) else PROFILE_FILE)
    try:
        return write_text(render(document), page)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        complain(f"{page} could not be written: {why}; render it later: autoopt report {directory}")
        return None


def write_text(text: str, path: Path) -> Path:
    """Puts a page into ``path`` (UTF-8); a reader never sees half of it."""
    with replacing(path) as file:
        file.write(text.encode(errors="replace"))
    return path


@dataclass(frozen=True, slots=True)
class Table:
    """A table of texts. ``marks``: classes of the rows, by their place; ``note``: what it rests on."""

    id: str
    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    marks: Mapping[int, str] = field(default_factory=dict)


def tables_page(document: Record, **view: object) -> str:
    """A self-contained page of tables: of ``autoopt compare``, ``latency`` and ``report --against``.

    Args:
        view: ``brand`` (the command), ``title``, ``headline`` and ``tables``; where there are any, ``facts`` (label and
            text), ``tradeoffs``, ``lead`` (a sentence below the headline), ``differences`` (why the two sides are not
            quite comparable) and ``output`` (of an acceptance test); ``tone``: ``win``, or else ``none``.
    """
    absent = {"tone": "none", "lead": "", "facts": (), "differences": (), "tradeoffs": (), "output": ""}
    return page("tables.html.j2", document, **(absent | view))


def lines(facts: Iterable[tuple[str, str]]) -> Iterator[str]:
    """The facts of such a page as lines for a terminal."""
    return (f"{label[0].lower()}{label[1:]}: {text}" for label, text in facts)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("autoopt_reports"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"show": show, "svg": partial(show, svg=True), "cell": cell}
    environment.globals |= {"rows": rows, "planes": planes}
    return environment


@cache
def _asset(name: str) -> str:
    return resources.files("autoopt_reports").joinpath("templates", name).read_text(encoding="utf-8").strip()


def page(template: str, document: Record, **view: object) -> str:
    """A page of a template; the document is embedded."""
    style, script = _asset("style.css"), _asset("script.js")
    policy = (
        f"default-src 'none'; img-src data:; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        _environment()
        .get_template(template)
        .render(style=style, script=script, policy=policy, document=embedded(document), **view)
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def embedded(document: Record) -> str:
    """The document, packed (gzip, base64) for a download link; the same document gives the same text."""
    return base64.b64encode(gzip.compress(document.model_dump_json().encode(), compresslevel=9, mtime=0)).decode()
