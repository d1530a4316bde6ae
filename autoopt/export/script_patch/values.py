"""Where an argument's value is made: the literal itself, the variable's one assignment, an option's default, a line of
a file that configures the script."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path

import libcst as cst

from autoopt.export.script_patch.editing import given, text_of
from autoopt.export.script_patch.source import NoHonestEditError, Source, from_imports, targets_of
from autoopt.storage.fingerprint import LARGEST_NAMED, MOST_FILES, imported_files


@dataclass(frozen=True)
class ConfiguredLine:
    """A line of a file that configures the script, and the value that it gives a key, as it is written there.

    ``named``: whether the command or the script's code names the file.
    """

    file: str
    line: int
    written: str
    named: bool

    def changed(self, text: str, value: str) -> str:
        """The file's text with another value, given as Python, in this line."""
        words = {} if self.file.endswith((".ini", ".cfg")) else {"True": "true", "False": "false", "None": "null"}
        lines = text.splitlines(keepends=True)
        key, sign, rest = re.split("([:=])", lines[self.line - 1], maxsplit=1)
        lines[self.line - 1] = key + sign + rest.replace(self.written, words.get(value, value), 1)
        return "".join(lines)


class UserFiles:
    """Files of a script that are its user's, each read when first asked for, and the options that they tell argparse.

    Args:
        command: the words of the script's command, which may give an option a value of its own.
        first: files as the sites name them, the one that begins the script first.
        cwd: the folder that the command runs in; files outside it are left out.
    """

    def __init__(self, command: Sequence[str], first: Sequence[str], cwd: Path, read: Callable[[str], Source]) -> None:
        self.command, self._first, self._cwd, self._read = command, first, cwd, read
        self._options: dict[tuple[str, str], list[Option]] = {}

    @cached_property
    def _texts(self) -> dict[str, str]:
        first = [self._cwd / name for name in dict.fromkeys(self._first) if not Path(name).is_absolute()]
        found = imported_files(first, [*(path.parent for path in first[:1]), self._cwd])
        return {path.relative_to(self._cwd).as_posix(): whole.decode(errors="replace") for path, whole in found}

    def with_text(self, text: str) -> list[Source]:
        """The Python files in which a text stands; one that cannot be read is left out."""
        sources = []
        for name in [name for name, whole in self._texts.items() if text in whole]:
            with suppress(NoHonestEditError):
                sources.append(self._read(name))
        return sources

    def configured(self, name: str) -> list[ConfiguredLine]:
        """Lines of YAML, JSON, TOML and INI files below the folder that give a key of this name one value."""
        given = re.compile(rf"""\s*(?:- +)?["']?{re.escape(name)}["']?\s*[:=]\s*([^#,\s][^#,]*?)\s*,?\s*(?:#.*)?""")
        found = []
        for path in islice(_configurations(self._cwd), MOST_FILES):
            try:
                lines = path.read_text(encoding="utf-8").splitlines()
            except (OSError, ValueError):
                continue
            each = ((number, given.fullmatch(line)) for number, line in enumerate(lines, 1))
            file = path.relative_to(self._cwd).as_posix()
            reported = (path.name, f'"{path.stem}"', f"'{path.stem}'")
            named = any(path.name in word for word in self.command) or any(self.with_text(each) for each in reported)
            found += [ConfiguredLine(file, number, match[1].strip("\"'"), named) for number, match in each if match]
        return found

    def option(self, source: Source, attribute: str) -> Option | None:
        """The option that an attribute is; of the file itself, or else of the only other file that has it."""
        here = self._options_of(source, attribute)
        if here:
            return here[0] if len(here) == 1 else None
        files = (other for other in self.with_text("add_argument") if other is not source)
        others = [option for other in files for option in self._options_of(other, attribute)]
        return others[0] if len(others) == 1 else None

    def options_within(self, source: Source, value: cst.BaseExpression) -> list[Option]:
        """The options that an expression is computed from; none where anything else decides, too."""
        leaves = list(_leaves(value))
        parsed = [leaf for leaf in leaves if isinstance(leaf, cst.Attribute) and is_parsed(source, leaf)]
        found = [self.option(source, leaf.attr.value) for leaf in parsed]
        options = [option for option in found if option is not None]
        return options if len(options) == len(leaves) else []

    def _options_of(self, source: Source, attribute: str) -> list[Option]:
        key = (source.name, attribute)
        if key not in self._options:
            self._options[key] = []
            for call in source.all_of(cst.Call):
                if source.called(call) == "add_argument":
                    words = [w for a in call.args if a.keyword is None and (w := text_of(a.value))]
                    long = next((word for word in words if word.startswith("--")), words[0] if words else "")
                    named = given(call).get("dest")
                    dest = text_of(named.value) if named else long.lstrip("-").replace("-", "_")
                    if words and dest == attribute:
                        self._options[key].append(Option(source, call, tuple(words)))
        return self._options[key]


