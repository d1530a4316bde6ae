"""Code of exported scripts: real code with conditions on the plan, which is decided before it is printed.

``plan`` has the names that ``autoopt.export.script.known_of`` gives; none of them stands in an exported script.
"""

from __future__ import annotations

from typing import Any

plan: Any = None
