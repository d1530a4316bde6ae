"""All that is autoopt's in the process of a script, from the moment that torch is imported."""

from __future__ import annotations

from time import perf_counter

from autoopt.benchmark.same_draws import same_draws
from autoopt.benchmark.seeding import mix, seed_everything
from autoopt.records import Sites
from autoopt.registry import Registry, load_strategies
from autoopt.script.applying import Applying
from autoopt.script.frames import folder
from autoopt.script.joints import Joints
from autoopt.script.metric import MetricReader, overhear
from autoopt.script.observer import Observer
from autoopt.script.planned import planned_steps
from autoopt.script.recording import Recording
from autoopt.script.refusals import refuse_processes
from autoopt.script.run_parts import ImportClock
from autoopt.script.seeds import draw_anew
from autoopt.script.session import Session
from autoopt.trial.protocol import TrialSpec


class Script:
    """A script that is listened to.

    Args:
        spec: the trial's; ``spec.script.sites`` None has it watched.
        stops: whether it stops at steps' ends for its parent; False trains for real.
        path, early: see :class:`~autoopt.records.Sites`.
        imports_seconds: of the interpreter and its imports up to torch; None where they were not the script's own.
    """

    def __init__(
        self,
        spec: TrialSpec,
        *,
        stops: bool = True,
        path: tuple[str, ...] = (),
        early: tuple[str, ...] = (),
        imports_seconds: float | None = None,
    ) -> None:
        assert spec.script is not None
        self._start = {"path": path, "early": early}
        self.imports_seconds = imports_seconds
        self._imports = ImportClock()
        self.spec, self.command = spec, spec.script
        sites = spec.script.sites
        self.session = Session(stops=stops, counts=sites is None or sites.unit == "samples")
        self.joints = Joints(self.session, period=sites.period if sites is not None else ())
        if sites is not None:
            self.joints.trains_in_eval = any(site.options.get("mode") == "eval" for site in sites.of("model"))
        self.observer = Observer(self.joints) if sites is None else None
        self.recording = Recording()
        self.registry: Registry = load_strategies(spec.strategies)
        self.setup = self.registry.fold(spec.plan)
        if stops:
            place = spec.rank
            refuse_processes(1 if place is None else place.size)
            if spec.same_draws:
                same_draws()
            own = () if place is None or place.rank == 0 else (place.rank,)  # each process draws its own
            seed_everything(mix(spec.seed, *own) if own else spec.seed)  # the script's own seeds come after
            if not spec.script.own_seeds:
                draw_anew(spec.seed)
            self.joints.watchers.append(self.recording)
        if self.observer is not None:
            self.observer.install()
        if self.command.metric is not None:
            MetricReader(self.command.metric, self.session.metric).install()
        elif stops:
            overhear(self.session.line)
        Applying(self.joints, self.setup, sites, spec.seed, disturbed=spec.disturbed, compared=stops).install()
        self.joints.install()
        if self.observer is not None:
            self._imports.start()
        self.session.began = perf_counter()  # what listening itself has imported is no part of the script's start

    def stop_recording(self) -> None:
        """The first step has ended, and what it read is known."""
        if self.observer is not None:
            self.session.between.imports = self._imports.stop()
        self.recording.stop()
        self.joints.watchers.remove(self.recording)

    def why_never_trained(self) -> str:
        """The script has ended without a training step."""
        if not self.joints.optimizers:
            return "the script ended without having made an optimizer"
        if not self.joints.roots:
            return "the script ended without having called a model in training (grad enabled, in training mode)"
        return "the script ended without a step of its optimizer"

    def sites(self) -> Sites:
        """The sites of the script that were seen so far."""
        if self.observer is None:
            assert self.command.sites is not None
            return self.command.sites
        return self.observer.sites(self.command.command, folder()).model_copy(update=self._start)

    def planned_steps(self) -> int | None:
        """Training steps of the whole run, where its loops tell; None where they do not."""
        return planned_steps(len(self.recording.batches) if self.joints.roles.known else 1)
