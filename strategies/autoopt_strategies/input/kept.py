"""What a dataset prepares for an index, kept: a patch holds it as it is."""

from __future__ import annotations

import functools
from typing import Any


def kept_by_index(prepare: Any) -> Any:
    """A method of a dataset that makes the same of an index every time: made once, then taken from memory."""

    @functools.wraps(prepare)
    def read(self: Any, index: Any) -> Any:
        kept = self.__dict__.setdefault("_kept", {})
        key = index.item() if hasattr(index, "item") else index
        if key not in kept:
            kept[key] = prepare(self, index)
        return kept[key]

    return read
