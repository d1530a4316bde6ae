"""A process's own view of the user's folders: what it writes, renames and deletes there stays its own.

An overlay in a mount namespace where the kernel allows one, else a copy in which large files are links; where
neither can be had, the measurement is refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from autoopt.errors import EnvironmentLacks

LINKED_FROM = 32 * 2**20
"""Bytes from which on a file is not copied but linked: it can be read, and writing to it is refused."""
MOST_COPIED, MOST_FILES = 2 * 2**30, 100_000
"""Copying more would take longer than many a run."""

_NEW_MOUNTS, _NEW_USER = 0x00020000, 0x10000000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 32, 4096, 16384, 1 << 18


@dataclass
class View:
    """Where the process finds the folders: ``moved`` from their own place to another, empty for an overlay."""

    moved: dict[str, str] = field(default_factory=dict)

    def path(self, path: str) -> str:
        """A path of the user's as this process has it."""
        for folder, copy in self.moved.items():
            if path == folder or path.startswith(folder + os.sep):
                return copy + path[len(folder) :]
        return path


def open_view(folders: Iterable[str], scratch: Path, *, shared: Iterable[str] = ()) -> View:
    """Gives this process, which has one thread, its own view of some folders.

    Args:
        folders: absolute paths.
        scratch: a folder outside of them, for what is written.
        shared: folders within them that stay as they are, for autoopt's own files.

    Raises:
        EnvironmentLacks: neither an overlay nor a copy can be had.
    """
    outermost: list[str] = []
    for folder in sorted(map(os.path.realpath, folders), key=len):
        if not any(folder == other or folder.startswith(other.rstrip("/") + "/") for other in outermost):
            outermost.append(folder)
    try:
        _overlay(outermost, scratch, [folder for folder in shared if os.path.isdir(folder)])
        return View()
    except (OSError, AttributeError) as error:
        refused = str(error)
    return View({folder: _copied(folder, scratch / f"copy-{i}", refused) for i, folder in enumerate(outermost)})


def join_view(view: View, pid: int) -> None:
    """Gives this process, which has one thread, the view that another one has opened.

    Raises:
        OSError: that process has ended.
    """
    if view.moved:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for space, kind in (("user", _NEW_USER), ("mnt", _NEW_MOUNTS)):
        theirs = f"/proc/{pid}/ns/{space}"
        if os.readlink(theirs) == os.readlink(f"/proc/self/ns/{space}"):
            continue
        descriptor = os.open(theirs, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.setns(descriptor, kind) != 0:
                raise _error(f"joining {theirs}")
        finally:
            os.close(descriptor)


# an overlay


def _overlay(folders: list[str], scratch: Path, shared: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    # mounts of this process's own: as root as they are, else in a user namespace that maps the user alone
    user, group = os.geteuid(), os.getegid()
    if user != 0 or libc.unshare(_NEW_MOUNTS) != 0:
        if libc.unshare(_NEW_USER | _NEW_MOUNTS) != 0:
            raise _error("unshare")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount(libc, None, "/", None, _RECURSIVE | _PRIVATE)
    for number, folder in enumerate(folders):
        within = folder.rstrip("/") + "/"
        # an overlay shows its folder without what is mounted below it
        kept = {path: os.open(path, os.O_PATH) for path in shared if path.startswith(within)}
        mounted = [path for path, _ in _mounts() if path.startswith(within)]
        below = {path: os.open(path, os.O_PATH) for path in mounted if path not in kept}
        # what is written: on a file system that cannot hold the layers of an overlay (itself one), in memory
        place = scratch / f"view-{number}"
        place.mkdir()
        around = [(where, kind) for where, kind in _mounts() if (str(place) + "/").startswith(where.rstrip("/") + "/")]
        kind = max(reversed(around), key=lambda mount: len(mount[0]), default=("", ""))[1]
        if kind in ("overlay", "nfs", "nfs4", "cifs", "9p"):
            _mount(libc, "tmpfs", str(place), "tmpfs", 0)
        for part in ("upper", "work"):
            (place / part).mkdir()
        upper, work = _escaped(str(place / "upper")), _escaped(str(place / "work"))
        layers = f"lowerdir={_escaped(folder)},upperdir={upper},workdir={work}"
        try:
            _mount(libc, "overlay", folder, "overlay", 0, f"{layers},userxattr")
        except OSError:
            _mount(libc, "overlay", folder, "overlay", 0, layers)
        for path, descriptor in {**below, **kept}.items():
            _mount(libc, f"/proc/self/fd/{descriptor}", path, None, _BIND)
            if path in below:
                _mount(libc, None, path, None, _BIND | _REMOUNT | _READ_ONLY)
            os.close(descriptor)


def _mounts() -> list[tuple[str, str]]:
    """Where something is mounted, and the type of its file system; the latest last."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [(words[4].encode().decode("unicode_escape"), words[words.index("-") + 1]) for words in lines]


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _mount(
    libc: ctypes.CDLL, source: str | None, target: str, kind: str | None, flags: int, data: str | None = None
) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind)]
    reported = None if data is None else os.fsencode(data)
    if libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), reported) != 0:
        raise _error(f"mount {kind or 'bind'} at {target}")


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


# a copy


def _copied(folder: str, target: Path, refused: str) -> str:
    total = files = 0

    def copy(source: str, place: str) -> str:
        nonlocal total, files
        size = os.stat(source).st_size
        files += 1
        if size >= LINKED_FROM:
            os.symlink(source, place)
            return place
        total += size
        if total > MOST_COPIED or files > MOST_FILES:
            raise EnvironmentLacks(
                f"{folder} cannot be measured without changing it: this system allows no overlay ({refused}), "
                f"and it holds more than {MOST_COPIED >> 30} GiB or {MOST_FILES} files to copy",
                hint="run the script from a smaller folder, or allow user namespaces (sysctl user.max_user_namespaces)",
            )
        return str(shutil.copy2(source, place))

    def left_out(within: str, names: list[str]) -> set[str]:
        """Sockets and pipes, and earlier runs' directories."""
        paths = {name: os.path.join(within, name) for name in names}
        kept = (os.path.islink, os.path.isdir, os.path.isfile)
        return {name for name, path in paths.items() if name == "autoopt-runs" or not any(is_a(path) for is_a in kept)}

    with contextlib.suppress(shutil.Error):  # what cannot be read the script cannot read either
        shutil.copytree(folder, target, symlinks=True, copy_function=copy, ignore=left_out)
    return str(target)
