"""The gallery: reports of real runs, rendered again from their ``result.json``, and an index of what they say.

``python -m benchmarks.gallery RUN [RUN ...] --out docs/gallery [--screenshots]``. Every line
of the index is taken from the documents; with ``--screenshots`` a Chromium takes the first screen.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from autoopt.errors import DocumentError, EnvironmentLacks
from autoopt.records.reading import read_result
from autoopt_reports import html
from autoopt_reports.view import Report
from benchmarks.documents import parser_of

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


@dataclass(frozen=True, slots=True)
class Exhibit:
    """One run in the gallery."""

    headline: str
    qualifiers: str
    machine: str
    created: str
    page: Path


def exhibit(path: Path, out: Path) -> Exhibit:
    """Renders one run into ``out``."""
    stem = (path if path.is_dir() else path.parent).resolve().name
    result = read_result(path)
    # where the run directory lay on this machine says nothing to a reader on another
    reported = result.reproduce.model_copy(update={"run_directory": f"autoopt-runs/{stem}"})
    result = result.model_copy(update={"reproduce": reported})
    view = Report(result)
    page = html.write_text(html.render(result), out / f"{stem}.html")
    machine = result.environment.device_name or result.environment.cpu or result.environment.device
    qualifiers = ", ".join(str(piece) for piece in view.verdict.qualifiers)
    return Exhibit(str(view.verdict.headline), qualifiers, machine, result.created[:10], page)


def index(exhibits: list[Exhibit], *, screenshots: bool) -> str:
    """The gallery's README."""
    lines = [
        "# Gallery",
        "",
        "Reports of finished runs, rendered from their `result.json` by `make gallery`.",
        "",
    ]
    for item in exhibits:
        lines += [
            f"## {_plain(item.page.stem)}",
            "",
            f"**{_plain(item.headline)}**"
            + (f" ({_plain(item.qualifiers)})" if item.qualifiers else "")
            + f", on {_plain(item.machine)}, {item.created}. [Report]({item.page.name})",
            "",
        ]
        if screenshots:
            lines += [f"![The first screen of the report]({item.page.with_suffix('.png').name})", ""]
    return "\n".join(lines).rstrip() + "\n"


def _plain(text: str) -> str:
    """The user's text with Markdown's own signs escaped."""
    return "".join("\\" + c if c in "\\`*_[]<>#|!" else c for c in text)


def browser() -> str:
    """Raises: EnvironmentLacks: no Chromium is installed."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise EnvironmentLacks("screenshots need a Chromium, and none is on the PATH", hint="leave --screenshots out")
    return found


def screenshot(page: Path, program: str) -> Path:
    """The first screen at 1280×800, next to the page."""
    picture = page.with_suffix(".png")
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                program,
                *FLAGS,
                f"--user-data-dir={profile}",
                "--window-size=1280,800",
                f"--screenshot={picture.resolve()}",
                page.resolve().as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
    return picture


def main(arguments: list[str] | None = None) -> int:
    parser = parser_of("benchmarks.gallery", __doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="run directories, or result.json files")
    parser.add_argument("--out", type=Path, default=Path("docs/gallery"))
    parser.add_argument("--screenshots", action="store_true", help="take the first screen of each with Chromium")
    options = parser.parse_args(arguments)
    try:
        program = browser() if options.screenshots else ""
        exhibits = [exhibit(run, options.out) for run in options.runs]
        for item in exhibits if program else []:
            screenshot(item.page, program)
    except (DocumentError, EnvironmentLacks) as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    (options.out / "README.md").write_text(index(exhibits, screenshots=bool(program)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