def _configurations(folder: Path, depth: int = 0) -> Iterator[Path]:
    try:
        below = sorted(folder.iterdir())
    except OSError:
        return
    for path in below:
        left_out = path.name in ("autoopt-runs", "node_modules", "site-packages") or path.name.startswith(".")
        configures = path.suffix in (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")
        if left_out or path.is_symlink():
            continue
        if path.is_dir():
            if depth < 4 and not (path / "pyvenv.cfg").exists():
                yield from _configurations(path, depth + 1)
        elif configures and path.stat().st_size <= LARGEST_NAMED:
            yield path


_PURE = frozenset(("abs", "bool", "float", "int", "max", "min", "round", "str"))
"""Builtins whose value depends on their arguments alone."""
_MACHINE = frozenset(("cpu_count", "process_cpu_count", "sched_getaffinity", "device_count", "is_available"))
"""Calls that ask what the machine has."""


@dataclass(frozen=True)
class Option:
    """An ``add_argument`` call: ``words`` as the command may give them."""

    source: Source
    call: cst.Call
    words: tuple[str, ...]

    @property
    def shown(self) -> str:
        """The word that a reader knows it by."""
        return next((word for word in self.words if word.startswith("--")), self.words[0])

    def not_given(self, command: Sequence[str]) -> None:
        """Nothing where the command leaves the option to its default.

        Raises:
            NoHonestEditError: the command gives it.
        """
        if not self.words[0].startswith("-"):
            raise NoHonestEditError(f"the command gives {self.shown}", by_command=True)
        for word in command:
            attached = any(len(own) == 2 and word.startswith(own) for own in self.words)
            if word.split("=")[0] in self.words or attached:
                raise NoHonestEditError(f"the command gives {word.split('=')[0]}", by_command=True)


def is_parsed(source: Source, value: cst.Attribute) -> bool:
    """Whether an attribute may be one of parsed options: ``args.x`` and ``self.args.x``, not ``self.x``."""
    return source.code(value.value) not in ("self", "cls")


def of_machine(source: Source, value: cst.BaseExpression) -> bool:
    """Whether an expression is computed from what the machine has alone, such as ``os.cpu_count() // 2``."""
    leaves = list(_leaves(value))
    called = [{source.called(call) for call in source.all_of(cst.Call, leaf)} for leaf in leaves]
    return bool(leaves) and all(names & _MACHINE for names in called)


def _leaves(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Names that an expression takes from elsewhere, attributes as a whole and calls of unknown functions included."""
    if isinstance(node, (cst.Attribute, cst.Subscript, cst.Lambda, cst.BaseComp)):
        yield node
    elif isinstance(node, cst.Name):
        if node.value not in ("True", "False", "None"):
            yield node
    elif isinstance(node, cst.Call):
        if isinstance(node.func, cst.Name) and node.func.value in _PURE and not any(a.star for a in node.args):
            for argument in node.args:
                yield from _leaves(argument.value)
        else:
            yield node
    else:
        for child in node.children:
            yield from _leaves(child)


def followed(source: Source, value: cst.BaseExpression) -> cst.BaseExpression | None:
    """The one expression in the same file that makes what a value is; None where none does.

    Raises:
        NoHonestEditError: more than one place decides it.
    """
    name, scope = source.code(value), source.scope(value)
    if isinstance(value, cst.Name):
        found = source.given(name, scope)
        if not found and isinstance(scope, cst.FunctionDef) and _parameter(scope, name) is not None:
            if not _changed_otherwise(source, name):
                return _handed_in(source, scope, name)
        elif not found:
            found = source.given(name, source.tree)
        if not found and any(known in (name, "*") for _, _, known in from_imports(source)):
            return None  # of another file
        if len(found) != 1 or found[0] is None or _changed_otherwise(source, name):
            raise _several(source, value)
        return found[0]
    owner = source.code(value.value) if isinstance(value, cst.Attribute) else ""
    if owner == "self":  # where one assignment keeps it there
        kept = source.values_of(name)
        return kept[0] if len(kept) == 1 and not _changed_otherwise(source, name) else None
    if isinstance(value, cst.Attribute) and owner == "self.hparams":
        return _hyperparameter(source, value)
    return None


def _several(source: Source, value: cst.BaseExpression) -> NoHonestEditError:
    line = source.lines(value).start.line
    return NoHonestEditError(
        f"{source.name}:{line} takes it from {source.code(value)}, which is not set in one place of the file"
    )


def _parameter(function: cst.FunctionDef, name: str) -> cst.Param | None:
    every = function.params
    named = (*every.params, *every.kwonly_params, *every.posonly_params)
    return next((parameter for parameter in named if parameter.name.value == name), None)


def _changed_otherwise(source: Source, name: str) -> bool:
    """Whether something else sets the name: ``+=``, ``exec`` of a configuration."""
    added = any(source.code(node.target) == name for node in source.all_of(cst.AugAssign))
    return added or any(source.called(call) == "exec" for call in source.all_of(cst.Call))


def _handed_in(source: Source, function: cst.FunctionDef, name: str) -> cst.BaseExpression:
    """The argument that the function's only call gives the parameter, else the parameter's default."""
    called, positions = source.signature(function)
    calls = [call for call in source.all_of(cst.Call) if source.called(call) == called]
    if len(calls) != 1 or any(argument.star for argument in calls[0].args):
        raise NoHonestEditError(f"{source.name} calls {called}, whose {name} it is, in {len(calls)} places")
    there = given(calls[0], positions).get(name)
    if there is not None:
        return there.value
    parameter = _parameter(function, name)
    assert parameter is not None
    if parameter.default is None:
        raise _several(source, parameter.name)
    return parameter.default


def _hyperparameter(source: Source, value: cst.Attribute) -> cst.BaseExpression | None:
    """A value under Lightning's ``self.hparams``: a parameter of the class, where its constructor saves them all."""
    function = source.scope(value)
    owner = source.class_of(function) if isinstance(function, cst.FunctionDef) else None
    parts = owner.body.body if owner is not None else ()
    init = next((part for part in parts if isinstance(part, cst.FunctionDef) and part.name.value == "__init__"), None)
    name, asked = value.attr.value, source.code(value)
    if owner is None or init is None or _parameter(init, name) is None or _changed_otherwise(source, asked):
        return None
    saved = [call for call in source.all_of(cst.Call, init) if source.code(call.func) == "self.save_hyperparameters"]
    made = any(source.called(call) == owner.name.value for call in source.all_of(cst.Call))
    if len(saved) != 1 or any(argument.keyword is None for argument in saved[0].args) or not made:
        return None
    return _handed_in(source, init, name)


def made_elsewhere(source: Source, value: cst.BaseExpression, files: UserFiles, seen: object) -> Made:
    """The one literal in the user's files that is the value which was seen to arrive.

    Args:
        value: a name that is imported, an attribute or an entry of some configuration, or anything that is computed.

    Raises:
        NoHonestEditError: nothing or several lines of code set it, or the command gives it.
    """
    code, line = source.code(value), source.lines(value).start.line
    name = _last_name(value)
    if name is None:
        raise NoHonestEditError(f"{source.name}:{line} computes it: {code}")
    for word in files.command:
        key = word.partition("=")[0]
        last = key.rpartition(".")[2].lstrip("-+~").replace("-", "_")
        if last == name and (word.startswith("-") or "=" in word):
            raise NoHonestEditError(f"the command gives {key}", by_command=True)
    # lines of code that keep something under this name, but no other value than arrived
    setters: list[tuple[Source, cst.BaseExpression]] = []
    for other in files.with_text(name):
        for node in _kept(other, name, constants_alone=isinstance(value, cst.Name)):
            written = other.code(node) if _is_plain(node) else None
            if (other is not source or node is not value) and (written is None or _is_seen(written, seen)):
                setters.append((other, node))
    lines = [each for each in files.configured(name) if _is_seen(each.written, seen)]
    changed = False
    if isinstance(value, cst.Subscript) and any(other is source for other, _ in setters):  # a dict, later on
        held, called = source.code(value.value), (source.code(call.func) for call in source.all_of(cst.Call))
        changed = len(source.assignments(held, source.tree)) != 1 or f"{held}.update" in called
    if len(setters) == 1 and not lines and not changed and _is_plain(setters[0][1]):
        return Made(*setters[0])
    if len(lines) == 1 and not setters and lines[0].named:
        return Made(source, value, configured=lines[0])
    raise NoHonestEditError(f"{source.name}:{line} takes it from {code}, which no one line was seen to set")


def _last_name(value: cst.BaseExpression) -> str | None:
    """The name under which a value is kept; None of what is no name, attribute or entry."""
    if isinstance(value, cst.Name):
        return value.value
    if isinstance(value, cst.Attribute):
        return value.attr.value
    if isinstance(value, cst.Subscript) and len(value.slice) == 1 and isinstance(value.slice[0].slice, cst.Index):
        return text_of(value.slice[0].slice.value)
    return None


def _kept(source: Source, name: str, *, constants_alone: bool) -> list[cst.BaseExpression]:
    found: list[cst.BaseExpression] = []
    assignments: list[cst.Assign | cst.AnnAssign] = [*source.all_of(cst.Assign), *source.all_of(cst.AnnAssign)]
    for assignment in assignments:
        for target in (each for each in targets_of(assignment) if _last_name(each) == name):
            # a constant of a module, or a field of a class; no function's own variable
            constant = isinstance(target, cst.Name) and isinstance(source.scope(target), cst.Module)
            if assignment.value is not None and (constant or not (constants_alone or isinstance(target, cst.Name))):
                found.append(assignment.value)
                break
    if not constants_alone:
        calls = source.all_of(cst.Call)  # arguments of this name of these set nothing that is kept under it
        setting = [call for call in calls if not source.called(call).lower().endswith(("loader", "add_argument"))]
        handed = [arg.value for call in setting for arg in call.args if arg.keyword and arg.keyword.value == name]
        handed += [each.value for each in source.all_of(cst.DictElement) if text_of(each.key) == name]
        found += filter(_is_plain, handed)
    return sorted(found, key=lambda node: source.lines(node).start.line)


def _is_plain(value: cst.BaseExpression | None) -> bool:
    if isinstance(value, cst.UnaryOperation):
        return isinstance(value.expression, (cst.Integer, cst.Float))
    named = isinstance(value, cst.Name) and value.value in ("True", "False", "None")
    return named or isinstance(value, (cst.Integer, cst.Float, cst.SimpleString))


def _is_seen(written: str, seen: object) -> bool:
    """Whether what is written is the value that arrived; YAML and JSON write some of Python's otherwise."""
    words = {"true": True, "false": False, "null": None, "~": None}
    try:
        value: object = words[written] if written in words else ast.literal_eval(written)
    except (ValueError, SyntaxError):
        return False
    return type(value) is type(seen) and value == seen


UNSEEN = object()
"""In the place of a value that the live object was not asked for."""


@dataclass(frozen=True)
class Made:
    """The expression to change and the file it is in; ``note``: what the user should know of the change.

    ``configured``: the line of a file that configures the script, in the place of an expression. ``readers``: all
    expressions on the way from the argument to it, which read what is changed.
    """

    source: Source
    node: cst.BaseExpression
    note: str = ""
    configured: ConfiguredLine | None = None
    readers: tuple[cst.BaseExpression, ...] = ()


def made_at(
    source: Source,
    value: cst.BaseExpression,
    files: UserFiles,
    text: str,
    seen: object = UNSEEN,
    on_the_way: tuple[cst.BaseExpression, ...] = (),
) -> Made:
    """The expression to change, so that an argument which is ``value`` gets another value.

    Args:
        text: the value that it gets, as Python.
        seen: the value that arrived while the script was watched.
        on_the_way: from the argument to ``value``, where that is what it was followed to.

    Raises:
        NoHonestEditError: it is computed, set more than once, or given on the command line.
    """
    name, line = source.code(value), source.lines(value).start.line
    if _is_plain(value):
        if on_the_way and seen is not UNSEEN and seen != ast.literal_eval(name):
            raise NoHonestEditError(f"{source.name}:{line} is not what arrives: {seen!r} does")
        return Made(source, value, readers=on_the_way)
    default = None if isinstance(value, cst.Name) else _default(source, value, files, text, seen)
    if default is not None:
        return replace(default, readers=(*on_the_way, value))
    found = files.options_within(source, value)
    if not found and not any(value is other for other in on_the_way):
        further = followed(source, value)
        if further is not None:
            return made_at(source, further, files, text, seen, (*on_the_way, value))
    if not found:
        if of_machine(source, value):
            return Made(source, value)
        return replace(made_elsewhere(source, value, files, seen), readers=(*on_the_way, value))
    for option in found:
        option.not_given(files.command)
    words = " and ".join(dict.fromkeys(option.shown for option in found))
    return Made(source, value, f"{words} no longer decides what {name} was: {text} stands in its place")


def read_alone(source: Source, made: Made, files: UserFiles, calls: Sequence[cst.Call]) -> bool:
    """Whether nothing but arguments of these calls reads what an argument's value is made from."""
    known = {id(node) for within in (*calls, *made.readers) for node in reads(source, within)}
    for reader in made.readers:
        code, local = source.code(reader), isinstance(reader, cst.Name)
        if _last_name(reader) is None:
            continue
        for other in [source] if local else files.with_text(code):
            within = source.scope(reader) if local else other.tree
            if any(other.code(node) == code and id(node) not in known for node in reads(other, within)):
                return False
    return True


def reads(source: Source, within: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Names, attributes and entries that are read there."""
    kinds: tuple[type[cst.Name | cst.Attribute | cst.Subscript], ...] = (cst.Name, cst.Attribute, cst.Subscript)
    for node in (each for kind in kinds for each in source.all_of(kind, within)):
        above = source.parent(node)
        parameter = isinstance(above, cst.Param) and above.name is node
        keyword = isinstance(above, cst.Arg) and above.keyword is node
        if not (isinstance(above, cst.AssignTarget) or parameter or keyword):
            yield node


def _default(source: Source, value: cst.BaseExpression, files: UserFiles, text: str, seen: object) -> Made | None:
    """The plain default of the one option that an argument is as it stands; None where it has none."""
    handed = value  # ``args.workers``, or ``int(args.workers)`` for what is to be whole
    if isinstance(value, cst.Call) and source.code(value.func) == "int" and len(value.args) == 1 and text.isdigit():
        handed = value.args[0].value
    parsed = isinstance(handed, cst.Attribute) and is_parsed(source, handed)
    option = files.option(source, handed.attr.value) if parsed and isinstance(handed, cst.Attribute) else None
    if option is None:
        return None
    option.not_given(files.command)
    kept = given(option.call).get("default")
    if kept is None or not _is_plain(default := kept.value):
        return None
    written = ast.literal_eval(option.source.code(default))
    if seen is not UNSEEN and seen != written and str(seen) != str(written):  # argparse gives texts to a type
        where = f"{option.source.name}:{option.source.lines(option.call).start.line}"
        raise NoHonestEditError(f"{where} gives {option.shown} a default that is not what arrives: {seen!r} does")
    if seen is UNSEEN and option.source is not source:
        return None  # that the option decides was not seen, and the two files know nothing of one another
    return Made(option.source, default)


def keys_of(source: Source, mapping: cst.BaseExpression) -> set[str] | None:
    """The keys of a mapping that is one literal, and that nothing else reads or changes; None where that is not so."""
    if isinstance(mapping, cst.Name):
        scope = source.scope(mapping)
        made = source.assignments(mapping.value, scope)
        uses = [node for node in source.all_of(cst.Name, scope) if node.value == mapping.value]
        passed_on = [use for use in uses if isinstance(source.parent(use), cst.Arg)]
        if len(made) != 1 or len(passed_on) != len(uses) - 1 or made[0].value is None:
            return None
        mapping = made[0].value
    if isinstance(mapping, cst.Call) and source.called(mapping) == "dict":
        named = {each.keyword.value for each in mapping.args if each.keyword is not None}
        return named if len(named) == len(mapping.args) else None
    if not isinstance(mapping, cst.Dict):
        return None
    keys = [text_of(each.key) for each in mapping.elements if isinstance(each, cst.DictElement)]
    texts = {key for key in keys if key is not None}
    return texts if len(texts) == len(mapping.elements) else None
