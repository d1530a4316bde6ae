"""Finds strategies: built-in, from entry points, and named by the user; keeps them in their order."""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from autoopt.errors import UsageError, nearest
from autoopt.records import Change, Plan
from autoopt.setup import Setup
from autoopt.strategy import Strategy, check_strategy

ENTRY_POINT_GROUP = "autoopt.strategies"
OURS = ("autoopt", "autoopt_strategies", "autoopt_model")
"""Packages that a script's process is given, and whose code an exported script holds."""
BUILTIN = "built-in"
"""Origin of the strategies that come with autoopt."""


@dataclass(frozen=True)
class Source:
    """Where a strategy came from: ``built-in``, ``entry point NAME`` or ``--strategies SPEC``."""

    strategy: Strategy
    origin: str
    spec: str | None = None


class Registry(Mapping[str, Strategy]):
    """Strategies by name, in priority order.

    Args:
        sources: what to hold.
        warnings: a sentence for each installed plugin that could not be loaded.

    Raises:
        UsageError: a declaration that is not valid, a name given twice, or a strategy named in one that there is not.
    """

    def __init__(self, sources: Iterable[Source] = (), warnings: Iterable[str] = ()) -> None:
        self._sources: dict[str, Source] = {}
        self.warnings = tuple(warnings)
        given = list(sources)
        names = [str(getattr(source.strategy, "name", "")) for source in given]
        for source in given:
            wrong = _fault(source, self._sources, names)
            if wrong:
                raise UsageError(f"strategy {type(source.strategy).__name__} ({source.origin}) is not valid: {wrong}")
            self._sources[source.strategy.name] = source

    def __getitem__(self, name: str) -> Strategy:
        if name not in self._sources:
            raise UsageError(f"there is no strategy {name!r}", hint=nearest(name, self._sources))
        return self._sources[name].strategy

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def __contains__(self, name: object) -> bool:
        return name in self._sources

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(self._sources.values())

    @property
    def specs(self) -> tuple[str, ...]:
        """Import strings of the strategies that a trial's process must load itself."""
        return tuple(source.spec for source in self._sources.values() if source.spec)

    def exclude(self, one: str, other: str) -> bool:
        """Whether one of two strategies is of no use next to the other."""
        return other in self[one].excludes or one in self[other].excludes

    def order(self, plan: Plan) -> Plan:
        """The plan with its changes in the registry's order, every ``after`` respected."""
        rank = {name: index for index, name in enumerate(self._sources)}
        waiting = sorted(plan.changes, key=lambda c: rank.get(c.strategy, len(rank)))
        placed: list[Change] = []
        while waiting:
            pending = {c.strategy for c in waiting}
            ready = [c for c in waiting if not (set(self[c.strategy].after) & (pending - {c.strategy}))]
            if not ready:
                raise UsageError(f"strategies wait for one another: {', '.join(sorted(pending))}")
            placed.append(ready[0])
            waiting.remove(ready[0])
        return Plan(changes=tuple(placed))

    def fold(self, plan: Plan, setup: Setup | None = None) -> Setup:
        """Applies the plan's changes one after the other to a setup (the untouched one by default)."""
        current = setup or Setup()
        for change in plan.changes:
            following = self[change.strategy].apply(current, dict(change.setting))
            if not isinstance(following, Setup):
                raise UsageError(
                    f"strategy {change.strategy!r}: apply() must return a Setup, got {type(following).__name__}",
                    hint="start from `setup.with_...(...)` and return it",
                )
            current = following
        return current


def _fault(source: Source, earlier: Mapping[str, Source], names: Iterable[str]) -> str:
    """A sentence on why a strategy cannot be registered; empty where it can.

    Args:
        earlier: strategies registered before it.
        names: of all strategies that it may name.
    """
    strategy, known = source.strategy, list(names)
    wrong = check_strategy(strategy)
    if wrong:
        return wrong[0]
    if strategy.name in earlier:
        return f"another one is called {strategy.name!r} ({earlier[strategy.name].origin}); give it a name of its own"
    named = [("after", name) for name in sorted(strategy.after)]
    if source.origin != BUILTIN:
        named += [("excludes", name) for name in sorted(strategy.excludes)]
        named += [("companions()", name) for name in companion_names(strategy)]
    for where, name in named:
        if name not in known:
            return f"{where} names a strategy {name!r} that there is not; {nearest(name, known)}"
    return ""


