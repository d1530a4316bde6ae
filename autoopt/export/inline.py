"""Prints functions by their source: each with what it needs of its module, and no more.

A strategy's transforms are module-level functions, partials of them, or frozen dataclasses with
``__call__``. What they name at module level is followed (functions, classes, constants, imports) until
nothing is missing. Modules of ours are copied into the script; those of others are imported.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import sys
import types
from dataclasses import dataclass, field
from importlib.abc import InspectLoader
from typing import Any

from autoopt.export.text import Known, call, fold, literal, without_annotations
from autoopt.loading.importing import UserBuild
from autoopt.registry import OURS
from autoopt.setup import Wrap


class NotExportable(Exception):  # noqa: N818 - reads as the sentence that the user gets
    """Something has no source that could be printed."""


@dataclass(eq=False)
class _Module:
    """Top-level definitions of a module.

    ``defined``: name to node; ``imported``: name to its import; ``wanted``: those that are collected;
    ``renamed``: those that have another name in the script.
    """

    name: str
    lines: list[str]
    defined: dict[str, ast.stmt] = field(default_factory=dict)
    imported: dict[str, tuple[str, str | None]] = field(default_factory=dict)
    wanted: set[str] = field(default_factory=set)
    renamed: dict[str, str] = field(default_factory=dict)


@dataclass
class Inliner:
    """Collects definitions and imports of everything that is asked for.

    Args:
        known: what is decided of printed code.
        builds: names in the script of the user's functions that it has already.
    """

    inlined: tuple[str, ...] = OURS
    known: Known = field(default_factory=dict)
    builds: dict[UserBuild, str] = field(default_factory=dict)
    imports: set[tuple[str, str | None, str]] = field(default_factory=set)
    _modules: dict[str, _Module] = field(default_factory=dict)
    _order: list[_Module] = field(default_factory=list)
    _owner: dict[str, tuple[str, str]] = field(default_factory=dict)

    def reserve(self, *names: str, module: str = "") -> None:
        """Names that the script has already, or that a module's definitions keep; others of the name get another."""
        for name in names:
            self._owner.setdefault(name, (module, name))

    def expression(self, item: Any) -> str:
        """Python that makes the same object, its definitions collected on the way.

        Raises:
            NotExportable: it has no importable source.
        """
        if isinstance(item, Wrap):
            function = self.named(item.name)
            if not item.options:
                return function
            self.imports.add(("functools", "partial", "partial"))
            return call("partial", [function], {name: self.expression(value) for name, value in item.options})
        if isinstance(item, functools.partial):
            self.imports.add(("functools", "partial", "partial"))
            keywords = {name: self.expression(value) for name, value in item.keywords.items()}
            return call("partial", [self.expression(item.func), *map(self.expression, item.args)], keywords)
        if inspect.isfunction(item) or inspect.isclass(item):
            return self._named(item)
        if isinstance(item, UserBuild):
            if item not in self.builds:
                there = ", ".join(each.spec for each in self.builds) or "none"
                raise NotExportable(f"it calls {item.spec}, which this script does not have (it has: {there})")
            return self.builds[item]
        if isinstance(item, types.BuiltinFunctionType):
            return self._imported(item.__module__ or "builtins", item.__name__)
        if dataclasses.is_dataclass(item):
            values = {f.name: self.expression(getattr(item, f.name)) for f in dataclasses.fields(item) if f.init}
            return call(self._named(type(item)), [], values)
        if type(item).__module__ == "torch" and type(item).__name__ in ("dtype", "memory_format", "device"):
            self.imports.add(("torch", None, "torch"))
            return repr(item).replace("'", '"') if type(item).__name__ != "device" else f'torch.device("{item}")'
        try:
            return literal(item, self.expression)
        except ValueError:
            raise NotExportable(f"{type(item).__name__} {item!r} has no source that could be printed") from None

    def named(self, spec: str) -> str:
        """The name in the script of a definition that is given as ``module:name``; its module is not imported."""
        module, _, name = spec.partition(":")
        if self._copied(module) or not _importable(module):
            return self.want(module, name)
        return self._imported(module, name)

    def _named(self, item: Any) -> str:
        module, name = str(item.__module__), str(item.__qualname__)
        if "<locals>" in name or "<lambda>" in name:
            raise NotExportable(f"{module}.{name} is defined inside a function, so that it cannot be printed alone")
        outer, dot, inner = name.partition(".")
        return self.named(f"{module}:{outer}") + dot + inner

    def _copied(self, module: str) -> bool:
        ours = module.split(".")[0] in self.inlined or module in self.inlined or module == "__main__"
        # a script imports what takes a Trainer apart: it needs the Trainer's libraries anyway
        return ours and module != "autoopt.adapters"

    def _imported(self, module: str, name: str) -> str:
        if module == "builtins":
            return name
        self.imports.add((module, name, name))
        return name

    def want(self, module: str, name: str) -> str:
        """Collects a top-level definition with all that it needs; the name that it has in the script."""
        known = self._modules.get(module)
        if known is None:
            known = self._modules[module] = _parse(module, self.known)
        if name not in known.defined:
            if name in known.imported:
                return self._follow_import(known, name)
            raise NotExportable(f"{module} has no definition of {name!r} at its top level")
        if name in known.wanted:
            return known.renamed.get(name, name)
        known.wanted.add(name)
        owner = self._owner.setdefault(name, (module, name))
        if owner != (module, name):  # another definition has the name
            other = f"{name}_{module.rpartition('.')[2]}"
            while other in self._owner:
                other += "_"
            self._owner[other] = (module, name)
            known.renamed[name] = other
        for used in dict.fromkeys(part.id for part in ast.walk(known.defined[name]) if isinstance(part, ast.Name)):
            if used == name:
                continue
            if used in known.defined:
                self.want(module, used)
            elif used in known.imported:
                self._follow_import(known, used)
        if known not in self._order:
            self._order.append(known)
        return known.renamed.get(name, name)

    def _follow_import(self, known: _Module, name: str) -> str:
        module, attribute = known.imported[name]
        if not self._copied(module):
            self.imports.add((module, attribute, name))
            return name
        if attribute is None or _importable(f"{module}.{attribute}"):
            raise NotExportable(f"{known.name} uses the module {module} as a whole, which the script must not import")
        value = getattr(importlib.import_module(module), attribute, None)
        if inspect.isfunction(value) or inspect.isclass(value):  # the facade and packages re-export
            module, attribute = getattr(value, "__module__", module), value.__qualname__
        final = self.want(module, attribute)
        if final != name:
            known.renamed[name] = final
        return final

    def definitions(self) -> list[str]:
        """The collected source, helpers before their users, each block without blank lines around it."""
        blocks = []
        for module in self._order:
            nodes = {module.defined[name] for name in module.wanted}
            blocks += [_source(module, node) for node in sorted(nodes, key=lambda node: node.lineno)]
        return blocks

    def import_lines(self) -> list[str]:
        """Sorted import statements: the standard library, an empty line, the rest."""
        whole: set[str] = set()
        parts: dict[str, set[str]] = {}
        for module, attribute, name in self.imports:
            if attribute is None:
                renamed = name not in (module, module.split(".")[0])
                whole.add(f"import {module}" + (f" as {name}" if renamed else ""))
            else:
                parts.setdefault(module, set()).add(attribute if name == attribute else f"{attribute} as {name}")
        lines = sorted(whole)
        for module, names in sorted(parts.items()):  # CONSTANTS, Classes, functions, as import sorters have them
            ordered = sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
            lines.append(f"from {module} import {', '.join(ordered)}")
        standard = [line for line in lines if line.split()[1].split(".")[0] in sys.stdlib_module_names]
        others = [line for line in lines if line not in standard]
        return [*standard, *([""] if standard and others else []), *others]


