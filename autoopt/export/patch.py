"""A unified diff of the user's own module, where its DataLoader or Trainer stands in plain sight.

The source is edited as a concrete syntax tree, so that comments and layout stay. Nothing is written
unless it is asked for.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import libcst

from autoopt.errors import EnvironmentLacks, UsageError
from autoopt.export.script_patch.editing import DATALOADER_POSITIONS, diff_of, given, with_argument
from autoopt.export.text import literal
from autoopt.records import Change, JsonDict, Plan
from autoopt.registry import Registry
from autoopt.setup import Setup

_CALLED = {
    "pytorch": ("DataLoader",),
    "lightning": ("DataLoader", "Trainer"),
    "transformers": ("TrainingArguments",),
    "accelerate": ("DataLoader", "Accelerator"),
}
"""The calls that are edited for each way of training; transformers makes its loaders, and has its own Trainer."""


def patch(
    path: Path, plan: Plan, registry: Registry, *, target: str = "pytorch", write: bool = False
) -> tuple[str, tuple[str, ...]]:
    """The diff that puts a plan into a module.

    Args:
        path: the user's module.
        target: ``pytorch``, ``lightning``, ``transformers`` or ``accelerate``: which calls are edited.
        write: also writes it.

    Returns:
        The diff, empty where nothing could be placed; and what of the plan is not in it.

    Raises:
        EnvironmentLacks: the module cannot be written.
        UsageError: the module cannot be read or is no Python.
    """
    try:
        before = path.read_bytes()
        tree = libcst.parse_module(before)
    except (OSError, UnicodeDecodeError, SyntaxError, libcst.ParserSyntaxError) as error:
        raise UsageError(f"{path} cannot be read as Python: {error}") from None
    editor = _Editor(_wanted(plan, registry, target))
    changed = tree.visit(editor)
    if write and changed.bytes != before:
        _write(path.resolve(), changed.bytes)
    return diff_of(tree.code, changed.code, path.name), tuple(_notes(plan, registry, target, path.name, editor))


def _write(path: Path, content: bytes) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(content)
        shutil.copymode(path, part)
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise EnvironmentLacks(f"cannot write {path}: {error.strerror or error}") from None


def _notes(plan: Plan, registry: Registry, target: str, name: str, editor: Any) -> Iterator[str]:
    for change in plan.changes:
        if change.strategy not in editor.placed:
            why = "has no call in plain sight that could take it"
            if change.strategy in editor.refused:
                why = f"{editor.refused[change.strategy]}: nothing was put there"
            yield f"{change.strategy}: {name} {why}"
        by_hand = (_recipe(registry, change, target) or {}).get("_note")
        setup = registry.fold(Plan(changes=(change,)))
        whole = change.strategy in editor.placed and setup == Setup(loader=setup.loader)
        if by_hand and not whole:
            yield f"{change.strategy}: by hand: {by_hand}"


def _recipe(registry: Registry, change: Change, target: str) -> JsonDict | None:
    made: JsonDict | None = getattr(registry[change.strategy].recipe(dict(change.setting)), target)
    return made if target != "pytorch" else None


def _wanted(plan: Plan, registry: Registry, target: str) -> dict[str, dict[str, tuple[str, Any]]]:
    """Keywords by the name of what is called: name to strategy and value."""
    wanted: dict[str, dict[str, tuple[str, Any]]] = {called: {} for called in _CALLED[target]}
    for change in plan.changes:
        setup = registry.fold(Plan(changes=(change,)))
        options = {**setup.loader, **({"batch_size": setup.batch.size} if setup.batch.size else {})}
        if "DataLoader" in wanted:
            wanted["DataLoader"] |= {name: (change.strategy, value) for name, value in options.items()}
        keys = {name: value for name, value in (_recipe(registry, change, target) or {}).items() if name != "_note"}
        wanted[_CALLED[target][-1]] |= {name: (change.strategy, value) for name, value in keys.items()}
    return wanted


class _Editor(libcst.CSTTransformer):
    """Sets arguments of the calls; a DataLoader that does not shuffle is for validation and stays."""

    def __init__(self, wanted: dict[str, dict[str, tuple[str, Any]]]) -> None:
        super().__init__()
        self.wanted = wanted
        self.placed: set[str] = set()
        self.refused: dict[str, str] = {}

    def leave_Call(self, original_node: libcst.Call, updated_node: libcst.Call) -> libcst.Call:  # noqa: N802
        func = original_node.func
        name = func.attr.value if isinstance(func, libcst.Attribute) else getattr(func, "value", "")
        positions = DATALOADER_POSITIONS if name == "DataLoader" else ()
        named = given(updated_node, positions)
        keywords = self.wanted.get(name, {})
        if not keywords or (name == "DataLoader" and not _trains(named)):
            return updated_node
        call = updated_node
        for key, (strategy, value) in keywords.items():
            if any(argument.star for argument in call.args):
                self.refused[strategy] = f"passes some arguments of {name} on with a star"
                continue
            if "batch_sampler" in named and key in ("batch_size", "drop_last"):
                self.refused[strategy] = "gives its DataLoader a batch_sampler"
                continue
            try:
                expression = libcst.parse_expression(literal(value))
            except ValueError:
                continue
            call = with_argument(call, key, expression, positions)
            self.placed.add(strategy)
        return call


def _trains(named: dict[str, libcst.Arg]) -> bool:
    """Whether a DataLoader draws its samples in another order than the data's."""
    words = {name: getattr(argument.value, "value", "") for name, argument in named.items()}
    shuffled = words.get("shuffle", "None") not in ("False", "None")
    return shuffled or any(words.get(key, "None") != "None" for key in ("sampler", "batch_sampler"))
