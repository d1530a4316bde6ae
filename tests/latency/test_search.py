"""How the time of `autoopt latency` is divided between looks and their proof."""

from __future__ import annotations

from typing import Any

import pytest

from autoopt.errors import TrialFailed
from autoopt.latency.measuring import FEWEST
from autoopt.latency.options import Serve
from autoopt.latency.search import Looked, Search
from autoopt.latency.serving.variants import Variant
from autoopt.options import Options
from autoopt.records.latency import Served


class Slow:
    """Servers of variants whose artefact takes all the time that it is given."""

    def __init__(self) -> None:
        self.now = 0.0
        self.given: list[float] = []

    def prepare(self, variant: Variant, timeout: float) -> None:
        self.given.append(timeout)
        self.now += timeout
        raise TrialFailed("timeout", f"no answer within {timeout:g} s")


class Baseline:
    def __init__(self) -> None:
        self.asked: dict[int, Any] = {}


def looked(name: str, start: float) -> Looked:
    served = Served(name=name, variant=Variant().document(), status="screened", screened_p95=0.001, keeps="yes")
    return Looked(Variant(), served, start_seconds=start)


@pytest.mark.parametrize("start", [1.0, 6.0])
def test_what_takes_long_to_make_leaves_the_time_of_the_proof(start: float) -> None:
    """Half a minute of compiling must not leave the others with fewer processes than an interval needs."""
    servers, options, serve = Slow(), Options(budget_seconds=110.0), Serve(limit_seconds=0.02)
    search = Search(servers, serve, options, lambda text: None, lambda: servers.now)  # type: ignore[arg-type]
    search.start_seconds = 1.0
    search.looks = [looked("as it is", 1.0), looked("quick", start)]
    servers.now = 45.0
    search._consider(Variant(), "", Baseline())  # type: ignore[arg-type]
    assert servers.given
    assert search.left >= search.reserve == FEWEST * search.set_seconds(search.looks[1:2])
    servers.now = 110.0 - search.reserve + 1.0
    search._consider(Variant(), "", Baseline())  # type: ignore[arg-type]
    assert search.looks[-1].served.status == "not_tried"
    assert len(servers.given) == 1
