"""Size and render time of reports: ``python -m benchmarks.report_size [--json FILE]``.

Uses synthetic documents: what is measured is the renderer, not a training run. Exits with 1 where
a page is larger than the report's limits (250 KiB at 50 trials, 1 MiB at 1,000).
"""

from __future__ import annotations

import argparse
import gzip
import json
import platform
import statistics
import sys
import time
from pathlib import Path

from autoopt_reports import html
from benchmarks import sample

LIMITS = {50: 250 * 1024, 1000: 1024 * 1024}
REPEATS = 7


def measure(trials: int) -> dict[str, float | int]:
    """Bytes of the page and seconds to render it; the first render also loads the templates."""
    result = sample.many(trials)
    times = []
    page = ""
    for _ in range(REPEATS):
        start = time.perf_counter()
        page = html.render(result)
        times.append(time.perf_counter() - start)
    encoded = page.encode()
    return {
        "trials": trials,
        "result_json_bytes": len(result.model_dump_json().encode()),
        "page_bytes": len(encoded),
        "page_bytes_gzip": len(gzip.compress(encoded)),
        "limit_bytes": LIMITS[trials],
        "first_render_seconds": round(times[0], 4),
        "render_seconds_median": round(statistics.median(times[1:]), 4),
        "repeats": REPEATS - 1,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the figures there, with their environment")
    options = parser.parse_args()
    rows = [measure(trials) for trials in LIMITS]
    for row in rows:
        page, limit, packed = (row[key] / 1024 for key in ("page_bytes", "limit_bytes", "page_bytes_gzip"))
        usual, first = (row[key] * 1000 for key in ("render_seconds_median", "first_render_seconds"))
        sys.stdout.write(
            f"{row['trials']:>5} trials: page {page:.0f} KiB of {limit:.0f} KiB allowed, {packed:.0f} KiB packed; "
            f"rendered in {usual:.0f} ms (first time {first:.0f} ms)\n"
        )
    if options.json:
        environment = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.system()}
        options.json.write_text(json.dumps({"environment": environment, "reports": rows}, indent=1) + "\n")
    return int(any(row["page_bytes"] > row["limit_bytes"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
