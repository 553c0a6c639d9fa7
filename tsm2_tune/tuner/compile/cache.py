"""The cache of compiled kernels on disk, shared by all runs of a user.

A file that another user owns or can write to is never loaded.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import pwd
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tsm2_tune.errors import InputError
from tsm2_tune.tuner.compile.supervisor import LOCK

LIMIT_VARIABLE = "TSM2_TUNE_CACHE_LIMIT"
LIMIT_BYTES = 2 * 2**30
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
KEPT_OF_LIMIT = 0.9  # eviction reduces the cache to this share of the limit, so that the next run need not evict
SPARED_SECONDS = 3600.0  # no run evicts a binary that was used within this time
UNLOCKED_SECONDS = 60.0  # the owner of a new working folder locks it within this time
MOST_REPORT_BYTES = 2**16
TRIES = 20  # attempts to create a folder that another process removes again and again
WORKING = "working"
STARTED = time.time()
log = logging.getLogger(__name__)

_NO_FOLLOWING = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Entry:
    """A binary in the cache, with its JSON report of spills and checksum."""

    binary: Path
    size_bytes: int  # of binary and report together
    used: float  # last use, in seconds since 1970


@dataclass(frozen=True, slots=True)
class Found:
    """A binary that was found in the cache."""

    path: Path
    content: bytes
    spill_bytes: int  # of registers


def cache_folder() -> Path:
    """Return the cache's folder. Create it if it is missing.

    Raise InputError if this user cannot write to the folder, or if a user other than this user and root can write to
    it.
    """
    folder = Path(os.path.realpath(named_folder()))
    for remaining in reversed(range(TRIES)):
        try:
            _make_trusted(folder)
        except OSError as error:
            if isinstance(error, FileNotFoundError) and remaining:  # another process removed it just now
                continue
            raise InputError(
                f"cache folder {folder} cannot be created ({error.strerror}): set XDG_CACHE_HOME to a writable folder"
            ) from None
        break
    return folder


def refuse_noexec() -> None:
    """Raise InputError if the cache folder is on a file system mounted noexec: no library can be loaded from it."""
    folder = cache_folder()
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise InputError(
            f"cache folder {folder} is on a file system that is mounted noexec, from which no compiled kernel can be"
            " loaded: set XDG_CACHE_HOME to a folder elsewhere"
        )


def _make_trusted(folder: Path) -> None:
    """Create the folder if it is missing."""
    for place in (*reversed(folder.parents), folder):
        try:
            found = os.lstat(place)
        except FileNotFoundError:
            with suppress(FileExistsError):  # another process created it first
                os.mkdir(place, 0o700)
            found = os.lstat(place)
        _refuse_strangers(folder, place, found)
    if not os.access(folder, os.W_OK):
        os.lstat(folder)
        raise InputError(f"cache folder {folder} is not writable: set XDG_CACHE_HOME to a writable folder")


def named_folder() -> Path:
    """Return the path of the cache folder under $XDG_CACHE_HOME or ~/.cache; relative paths in variables are ignored.

    Raise InputError if the variables and the user database give no absolute path.
    """
    home = os.environ.get("HOME", "")
    if not os.path.isabs(home):
        with suppress(KeyError):  # the user has no entry, which happens in containers
            home = pwd.getpwuid(os.geteuid()).pw_dir
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base if os.path.isabs(base) else os.path.join(home, ".cache"), "tsm2-tune", "binaries")
    if not folder.is_absolute():
        raise InputError("no folder for the cache: set XDG_CACHE_HOME or HOME to an absolute path")
    return folder


def _refuse_strangers(folder: Path, place: Path, found: os.stat_result) -> None:
    """Raise InputError if the permissions of `place` let other users change the cache folder `folder`."""
    trouble = ""
    is_sticky = found.st_mode & stat.S_ISVTX  # in a sticky folder only an entry's owner may rename it
    if not stat.S_ISDIR(found.st_mode):
        trouble = f"{place} is not a folder: remove it"
    elif found.st_uid != os.geteuid() and (place == folder or found.st_uid != 0):
        trouble = f"{place} belongs to user {found.st_uid}: remove it"
    elif found.st_mode & 0o022 and (place == folder or not is_sticky):
        trouble = f"others can write to {place} (mode {stat.S_IMODE(found.st_mode):o}): chmod go-w it"
    if trouble:
        raise InputError(
            f"cache folder {folder} cannot be trusted: {trouble}, or set XDG_CACHE_HOME to another folder"
        )


def _is_ours(found: os.stat_result) -> bool:
    """Return whether this user owns the file and nobody else can write to it."""
    return found.st_uid == os.geteuid() and not found.st_mode & 0o022


# --- Entries ---


def find(key: str, suffix: str) -> Found | None:
    """Return the cached binary; None if it or its report is missing, damaged or writable by another user."""
    binary = _place(key, suffix)
    found = None
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        found = _read(binary)
    log.debug("cache %s: %s", "miss" if found is None else "hit", binary.name)
    return found


def _read(binary: Path) -> Found | None:
    shard = os.lstat(binary.parent)
    if not (stat.S_ISDIR(shard.st_mode) and _is_ours(shard)):
        return None
    with _own_file(binary.with_suffix(".json")) as file:
        report = json.loads(os.read(file, MOST_REPORT_BYTES))
    spill_bytes = report["spill_bytes"]
    with _own_file(binary) as file:
        with open(file, "rb", closefd=False) as stream:
            content = stream.read()
        if report["sha256"] != hashlib.sha256(content).hexdigest():  # damaged by a full disk or a power failure
            return None
        os.utime(file, ns=(time.time_ns(), os.fstat(file).st_mtime_ns))  # set only the access time
    return Found(binary, content, spill_bytes) if type(spill_bytes) is int and spill_bytes >= 0 else None


def keep(output: Path, key: str, suffix: str, spill_bytes: int) -> Path:
    """Move the compiler's output file into the cache and return its new path.

    If another process has already stored a binary with this key, keep that file, since a trial may be using it.
    """
    if (found := find(key, suffix)) is not None:
        return found.path
    binary = _place(key, suffix)
    report = output.with_name("report.json")
    with _own_file(output) as file:
        digest = _digest(file)
        os.fchmod(file, 0o600)
    report.touch(0o600)
    report.write_text(json.dumps({"spill_bytes": spill_bytes, "sha256": digest}))
    _make_shard(binary.parent)
    # Move the report first: a binary without a report is ignored. A rename makes each file appear complete.
    _move(report, binary.with_suffix(".json"))
    _move(output, binary)
    return binary


def keep_content(content: bytes, key: str, suffix: str) -> Path:
    """Write the content to the cache and return its path, as `keep` does. Raise OSError if the folder was removed."""
    from tsm2_tune.tuner.compile.command_limits import workplace  # slow to import

    with workplace(working_parent()) as work:
        output = work.folder / f"content{suffix}"
        output.write_bytes(content)
        return keep(output, key, suffix, 0)


def _place(key: str, suffix: str) -> Path:
    return cache_folder() / key[:2] / f"{key}{suffix}"


@contextmanager
def _own_file(path: Path) -> Iterator[int]:
    """Open a regular file of this user for reading, and return its number.

    Raise OSError for another user's file, a link, a folder, a pipe or a device.
    """
    number = os.open(path, os.O_RDONLY | _NO_FOLLOWING)
    try:
        found = os.fstat(number)
        if not (stat.S_ISREG(found.st_mode) and _is_ours(found)):
            raise PermissionError(f"{path} is not a regular file of this user")
        yield number
    finally:
        os.close(number)


def _digest(number: int) -> str:
    with open(number, "rb", closefd=False, buffering=0) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _make_shard(shard: Path) -> None:
    with suppress(FileExistsError):
        shard.mkdir(0o700)
    found = os.lstat(shard)
    if not (stat.S_ISDIR(found.st_mode) and _is_ours(found)):
        _remove(shard)
        shard.mkdir(0o700)


def _move(source: Path, target: Path) -> None:
    try:
        source.replace(target)
    except (IsADirectoryError, FileExistsError):  # a folder where a file should be
        _remove(target)
        source.replace(target)


def _remove(path: Path) -> None:
    """Rename the file, link or folder, then remove it. Content of another user's folder may remain."""
    aside = path.with_name(f".aside-{secrets.token_hex(8)}")
    path.rename(aside)
    if stat.S_ISDIR(os.lstat(aside).st_mode):
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink()