def _parse(module: str, known: Known) -> _Module:
    """A module's definitions; one that is not imported yet is not imported for it: its libraries may not be there."""
    spec, source = None, None
    try:
        spec = importlib.util.find_spec(module) if module != "__main__" else None
        if module in sys.modules:
            source = inspect.getsource(sys.modules[module])
        elif spec is not None and isinstance(spec.loader, InspectLoader):
            source = spec.loader.get_source(module)
    except (OSError, TypeError, ImportError, ValueError) as error:
        raise NotExportable(f"the source of {module} cannot be read: {error}") from None
    if source is None:
        raise NotExportable(f"the source of {module} cannot be read")
    if module.startswith(("autoopt.export.printed", "autoopt.benchmark.training_step")):  # with conditions on the plan
        source = fold(source, known)
    source = without_annotations(source)
    found = _Module(module, source.splitlines())
    package = module if spec is not None and spec.submodule_search_locations else module.rpartition(".")[0]
    for node in ast.parse(source).body:
        _note(node, node, found, package)
    return found


def _note(node: ast.stmt, top: ast.stmt, found: _Module, package: str) -> None:
    """Notes what a statement at the top level binds; inside ``if`` and ``try`` the whole block binds it."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        found.defined[node.name] = top
    elif isinstance(node, (ast.Import, ast.ImportFrom)) and node is top:
        module = getattr(node, "module", None) or ""
        if isinstance(node, ast.ImportFrom) and node.level:
            module = importlib.util.resolve_name("." * node.level + module, package)
        for alias in node.names if module != "__future__" else ():
            if isinstance(node, ast.Import):
                found.imported[alias.asname or alias.name.split(".")[0]] = (alias.name, None)
            else:
                found.imported[alias.asname or alias.name] = (module, alias.name)
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            found.defined[alias.asname or alias.name.split(".")[0]] = top
    elif isinstance(node, (ast.If, ast.Try, ast.With, ast.For)):
        for child in ast.iter_child_nodes(node):
            inner = child.body if isinstance(child, ast.ExceptHandler) else [child]
            for item in inner:
                if isinstance(item, ast.stmt):
                    _note(item, top, found, package)
    else:
        for name in ast.walk(node):
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store):
                found.defined[name.id] = top


def _source(known: _Module, node: ast.stmt) -> str:
    """The lines of a definition with the comment above it; names changed where they have to be."""
    names, decorators = known.renamed, getattr(node, "decorator_list", [])
    first = min([node.lineno, *(d.lineno for d in decorators)]) - 1
    last = node.end_lineno or node.lineno
    edits = []  # row, first and last column in bytes, text
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id in names:
            edits.append((part.lineno, part.col_offset, part.end_col_offset or 0, names[part.id]))
        if isinstance(part, (ast.FunctionDef, ast.ClassDef)) and part is node and part.name in names:
            column = part.col_offset + (4 if isinstance(part, ast.FunctionDef) else 6)
            edits.append((part.lineno, column, column + len(part.name.encode()), names[part.name]))
    lines = [line.encode() for line in known.lines[first:last]]
    for row, start, end, text in sorted(edits, reverse=True):
        line = lines[row - 1 - first]
        lines[row - 1 - first] = line[:start] + text.encode() + line[end:]
    while first and known.lines[first - 1].startswith("#"):
        first -= 1
        lines.insert(0, known.lines[first].encode())
    return b"\n".join(lines).decode()


def _importable(module: str) -> bool:
    """Whether another process could import it by that name."""
    if module in sys.builtin_module_names:
        return True
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False
