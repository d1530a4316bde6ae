"""Lines of the user's own code on the call stack, and the seconds of their imports; torch is not needed.

Frames of libraries and of autoopt are skipped."""

from __future__ import annotations

import ast
import builtins
import functools
import linecache
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from time import perf_counter
from traceback import walk_stack
from types import FrameType, ModuleType
from typing import Any

from autoopt.benchmark.libraries import OWN, TORCH, is_users
from autoopt.records import Place, Site

NEEDED = frozenset({"torch", "numpy"})
"""Modules that a training needs in any case."""
_MODULE, _CALLS = os.path.join("torch", "nn", "modules", "module.py"), ("_call_impl", "_wrapped_call_impl")
MOST = 5
LEAST = 0.05
"""Seconds below which an import is not reported."""
_folder = ""


@dataclass(frozen=True)
class Found:
    """A place in the user's code; ``direct``: nothing but torch lies between it and what it calls.

    ``end_column``: in its last line, where the call ends, as :class:`Site` has it.
    """

    place: Place
    direct: bool
    end_column: int | None = None


def user_place(frame: FrameType | None = None) -> Found | None:
    """The innermost line of the user's that led here; None where there is none.

    Args:
        frame: from which on to look; the caller's where None.
    """
    direct = True
    for each, _ in walk_stack(frame or sys._getframe(1)):
        name = each.f_code.co_filename
        if is_users(name):
            return Found(place_of(each), direct, _position(each)[2])
        direct = direct and name.startswith((OWN, *TORCH))
    return None


def model_place(frame: FrameType | None = None) -> Found | None:
    """The user's line that calls the outermost model which is under way; the innermost line where there is none.

    Args:
        frame: from which on to look; the caller's where None.
    """
    last: FrameType | None = frame or sys._getframe(1)
    for frame, _ in walk_stack(last):
        code = frame.f_code
        if code.co_name in _CALLS and code.co_filename.endswith(_MODULE):
            last = frame.f_back
    return user_place(last)


def calls_module() -> FrameType | None:
    """The user's frame that calls the module whose ``forward`` is about to begin; None where a library's code does."""
    for each, _ in walk_stack(sys._getframe(1)):
        name = each.f_code.co_filename
        if not name.startswith(OWN) and not name.endswith(_MODULE):
            return each if is_users(name) else None
    return None


def called_name(frame: FrameType) -> str:
    """The last name of what a frame calls at its line; empty where its source does not tell."""
    _, *ends = _position(frame)
    for node in ast.walk(tree_of(frame.f_code.co_filename)):
        if isinstance(node, ast.Call) and [node.end_lineno, node.end_col_offset] == ends:  # each has its parenthesis
            return last_name(node)
    return ""


def last_name(call: ast.Call) -> str:
    """The last part of the name that is called; empty where there is none."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


@functools.cache
def tree_of(file: str) -> ast.Module:
    """A file of the user's, parsed; empty where it cannot be read, or is no Python."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def maker_place(made: object) -> Found | None:
    """The user's line that makes an object; where its class is the user's own, not its constructor's call of another.

    Args:
        made: an object whose constructor is under way.
    """
    last = sys._getframe(1)
    for frame, _ in walk_stack(last):
        if constructs(frame, made):
            last = frame
        elif is_users(frame.f_code.co_filename):
            break
    return user_place(last.f_back) if last.f_back is not None else None


def constructs(frame: FrameType, made: object) -> bool:
    """Whether a frame is within the making of this object: its constructor, or one that it calls."""
    code = frame.f_code
    return code.co_argcount > 0 and frame.f_locals.get(code.co_varnames[0]) is made


def users_frames(frame: FrameType) -> Iterator[FrameType]:
    """Frames of the user's own code, from this one on, the innermost first."""
    return (each for each, _ in walk_stack(frame) if is_users(each.f_code.co_filename))


def editable_place(frame: FrameType) -> Found | None:
    """The innermost line within the folder that the script began in; of its other files where none of it led here.

    A package next to the folder is the user's, too, as far as anybody knows; its lines are in no patch.
    """
    found = user_place(frame)
    if found is None or not os.path.isabs(found.place.file):
        return found
    places = map(place_of, users_frames(frame))
    place = next((place for place in places if not os.path.isabs(place.file)), None)
    return found if place is None else Found(place, direct=False)