# --- Leftovers and limits ---


def working_parent() -> Path:
    """Return the folder in which each compilation creates its temporary working folder. Create it if missing."""
    parent = cache_folder() / WORKING
    _make_shard(parent)
    return parent


def remove_leftovers() -> None:
    """Remove the working folders of dead processes, then evict binaries if the cache exceeds its size limit."""
    limit_bytes = cache_limit_bytes()
    with suppress(OSError):  # the cache was removed just now, or its disk is full: the next compilation reports it
        for folder in list(working_parent().iterdir()):
            _remove_if_dead(folder)
    evict(limit_bytes)


def _remove_if_dead(folder: Path) -> bool:
    """Remove the working folder if its owner process has ended. Return whether the folder was removed.

    A running owner holds the lock file. On a file system without locks no folder is removed.
    """
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            folder.unlink()
            return True
        if not (folder / LOCK).exists() and time.time() - os.lstat(folder).st_mtime < UNLOCKED_SECONDS:
            return False
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | _NO_FOLLOWING, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(lock), os.lstat(folder / LOCK)):
                return False  # another process removed the folder first, and a new owner may have created it again
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
    except OSError:  # the owner is running, or another process removed the folder first
        return False
    return True


def cache_limit_bytes() -> int:
    """Return the limit of the cache's size in bytes, from the environment variable or by default."""
    text = os.environ.get(LIMIT_VARIABLE, "").strip()
    if not text:
        return LIMIT_BYTES
    found = re.fullmatch(r"([0-9]{1,15})([KMGT]?)", text, re.IGNORECASE | re.ASCII)
    if found is None:
        raise InputError(f"{LIMIT_VARIABLE} is {text!r}: set a number of bytes, such as 500M or 2G")
    return int(found[1]) * UNITS[found[2].upper()]


