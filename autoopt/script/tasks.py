"""Tasks that only the process of a script can be asked for."""

from __future__ import annotations

from autoopt.records import JsonDict
from autoopt.script.context import ScriptContext

WATCHED_STEPS = 24
WATCHED_SECONDS = 8.0


def sites(live: ScriptContext, seconds: float = WATCHED_SECONDS, steps: int = WATCHED_STEPS) -> JsonDict:
    """What the script has shown after so many steps, or after that time: :class:`~autoopt.records.Sites`."""
    script = live.script
    assert script.observer is not None, "only a watched script knows its sites"
    script.session.run_until_over(lambda done, elapsed: done >= steps or elapsed >= seconds)
    return script.sites().model_dump(mode="json")
