"""Where the trials of a run are started: here, or on the machines of a Ray cluster."""

from __future__ import annotations

from autoopt.options import Options
from autoopt.storage.run_directory import RunDirectory
from autoopt.trial.parent import Launcher
from autoopt.trial.remote.launcher import RemoteLauncher


def launcher_of(options: Options, directory: RunDirectory) -> Launcher | RemoteLauncher:
    """The launcher of a run.

    Raises:
        EnvironmentLacks: Ray is not installed, or the cluster cannot be reached.
    """
    name, _, address = options.executor.partition("://")
    if name == "local":
        return Launcher(compiler_cache=directory.compiler_cache)
    from autoopt.trial.remote.ray_cluster import RayCluster

    return RemoteLauncher(RayCluster(f"ray://{address}" if address else None), str(directory.path.resolve()))