def place_of(frame: FrameType) -> Place:
    """The lines of the call that a frame is at, and its function."""
    line, end, _ = _position(frame)
    return Place(file=shown(frame.f_code.co_filename), line=line, end_line=end, function=_function(frame))


def _function(frame: FrameType) -> str:
    """The qualified name of a frame's function; the plain one where the interpreter (3.10) knows no other."""
    return getattr(frame.f_code, "co_qualname", frame.f_code.co_name)


def _position(frame: FrameType) -> tuple[int, int, int | None]:
    """First and last line of the call that a frame is at, and the column of its end where the interpreter knows it."""
    known: Iterator[tuple[int | None, int | None, int | None, int | None]]
    known = getattr(frame.f_code, "co_positions", lambda: iter(()))()  # none in Python 3.10
    start, stop, _, column = next(islice(known, frame.f_lasti // 2, None), (None, None, None, None))
    if start is not None and stop is not None and start <= stop:
        return start, stop, column
    return frame.f_lineno, frame.f_lineno, None


def names_of(*wanted: object) -> dict[str, str]:
    """Under which name each function of the user's on the call stack, by its qualified name, holds one of these
    objects.

    A name is a variable or a variable's attribute, such as ``self.model``.
    """
    found: dict[str, str] = {}
    for frame in users_frames(sys._getframe(1)):
        known = list(frame.f_locals.items())  # other threads may add to it
        within = ((f"{owner}.{name}", held) for owner, value in known for name, held in _attributes(value))
        name = next((name for name, value in chain(known, within) if any(value is one for one in wanted)), None)
        if name is not None:
            found.setdefault(_function(frame), name)
    return found


def _attributes(value: object) -> list[tuple[str, object]]:
    """Attributes that an object holds itself; none of what is no plain object, or refuses to tell."""
    try:
        return [] if isinstance(value, ModuleType | type) else list(vars(value).items())
    except Exception:  # a proxy may raise whatever it likes
        return []


def begin_here() -> None:
    """The script begins in the present folder, which it may leave: its files are shown relative to this one."""
    global _folder
    _folder = os.getcwd()
    shown.cache_clear()


def folder() -> str:
    """The folder that the script began in."""
    return _folder or os.getcwd()


@functools.cache
def shown(file: str) -> str:
    """A file relative to the folder that the script began in, where it lies in it."""
    return os.path.abspath(os.path.join(folder(), file)).removeprefix(folder() + os.sep)


class ImportClock:
    """Times imports in the main thread, until :meth:`stop`.

    Attributes:
        seconds: of all of them.
        lines: seconds by the user's file, line, end line and module: of what a line imports itself, without what lines
            of the user's own modules import one after the other.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.lines: defaultdict[tuple[str, int, int, str], float] = defaultdict(float)
        self._plain: Any = None
        self._timed: Any = None
        self._depth, self._inner = 0, 0.0

    def start(self) -> None:
        plain = self._plain = builtins.__import__
        main = threading.main_thread()

        def timed(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe().f_back
            if threading.current_thread() is not main or args[0] in sys.modules or frame is None:
                return plain(*args, **kwargs)
            users = is_users(frame.f_code.co_filename)
            if self._depth and not users:
                return plain(*args, **kwargs)
            before, self._inner = self._inner, 0.0
            self._depth += 1
            began = perf_counter()
            try:
                return plain(*args, **kwargs)
            finally:
                passed = perf_counter() - began
                self._depth -= 1
                if users:
                    place = place_of(frame)
                    self.lines[place.file, place.line, place.end_line, args[0]] += passed - self._inner
                self._inner = before + passed
                self.seconds += 0.0 if self._depth else passed

        self._timed = builtins.__import__ = timed

    def stop(self) -> float:
        """Puts the import back as it was; seconds so far."""
        if self._timed is not None and builtins.__import__ is self._timed:
            builtins.__import__ = self._plain
        return self.seconds


def import_sites(clock: ImportClock) -> tuple[Site, ...]:
    """The lines whose imports take longest, the longest first."""
    lines = clock.lines.items()
    reported = [each for each in lines if each[1] >= LEAST and each[0][3].split(".")[0] not in NEEDED]
    reported.sort(key=lambda each: -each[1])
    return tuple(
        Site(kind="import", file=file, line=line, end_line=end, call=module, options={"seconds": round(seconds, 3)})
        for (file, line, end, module), seconds in reported[:MOST]
    )
