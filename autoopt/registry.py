"""Finds strategies: built-in, from entry points, and named by the user; keeps them in their order."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

from autoopt.errors import UsageError
from autoopt.records import Change, Plan
from autoopt.setup import Setup
from autoopt.strategy import Strategy, check_strategy

ENTRY_POINT_GROUP = "autoopt.strategies"


@dataclass(frozen=True)
class Source:
    """Where a strategy came from: ``built-in``, ``entry point NAME`` or ``--strategies SPEC``."""

    strategy: Strategy
    origin: str
    spec: str | None = None


class Registry(Mapping[str, Strategy]):
    """Strategies by name, in priority order."""

    def __init__(self, sources: Iterable[Source] = ()) -> None:
        self._sources: dict[str, Source] = {}
        for source in sources:
            self._add(source)

    def _add(self, source: Source) -> None:
        wrong = check_strategy(source.strategy)
        if wrong:
            raise UsageError(f"strategy {type(source.strategy).__name__} ({source.origin}) is not valid: {wrong[0]}")
        name = source.strategy.name
        if name in self._sources:
            raise UsageError(
                f"two strategies are called {name!r}: {self._sources[name].origin} and {source.origin}",
                hint="give one of them another name",
            )
        self._sources[name] = source

    def __getitem__(self, name: str) -> Strategy:
        if name not in self._sources:
            raise unknown_strategy(name, self._sources)
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
        """Applies the plan's changes in turn to a setup (the untouched one by default)."""
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


def unknown_strategy(name: str, known: Iterable[str]) -> UsageError:
    """The error for a strategy that does not exist, with the nearest name."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
    return UsageError(f"there is no strategy {name!r}", hint=hint)


def load_strategies(specs: Iterable[str] = (), instances: Iterable[Strategy] = ()) -> Registry:
    """All strategies: built-in first, then entry points, then those named, in their order.

    Args:
        specs: import strings such as ``my_pkg.my_mod:MyStrategy`` (a class or an instance).
        instances: strategies given through the Python API.

    Raises:
        UsageError: a spec that cannot be imported, is no strategy, or repeats a name.
    """
    builtin = importlib.import_module("autoopt_strategies").BUILTIN
    sources = [Source(_instance(item, "built-in"), "built-in") for item in builtin]
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda p: p.name):
        sources.append(Source(_instance(point.load(), point.value), f"entry point {point.name}"))
    sources += [Source(load_spec(spec), f"--strategies {spec}", spec) for spec in specs]
    sources += [Source(item, "given in Python", instance_spec(item)) for item in instances]
    return Registry(sources)


def load_spec(spec: str) -> Strategy:
    """Imports ``package.module:Name``.

    Raises:
        UsageError: malformed, not importable, or no strategy.
    """
    module_name, _, attribute = spec.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"--strategies takes MODULE:CLASS, got {spec!r}", hint="such as my_pkg.my_mod:MyStrategy")
    from autoopt.loading.importing import import_module  # local: the same five failures, told the same way

    module = import_module(module_name)
    if not hasattr(module, attribute):
        near = difflib.get_close_matches(attribute, dir(module), n=1)
        raise UsageError(
            f"module {module_name!r} has no {attribute!r}", hint=f"did you mean {near[0]!r}?" if near else ""
        )
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
