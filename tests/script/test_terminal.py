"""Scripts that ask the terminal for its size, as progress bars do, and what reads an input that has ended."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASKS = """
import os, sys
from autoopt.script.execute import take_input
take_input({terminal})
os.execv(sys.executable, [sys.executable, "-c", '''
import os
print(os.popen("stty size 2>&1").read().split()[:2], os.isatty(0))
for _ in range(3):
    try:
        print(input("sure? "))
    except EOFError:
        print("ended")
'''])
"""


@pytest.mark.parametrize(("terminal", "size"), [(True, "['24', '80'] True"), (False, "False")])
def test_a_script_has_the_kind_of_input_that_its_user_has(terminal: bool, size: str) -> None:
    """`stty size` of a popular script said nothing under autoopt, and its import failed."""
    done = subprocess.run(
        [sys.executable, "-c", ASKS.format(terminal=terminal)], capture_output=True, text=True, timeout=60, check=True
    )
    first, *rest = done.stdout.splitlines()
    assert first.endswith(size)
    assert "".join(rest).count("ended") == 3, "it does not wait for what nobody types"
