"""``module:attribute`` or ``path/to/file.py:attribute`` to the object; each failure has a message of its own."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from autoopt.errors import WorkloadError

_under_way = 0


class ReachedOptimize(BaseException):
    """Ends the import of a script at its own call of ``autoopt.optimize()``: what stands above it is defined."""


def reached_optimize() -> None:
    """Called by ``autoopt.optimize()``: a script that calls it without a ``__main__`` guard is imported by its trials.

    Raises:
        ReachedOptimize: autoopt is importing the module that calls it.
    """
    if _under_way:
        raise ReachedOptimize


@contextlib.contextmanager
def _importing() -> Iterator[None]:
    global _under_way
    _under_way += 1
    try:
        yield
    finally:
        _under_way -= 1


EXAMPLE = "such as my_module:build or examples/photos.py:build"


def load(spec: str, search_path: Iterable[str] = ()) -> Any:
    """Imports what an import string names.

    Args:
        spec: ``package.module:attribute`` or ``path/to/file.py:attribute``; the attribute may be dotted.
        search_path: folders put in front of ``sys.path``; the working directory always is.

    Returns:
        The object, not called.

    Raises:
        WorkloadError: malformed; module or file not found; an import inside it failed (the user's own
            traceback in ``detail``); attribute missing.
    """
    where, attribute = parse(spec)
    extend_path(search_path)
    found: Any = import_file(where) if is_path(where) else import_module(where)
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise _no_attribute(found, part, attribute, where) from None
    return found


@dataclass(frozen=True)
class UserBuild:
    """The function that an import string names, imported where it is called; an exported script has it by its name."""

    spec: str

    @property
    def function(self) -> Callable[..., Any]:
        """The function itself.

        Raises:
            WorkloadError: it cannot be imported.
        """
        found: Callable[..., Any] = load(self.spec)
        return found

    def __call__(self, **arguments: Any) -> Any:
        """Its return value for these arguments, unchecked."""
        return self.function(**arguments)


def parse(spec: str) -> tuple[str, str]:
    """The two halves of an import string.

    Raises:
        WorkloadError: malformed.
    """
    if not isinstance(spec, str):
        raise WorkloadError(f"an import string is text, got {type(spec).__name__}", hint=EXAMPLE)
    where, colon, attribute = spec.rpartition(":")
    wrong = ""
    if not colon:
        wrong = "it has no ':'"
    elif not where:
        wrong = "nothing stands before the ':'"
    elif not attribute:
        wrong = "nothing stands after the ':'"
    elif not all(part.isidentifier() for part in attribute.split(".")):
        wrong = f"{attribute!r} is no name"
    elif not where.isprintable():
        wrong = "it has characters that cannot be printed"
    elif not is_path(where) and not all(part.isidentifier() for part in where.split(".")):
        wrong = f"{where!r} is neither a module nor the path of a .py file"
    if wrong:
        raise WorkloadError(f"{spec!r} is not MODULE:ATTRIBUTE: {wrong}", hint=EXAMPLE)
    return where, attribute


def check_spec(spec: str) -> None:
    """Checks an import string as far as that goes without importing anything: its form, and that its file is there.

    Raises:
        WorkloadError: malformed; there is no such file, or no such module or top-level package.
    """
    where, _ = parse(spec)
    if is_path(where):
        _existing_file(where)
        return
    top = where.partition(".")[0]
    if top in sys.modules or top in sys.builtin_module_names:
        return
    if importlib.machinery.PathFinder.find_spec(top, [os.getcwd(), *sys.path]) is None:
        raise _not_found(where, ModuleNotFoundError(name=top))


def is_path(where: str) -> bool:
    """Whether the first half of an import string is a file rather than a module."""
    return where.endswith(".py") or "/" in where or os.sep in where


def module_file(name: str, folders: Iterable[str | Path]) -> Path | None:
    """The file of a module that one of these folders holds; nothing is imported."""
    for folder in folders:
        base = Path(folder, *name.split("."))
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.is_file():
                return file.resolve()
    return None


def extend_path(search_path: Iterable[str] = ()) -> None:
    """Puts the folders, and the working directory before them, in front of ``sys.path``."""
    for folder in reversed([os.getcwd(), *search_path]):
        if folder not in sys.path:
            sys.path.insert(0, folder)


def import_module(name: str) -> ModuleType:
    """Imports a module by its dotted name.

    Raises:
        WorkloadError: not found, or an import inside it failed.
    """
    extend_path()
    try:
        with _importing():
            return importlib.import_module(name)
    except ReachedOptimize:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        return _import_under(name, Path(str(spec.origin)))
    except ModuleNotFoundError as error:
        missing = error.name or ""  # the module that was asked for, or a package on the way to it
        if _user_frames(error.__traceback__) is None and missing and f"{name}.".startswith(f"{missing}."):
            raise _not_found(name, error) from None
        raise _failed_inside(name, error) from None
    except (Exception, SystemExit) as error:
        raise _failed_inside(name, error) from None


def import_file(where: str) -> ModuleType:
    """Imports a file. Its folder joins ``sys.path``, so that what stands next to it can be imported too.

    A file inside a package is imported under its dotted name, so that its relative imports work.

    Raises:
        WorkloadError: no such file, or an import inside it failed.
    """
    path = _existing_file(where).resolve()
    root, name = dotted(path)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    if _leads_to(name, path):
        return import_module(name)
    return _import_under(f"autoopt_user_{path.stem}", path)


def _existing_file(where: str) -> Path:
    path = Path(os.path.expanduser(where))
    try:
        if path.is_file():
            return path
    except (OSError, ValueError):
        pass
    folder = path.parent if path.parent.is_dir() else Path.cwd()
    near = difflib.get_close_matches(path.name, [item.name for item in folder.glob("*.py")], n=1)
    hint = f"did you mean {folder / near[0]}?" if near else "paths are taken from the working directory"
    raise WorkloadError(f"there is no file {where}, searched from {Path.cwd()}", hint=hint)


def dotted(path: Path) -> tuple[Path, str]:
    """The folder to put on ``sys.path`` and a file's dotted name under it."""
    parts = [] if path.name == "__init__.py" else [path.stem]
    folder = path.parent
    while (folder / "__init__.py").exists() and folder.name.isidentifier():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


