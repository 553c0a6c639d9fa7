"""Write output files atomically: a file is written completely or not at all."""

from __future__ import annotations

import errno
import keyword
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from os import PathLike
from pathlib import Path

from tsm2_tune.errors import InputError
from tsm2_tune.tuner.results.storage.addresses import Address, is_address

TEMPORARY = ".tsm2-tune-"  # prefix of temporary names; short, since file names are limited


def refuse_name(output: str | PathLike[str]) -> None:
    """Raise InputError if `output` is empty, too long or otherwise invalid as a file name."""
    name = os.fspath(output)
    try:
        os.lstat(name)
    except ValueError:
        raise InputError(f"cannot write {name}: no file can have this name; name another --output") from None
    except OSError as error:  # other errors are reported when the file is written
        if not name:
            raise InputError("the name of the file to write is empty: name one with --output") from None
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(f"cannot write {name}: its name is too long; name another --output") from None


def refuse_unwritable(output: str | PathLike[str], *, is_ordinary: bool = False) -> None:
    """Raise InputError if the file `output` cannot be written. Call this before work that may take hours.

    `is_ordinary` also refuses devices and pipes.
    """
    refuse_name(output)
    if os.path.isdir(output):
        raise InputError(f"cannot write {output}: it is a folder; name a file in it")
    if os.path.exists(output) and not os.path.isfile(output):  # a device or a pipe
        if is_ordinary:
            raise InputError(f"cannot write {output}: it is not a regular file; name another --output")
        if not os.access(output, os.W_OK):
            raise InputError(f"cannot write {output}: it cannot be written to; name another --output")
        return
    try:
        path = Path(os.path.realpath(output))
        _refuse_protected(path)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=TEMPORARY):
            pass
    except OSError as error:
        raise InputError(
            f"cannot write {output}: its folder does not exist, or cannot be written to ({error.strerror});"
            " name another --output"
        ) from None


def refuse_database(output: str | PathLike[str], database: str | PathLike[str] | Address) -> None:
    """Raise InputError if `output` is the database, one of SQLite's files next to it, or an invalid file name."""
    refuse_name(output)
    if isinstance(database, Address) or is_address(database):
        return
    # An invalid name of the database and a missing folder are reported when they are opened.
    with suppress(ValueError, FileNotFoundError):
        for suffix in ("", "-wal", "-shm", "-journal"):
            path = os.path.realpath(database) + suffix
            same = os.path.exists(path) and os.path.exists(output) and os.path.samefile(path, output)
            if same or os.path.realpath(output) == path:
                raise InputError(
                    f"cannot write {output}: it is part of the database {database}; name another --output"
                )


def write(text: str, output: str | PathLike[str]) -> None:
    """Write the text to the file `output`, completely or not at all. Write directly to a device or a pipe.

    Raise InputError if `output` cannot be written.
    """
    path = Path(os.path.realpath(output))  # a link stays: its target is replaced
    if os.path.exists(output) and not os.path.isfile(output):  # unlike Path's methods, these functions never raise
        try:
            number = os.open(output, os.O_WRONLY | os.O_NONBLOCK)  # fails for a pipe without a reader
            os.set_blocking(number, True)
            with open(number, "w", encoding="utf-8", newline="") as device:
                device.write(text)
        except OSError as error:
            raise _refused(path, error) from error
    else:
        write_all({path: text.encode()})


def written(form: str, output: str, counts: str) -> str:
    """Return the message that the file `output` was written. `counts` says how much it contains.

    If the export's format `form` is "module" and Python cannot import a module of this name, the message tells what
    the name lacks.
    """
    path = Path(output)
    missing = {
        "letters, digits and _": not path.stem.isidentifier(),
        "a name that is not a keyword of Python": keyword.iskeyword(path.stem),
        ".py at the end": path.suffix != ".py",
    }
    wanted = [one for one, is_missing in missing.items() if is_missing]
    parts = [counts] if counts else []
    if form == "module" and path.is_file() and wanted:
        parts.append(f"rename it before you import it, to {', and '.join(wanted)}")
    return f"wrote {output}{': ' if parts else ''}{'; '.join(parts)}"


def write_all(contents: Mapping[Path, bytes]) -> None:
    """Write each file's content, in the order of the mapping. A replaced file keeps its mode.

    If a file cannot be written, restore all files and raise InputError.
    """
    path = Path()
    with ExitStack() as temporaries:
        try:
            staged = list[tuple[Path, Path]]()
            for named, content in contents.items():
                path = Path(os.path.realpath(named))
                if path.exists() and not path.is_file():
                    raise FileExistsError(0, "it is not a regular file")
                _refuse_protected(path)
                staged.append((_staged(path, content, temporaries), path))
            with ExitStack() as undo:
                for new, path in staged:
                    if len(staged) > 1:
                        undo.callback(_putting_back(path, temporaries))
                    new.replace(path)
                undo.pop_all()
        except OSError as error:
            raise _refused(path, error) from error


def _refuse_protected(path: Path) -> None:
    """Raise InputError if the file exists and may not be replaced. Even root may not replace a read-only file."""
    try:
        file, folder = path.stat(), path.parent.stat()
    except OSError:  # there is no file to replace
        return
    if not file.st_mode & 0o222 or not os.access(path, os.W_OK):
        raise InputError(f"cannot write {path}: it is read-only; make it writable, or name another --output")
    if folder.st_mode & stat.S_ISVTX and os.geteuid() not in (0, file.st_uid, folder.st_uid):
        raise InputError(
            f"cannot write {path}: it belongs to another user, and in its folder only the owner can replace a file;"
            " name another --output"
        )


def _staged(path: Path, content: bytes, temporaries: ExitStack) -> Path:
    """Write the content to a temporary file in the folder of `path`, and return the temporary file's path.

    The temporary file gets the mode and the owner of the file at `path`, if there is one.
    """
    new = _temporary(path, temporaries)
    former = path.stat() if path.exists() else None
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(new, flags, 0o666 if former is None else 0o600), "wb") as file:
        file.write(content)
        if former is not None:
            with suppress(OSError):  # this user is not in the file's group
                os.fchown(file.fileno(), former.st_uid, former.st_gid)
            os.fchmod(file.fileno(), former.st_mode & 0o777)
    return new


def _putting_back(path: Path, temporaries: ExitStack) -> partial[None]:
    """Return a function that restores the present file at `path`, or its absence, after `path` was replaced."""
    if not path.exists():
        return partial(path.unlink, missing_ok=True)
    former = _temporary(path, temporaries)
    try:
        os.link(path, former)
    except OSError:  # the file system has no hard links
        shutil.copy2(path, former)
    return partial(os.replace, former, path)


def _temporary(path: Path, temporaries: ExitStack) -> Path:
    """Return an unused file name in the folder of `path`. `temporaries` removes the file when it closes."""
    name = path.with_name(f"{TEMPORARY}{secrets.token_hex(8)}")
    temporaries.callback(_remove, name)
    return name


def _remove(path: Path) -> None:
    with suppress(OSError):  # the file was renamed to its final name, or never created
        path.unlink()


def _refused(path: Path, error: OSError) -> InputError:
    return InputError(f"cannot write {path} ({error.strerror}): name a file in an existing, writable folder")
