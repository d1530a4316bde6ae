"""What the loops around a step say of its end, read from their lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoopt.script.loops import ends_by_result

EPOCHS = "for epoch in range(3):\n    for batch in range(2):\n        step()\n"
ENDS = {
    "nothing ends it": (EPOCHS, False),
    "a metric is at its target": (f"{EPOCHS}    if 0.9 >= target:\n        break\n", True),
    "a loss falls below one": ("loss = 2.0\nwhile loss > target:\n    step()\n    loss -= 1.5\n", True),
    "nothing has improved for long": (f"best = 0.0\n{EPOCHS}    if best + 0.1 < target:\n        break\n", True),
    "a counter": ("number = 0\nwhile number < 3:\n    step()\n    number += 1\n", False),
    "a counter within": (f"{EPOCHS}        if batch >= 1:\n            break\n", False),
    "a switch": (f"dry = True\n{EPOCHS}    if dry:\n        break\n", False),
    "a comparison that ends nothing": (f"{EPOCHS}    if 0.9 >= target:\n        best = epoch\n", False),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_loop_that_its_result_may_end_is_known_by_its_lines(tmp_path: Path, name: str) -> None:
    text, ends = ENDS[name]
    file, found = tmp_path / "train.py", list[bool]()
    file.write_text(f"def main():\n    target = 0.5\n    {text.replace(chr(10), chr(10) + '    ')}\nmain()\n")
    exec(compile(file.read_text(), str(file), "exec"), {"step": lambda: found.append(ends_by_result())})
    assert set(found) == {ends}
