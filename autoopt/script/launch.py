"""A script trained for real with a plan: no code changed, nothing measured, its files written as ever."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from autoopt.records import Plan, Sites
from autoopt.script.execute import listening
from autoopt.script.launched import PASSED_ON
from autoopt.script.orders import Orders
from autoopt.trial.protocol import ScriptSpec, TrialSpec


def run_with_plan(
    script: ScriptSpec,
    plan: Plan,
    sites: Sites,
    *,
    strategies: Sequence[str] = (),
    env: Mapping[str, Any] | None = None,
) -> int:
    """Runs a command to its end with a plan put on it, in the present folder and on the terminal's own streams.

    Args:
        script: the command; of one that a launcher starts in several processes the launcher is run.
        plan: put on at the sites.
        sites: of the run that found the plan.
        strategies: import strings of custom ones in the plan.
        env: environment variables of the plan's setup, set before anything is imported.

    Returns:
        The command's exit code; of one that a signal ended, 128 and its number.
    """
    launch, command = script.launch, script.command
    spec = TrialSpec(
        workload=" ".join(command),
        plan=plan,
        strategies=tuple(strategies),
        directory=os.getcwd(),
        script=ScriptSpec(command=command, sites=sites),
    )
    own = dict(os.environ)
    if launch is not None and launch.size > 1:
        command = launch.command
        own[PASSED_ON] = "1"
    elif launch is not None:
        own |= launch.ranks[0]
    environment = listening(Orders(spec=spec), own) | {k: str(v) for k, v in (env or {}).items()}
    with subprocess.Popen(list(command), env=environment) as process:
        while True:
            try:
                code = process.wait()
                return code if code >= 0 else 128 - code
            except KeyboardInterrupt:  # the terminal's Ctrl-C reaches the script itself; it decides
                process.send_signal(signal.SIGINT)
