"""From a plan to something usable: a plain script, arguments of other trainers, lines to paste."""

from __future__ import annotations

from autoopt.export.targets import export

__all__ = ["export"]
