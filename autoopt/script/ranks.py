"""The processes of a script that a launcher starts: what they tell each other, and time that they spent waiting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch.distributed import FileStore  # type: ignore[attr-defined]

from autoopt.benchmark.distributed.board import Board
from autoopt.benchmark.distributed.group import PATIENCE, Group, Ranks
from autoopt.records.messages import Block
from autoopt.trial.protocol import Rank

T = TypeVar("T")

_BLOCK = "autoopt.Block"


class ScriptRanks(Ranks):
    """One of several processes of a script. What they tell each other goes past the script's own process group.

    Args:
        place: of this process.
        device: what it trains on.
        store: that all of them reach.
    """

    def __init__(self, place: Rank, device: torch.device, store: Any) -> None:
        super().__init__(place.rank, place.size, device, Board(f"{place.folder}/board"))
        self._store, self._said = store, 0

    def gather(self, value: T) -> list[T]:
        self._said += 1
        self._store.set(f"{self._said}/{self.rank}", _text(value))
        found: list[T] = [_value(self._store.get(f"{self._said}/{rank}")) for rank in range(self.size)]
        self._store.delete_key(f"{self._said - 1}/{self.rank}")  # who has said this has heard that
        return found

    def agree(self, value: T) -> T:
        return self.gather(value if self.first else None)[0]  # type: ignore[return-value]

    def wait(self) -> None:
        self.gather(None)


def meet(place: Rank | None, device: torch.device) -> Group:
    """The processes of a script, once each of them has come to the end of its first step.

    What they say lies in a file of the trial's private folder: a port could be spoken to by others.
    """
    if place is None:
        return Group()
    store = FileStore(str(Path(place.folder, "said")), place.size)
    store.set_timeout(PATIENCE)
    return ScriptRanks(place, device, store)


def _text(value: Any) -> str:
    return json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    """A form in JSON of what is told of blocks and probes."""
    if isinstance(value, Block):
        return {_BLOCK: value.model_dump(mode="json")}
    return (
        value.hex() if isinstance(value, bytes) else sorted(value, key=str) if isinstance(value, set) else float(value)
    )


def _value(text: bytes) -> Any:
    return json.loads(text, object_hook=lambda found: Block.model_validate(found[_BLOCK]) if _BLOCK in found else found)