def companion_names(strategy: Strategy) -> list[str]:
    """Strategies that ``companions`` names literally, ``Change(strategy="threads")``, as far as its source reports."""
    if type(strategy).companions is Strategy.companions:
        return []
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(type(strategy).companions)))
    except (OSError, TypeError, SyntaxError):
        return []
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and "Change" in ast.unparse(node.func)]
    named = [word.value for call in calls for word in call.keywords if word.arg == "strategy"]
    return [node.value for node in named if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def load_strategies(specs: Iterable[str] = ()) -> Registry:
    """All strategies: built-in first, then entry points, then those named, in their order.

    An installed plugin that cannot be loaded is left out, with a sentence in ``Registry.warnings``.

    Args:
        specs: import strings such as ``my_pkg.my_mod:MyStrategy`` (a class or an instance).

    Raises:
        UsageError: a spec that cannot be imported, is no strategy, or repeats a name.
    """
    package = importlib.import_module("autoopt_strategies")
    builtin = [Source(load_spec(f"{package.__name__}.{spec}"), BUILTIN) for spec in package.BUILTIN]
    installed, warnings = _plugins(builtin)
    named = [Source(load_spec(spec), f"--strategies {spec}", spec) for spec in specs]
    return Registry([*builtin, *installed, *named], warnings)


def _plugins(builtin: list[Source]) -> tuple[list[Source], list[str]]:
    """Strategies of entry points, and a sentence for each that is left out."""
    found: list[tuple[EntryPoint, Source]] = []
    warnings: list[str] = []
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda p: p.name):
        try:
            found.append((point, Source(_instance(point.load(), point.value), f"entry point {point.name}")))
        except UsageError as error:
            warnings.append(_left_out(point, str(error)))
        except (Exception, SystemExit) as error:  # one broken plugin must not end every command
            warnings.append(_left_out(point, f"{type(error).__name__}: {error}"))
    accepted: dict[str, Source] = {source.strategy.name: source for source in builtin}
    names = [*accepted, *(str(getattr(source.strategy, "name", "")) for _, source in found)]
    for point, source in found:
        wrong = _fault(source, accepted, names)
        if wrong:
            warnings.append(_left_out(point, wrong))
        else:
            accepted[source.strategy.name] = source
    return list(accepted.values())[len(builtin) :], warnings


def _left_out(point: EntryPoint, why: str) -> str:
    package = f" of {point.dist.name}" if point.dist is not None else ""
    return f"the installed strategy plugin {point.name!r}{package} ({point.value}) is left out: {why}"


def load_spec(spec: str) -> Strategy:
    """Imports ``package.module:Name``.

    Raises:
        UsageError: malformed, not importable, or no strategy.
    """
    module_name, _, attribute = spec.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"--strategies takes MODULE:CLASS, got {spec!r}", hint="such as my_pkg.my_mod:MyStrategy")
    from autoopt.loading.importing import import_module  # local: the same five failures, reported the same way

    module = import_module(module_name)
    if not hasattr(module, attribute):
        there = [name for name, value in vars(module).items() if inspect.isclass(value)]
        raise UsageError(f"module {module_name!r} has no {attribute!r}", hint=nearest(attribute, there))
    return _instance(getattr(module, attribute), spec)


def instance_spec(strategy: Strategy) -> str:
    """The import string by which a trial's process can make the same strategy again.

    Raises:
        UsageError: its class is not at the top level of a module, or takes arguments.
    """
    kind = type(strategy)
    if "<locals>" in kind.__qualname__:
        raise UsageError(
            f"strategy class {kind.__qualname__} is defined inside a function",
            hint="trials run in processes of their own: define it at the top level of a module",
        )
    return f"{kind.__module__}:{kind.__qualname__}"


def _instance(item: object, origin: str) -> Strategy:
    strategy = item() if inspect.isclass(item) else item
    if not isinstance(strategy, Strategy):
        raise UsageError(
            f"{origin} is no autoopt.Strategy, got {type(strategy).__name__}",
            hint="subclass autoopt.Strategy and name the class",
        )
    return strategy
