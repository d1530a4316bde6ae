"""The patch of a run on a script: on the page right below the verdict, and at the end of the terminal's text."""

from __future__ import annotations

import io
from html import escape

from rich.console import Console

from autoopt.records import PatchedChange, Result, ScriptPatch, Site, Sites
from autoopt_reports import html
from autoopt_reports.console import summary
from benchmarks import sample

DIFF = """--- a/train.py
+++ b/train.py
@@ -1,2 +1,2 @@
-loader = DataLoader(data, batch_size=32)
+loader = DataLoader(data, batch_size=32, num_workers=2)
 name = "<b>"
"""


def a_script(diff: str = DIFF) -> Result:
    sites = Sites(
        command=("/usr/bin/python", "train.py", "--name", "two words"),
        cwd="/home/user/project",
        sites=(Site(kind="loader_training", file="train.py", line=1, end_line=1, call="DataLoader"),),
    )
    changes = (
        PatchedChange(strategy="workers", setting={"num_workers": 2}, how="patched", file="train.py", line=1),
        PatchedChange(strategy="threads", setting={"threads": 1}, how="plan only", reason="no line of it says so"),
    )
    return sample.win().model_copy(update={"sites": sites, "patch": ScriptPatch(diff=diff, changes=changes)})


def test_the_diff_stands_right_below_the_verdict() -> None:
    page = html.render(a_script())
    assert escape(DIFF, quote=True).replace("&#x27;", "&#39;").replace("&quot;", "&#34;") in page
    assert page.index('id="verdict"') < page.index('id="patch"') < page.index('id="adopt"')
    assert "no line of it says so" in page
    assert "train.py &#39;--name&#39;" not in page
    assert "autoopt apply" in page


def test_a_function_that_describes_the_run_has_no_patch() -> None:
    page = html.render(sample.win())
    assert 'id="patch"' not in page
    assert "autoopt apply" not in page


def test_variables_are_lines_of_an_environment_file() -> None:
    found = a_script()
    patch = found.patch.model_copy(update={"environment": {"MALLOC_MMAP_MAX_": "0", "B": "<1>"}})  # type: ignore[union-attr]
    page = html.render(found.model_copy(update={"patch": patch}))
    assert "MALLOC_MMAP_MAX_=0\nB=&lt;1&gt;\n" in page
    assert "autoopt.env" not in html.render(found)


def test_a_plan_without_a_line_says_how_it_is_used() -> None:
    page = html.render(a_script(diff=""))
    assert "the plan applies it while the script runs" in page
    assert "autoopt apply" not in page
    assert "autoopt run --plan" in page


def test_a_script_that_a_launcher_starts_is_trained_by_it_again() -> None:
    found = a_script()
    spec = "torchrun --nproc-per-node 4 train.py"
    launched = found.workload.model_copy(update={"spec": spec, "processes": 4})
    assert f"-- {spec}" in html.render(found.model_copy(update={"workload": launched}))


def test_the_terminal_ends_with_the_diff_and_what_to_do() -> None:
    text = io.StringIO()
    summary(a_script(), Console(file=text, width=100, no_color=True))
    shown = text.getvalue()
    assert "1 of 2 kept changes are in the patch" in shown
    assert "+loader = DataLoader(data, batch_size=32, num_workers=2)" in shown
    assert "with the plan alone: no line of it says so" in shown
    assert "-- /usr/bin/python train.py --name 'two words'" in shown
    assert shown.index("+loader") < shown.index("autoopt apply")
