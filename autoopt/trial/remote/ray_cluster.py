"""Ray as the cluster: each host is an actor in a placement group of one bundle."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Mapping
from typing import Any

from autoopt.errors import EnvironmentLacks, NodeLost
from autoopt.trial.child import LIVE
from autoopt.trial.remote.host import Host, as_users

PLACE_SECONDS = 600.0
"""How long a free place is waited for: a cluster may have to start a machine."""
UPLOADED = ("autoopt-runs", ".git", ".venv", "__pycache__", "*.pt", "*.ckpt")
"""Files of the working directory that are not the user's code."""


class RayCluster:
    """A Ray cluster, or a Ray of this machine alone where no address is given.

    Args:
        address: ``ray://host:port``, ``host:port`` or ``auto``; None: ``RAY_ADDRESS``, else one is started here.
        live: what a trial makes of its spec; see ``Launcher``.

    Raises:
        EnvironmentLacks: Ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, address: str | None = None, live: str = LIVE) -> None:
        self._live = live
        self._ray = ray = _ray()
        self._joined = bool(ray.is_initialized())
        address = address or os.environ.get("RAY_ADDRESS")
        options: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "include_dashboard": False}
        if address is not None:
            # The user's code, for machines that do not have it. Variables of the environment stay: some are secrets.
            code = {"working_dir": os.getcwd(), "excludes": list(UPLOADED)}
            options = {"address": address, "log_to_driver": False, "runtime_env": code}
        if not self._joined:
            try:
                ray.init(**options)
            except (ConnectionError, TimeoutError, RuntimeError, ValueError) as error:
                raise EnvironmentLacks(
                    f"Ray cannot be reached or started at {address or 'this machine'}: {error}".split("\n")[0],
                    hint="ray status shows whether a cluster runs; --executor ray://HOST:10001 names one",
                ) from None
        self._environment = as_users(os.environ)

    def host(self, processes: int, cuda: bool | None) -> RayHost:
        """A fresh host in a place of its own.

        Args:
            processes: that train together.
            cuda: whether each of them needs a device; None: where there are any.

        Raises:
            EnvironmentLacks: there is no such place.
        """
        ray = self._ray
        bundle = bundle_of([node["Resources"] for node in ray.nodes() if node["Alive"]], processes, cuda)
        group = ray.util.placement_group([bundle], strategy="STRICT_PACK")
        if not group.wait(PLACE_SECONDS):
            ray.util.remove_placement_group(group)
            raise EnvironmentLacks(
                f"no machine of the cluster had {bundle} free within {PLACE_SECONDS:g} s", hint="ray status shows why"
            )
        where = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(placement_group=group)
        actor = ray.remote(Host).options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            scheduling_strategy=where,
            max_concurrency=2,
            max_restarts=0,
        )
        return RayHost(ray, actor.remote(self._environment, self._live), group)

    def room(self, processes: int, cuda: bool | None) -> int:
        """Hosts that there is room for at the same time."""
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        bundle = bundle_of(nodes, processes, cuda)
        return sum(int(min(node.get(name, 0) // amount for name, amount in bundle.items())) for node in nodes)

    def close(self) -> None:
        if not self._joined:
            self._ray.shutdown()


class RayHost:
    """An actor that is a host, in its placement group; every method but ``release`` may raise ``NodeLost``."""

    def __init__(self, ray: Any, actor: Any, group: Any) -> None:
        self._ray, self._actor, self._group = ray, actor, group

    def ask(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the host. A machine that is gone is no verdict on what was measured there."""
        found = self._ray.exceptions
        try:
            return self._ray.get(getattr(self._actor, method).remote(*arguments))
        except found.RayTaskError:
            raise
        except (found.RayActorError, found.NodeDiedError, found.ObjectLostError) as error:
            raise NodeLost(f"a machine of the cluster is gone: {error}".split("\n")[0]) from None

    def release(self) -> None:
        with contextlib.suppress(Exception):
            self._ray.get(self._actor.end.remote(), timeout=20)
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)
        with contextlib.suppress(Exception):
            self._ray.util.remove_placement_group(self._group)


def bundle_of(nodes: list[Mapping[str, float]], processes: int, cuda: bool | None) -> dict[str, float]:
    """A machine's resources for a pair of trials: all its cores, or its devices with their share of the cores.

    Args:
        nodes: resources of each live machine.
        processes: that train together, each on a device of its own.
        cuda: whether they train on devices; None: where any machine has one, as ``--device auto`` does here.

    Raises:
        EnvironmentLacks: no machine has as many devices.
    """
    if cuda is None:
        cuda = any(node.get("GPU", 0) for node in nodes)
    if not cuda:
        return {"CPU": min((node["CPU"] for node in nodes if node.get("CPU")), default=1.0)}
    fitting = [node for node in nodes if node.get("GPU", 0) >= processes]
    if not fitting:
        most = max((node.get("GPU", 0) for node in nodes), default=0)
        raise EnvironmentLacks(f"no machine of the cluster has {processes} devices; the most is {most:g}")
    return {
        "CPU": max(1.0, min(node.get("CPU", 1) // node["GPU"] * processes for node in fitting)),
        "GPU": float(processes),
    }


def _ray() -> Any:
    try:
        ray = importlib.import_module("ray")
        importlib.import_module("ray.util.scheduling_strategies")
    except ImportError:
        raise EnvironmentLacks(
            "--executor ray: Ray is not installed", hint="pip install 'torch-autoopt[ray]'"
        ) from None
    return ray