def entries() -> Iterator[Entry]:
    """Yield every binary in the cache with its size and last use."""
    shards = list[Path]()
    with suppress(OSError):  # another process removed the folder just now
        shards = list(cache_folder().glob("[0-9a-f][0-9a-f]"))
    for shard in shards:
        try:
            if not stat.S_ISDIR(shard.lstat().st_mode):  # a link leads to files outside the cache
                continue
            with os.scandir(shard) as listing:
                found = {one.name: one for one in listing if one.is_file(follow_symlinks=False)}
        except OSError:  # removed just now
            continue
        for name, one in found.items():
            if name.endswith(".json"):
                continue
            with suppress(OSError):
                facts, report = one.stat(follow_symlinks=False), found.get(f"{os.path.splitext(name)[0]}.json")
                of_report = report.stat(follow_symlinks=False).st_size if report else 0
                yield Entry(Path(one.path), facts.st_size + of_report, facts.st_atime)


def evict(limit_bytes: int) -> None:
    """Remove the least recently used binaries if the cache is larger than `limit_bytes`.

    Binaries that were used since this run began or within the last hour are kept, since a run may be about to load
    them. A run that needs a removed binary compiles it again.
    """
    kept = sorted(entries(), key=lambda entry: entry.used)
    over = sum(entry.size_bytes for entry in kept)
    if over <= limit_bytes:
        return
    over -= int(limit_bytes * KEPT_OF_LIMIT)
    spared = min(STARTED, time.time() - SPARED_SECONDS)
    for entry in kept:
        if over <= 0 or entry.used >= spared:
            return
        log.debug("cache evicts %s: %d bytes", entry.binary.name, entry.size_bytes)
        for path in (entry.binary, entry.binary.with_suffix(".json")):
            with suppress(OSError):  # another process removed it first
                path.unlink()
        over -= entry.size_bytes


def clear() -> int:
    """Remove all binaries from the cache. Return the number of working folders that remain since they are in use."""
    folder = cache_folder()
    for path in list(folder.iterdir()):
        if path.name != WORKING:
            with suppress(FileNotFoundError):
                _remove(path)
    return sum(not _remove_if_dead(one) for one in list(working_parent().iterdir()))