def _leads_to(name: str, path: Path) -> bool:
    """Whether importing ``name`` would give this file, and not another of the same name."""
    if not name or not all(part.isidentifier() for part in name.split(".")):
        return False
    loaded = sys.modules.get(name)
    if loaded is not None:
        return _same(getattr(loaded, "__file__", None), path)
    if "." in name:
        return True  # finding it would import its parents; importing it shows what is wrong
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return False
    return spec is not None and _same(spec.origin, path)


def _same(file: str | None, path: Path) -> bool:
    return file is not None and os.path.exists(file) and os.path.samefile(file, path)


def _import_under(name: str, path: Path) -> ModuleType:
    loaded = sys.modules.get(name)
    if loaded is not None and _same(getattr(loaded, "__file__", None), path):
        return loaded
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise WorkloadError(f"{path} is no Python file", hint=EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _importing():
            spec.loader.exec_module(module)
    except ReachedOptimize:
        pass
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        raise _failed_inside(str(path), error) from None
    return module


def _no_attribute(holder: Any, part: str, attribute: str, where: str) -> WorkloadError:
    names = [name for name in dir(holder) if not name.startswith("_")]
    home = getattr(holder, "__name__", None)
    callables = [name for name in names if callable(getattr(holder, name, None))]
    own = [name for name in callables if getattr(getattr(holder, name), "__module__", home) == home]
    near = difflib.get_close_matches(part, own, n=1) or difflib.get_close_matches(part, names, n=1)
    listed = ", ".join(own or callables) or "none"
    return WorkloadError(
        f"{where} has no {attribute!r}",
        hint=(f"did you mean {near[0]!r}? " if near else "") + f"callables there: {listed}",
    )


def _not_found(name: str, error: ModuleNotFoundError) -> WorkloadError:
    top = name.split(".")[0]
    searched = Path.cwd()
    near = difflib.get_close_matches(top, [item.stem for item in searched.glob("*.py")], n=1)
    hint = f"did you mean {near[0]!r}?" if near else "run autoopt from the folder that holds it, or give its path"
    missing = f" ({error.name!r} is missing)" if error.name != name else ""
    if "not a package" in str(error):
        missing = f" ({error.name!r}: its parent is a module, not a package)"
    return WorkloadError(f"there is no module {name!r}{missing}, searched {searched} and sys.path", hint=hint)


def _failed_inside(name: str, error: BaseException) -> WorkloadError:
    first = str(error).strip().partition("\n")[0]
    why = f"{type(error).__name__}: {first}" if first else type(error).__name__
    if isinstance(error, SystemExit):
        why = f"it exits while it is imported (SystemExit: {error.code})"
    return WorkloadError(
        f"importing {name} failed: {why}",
        hint="the error is in that module or in what it imports; its own traceback:",
        detail=user_traceback(error),
    )


def user_traceback(error: BaseException) -> str:
    """The traceback as the user's own program would print it: the frames of autoopt above theirs are left out."""
    for link in chain(error):
        trace = _user_frames(link.__traceback__)
        if trace is None and not isinstance(link, SyntaxError):  # which names its file and line itself
            trace = link.__traceback__
        link.with_traceback(trace)  # an attribute of an exception that is a frozen dataclass cannot be set
    return "".join(traceback.format_exception(error, limit=-40)).rstrip()


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those that led to it."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _user_frames(frames: TracebackType | None) -> TracebackType | None:
    """From the first frame on that is neither ours nor the import system's; None where there is none."""
    ours = str(Path(__file__).parents[1]) + os.sep
    while frames is not None:
        file = frames.tb_frame.f_code.co_filename
        if not (file.startswith((ours, "<frozen ")) or file == importlib.__file__):
            return frames
        frames = frames.tb_next
    return None
