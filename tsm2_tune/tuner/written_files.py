"""Files that an export writes, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path

from tsm2_tune.errors import InputError
from tsm2_tune.tuner.addresses import Address, is_address


def refuse_name(output: str | PathLike[str]) -> None:
    """InputError where no file can be called so."""
    name = os.fspath(output)
    try:
        os.lstat(name)
    except ValueError:
        raise InputError(f"cannot write {name}: no file can be called so; name another --output") from None
    except OSError:  # which writing says
        if not name:
            raise InputError("the name of the file to write is empty: name one with --output") from None


def refuse_unwritable(output: str | PathLike[str], *, is_ordinary: bool = False) -> None:
    """InputError where the file could not be written as things are, to say so before what may take hours.

    A device or a pipe can be written, but not where the file `is_ordinary`, as one of several is.
    """
    refuse_name(output)
    if os.path.isdir(output):
        raise InputError(f"cannot write {output}: it is a folder; name a file in it")
    if os.path.exists(output) and not os.path.isfile(output):  # it may be a pipe, which has no other name
        if is_ordinary:
            raise InputError(f"cannot write {output}: it is no ordinary file; name another --output")
        if not os.access(output, os.W_OK):
            raise InputError(f"cannot write {output}: it cannot be written to; name another --output")
        return
    try:
        path = os.path.realpath(output)
        with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), prefix=f".{os.path.basename(path)}."):
            pass
    except OSError as error:
        raise InputError(
            f"cannot write {output}: its folder is not there, or cannot be written to ({error.strerror});"
            " name another --output"
        ) from None


def refuse_database(output: str | PathLike[str], database: str | PathLike[str] | Address) -> None:
    """InputError where `output` is the database, or a file that SQLite keeps beside it, or no name of a file."""
    refuse_name(output)
    if isinstance(database, Address) or is_address(database):
        return
    # Of a database that no file can be called like, and of a folder that is gone, which opening and writing say.
    with suppress(ValueError, FileNotFoundError):
        for suffix in ("", "-wal", "-shm", "-journal"):
            path = os.path.realpath(database) + suffix
            same = os.path.exists(path) and os.path.exists(output) and os.path.samefile(path, output)
            if same or os.path.realpath(output) == path:
                raise InputError(
                    f"cannot write {output}: it is part of the database {database}; name another --output"
                )


def write(text: str, output: str | PathLike[str]) -> None:
    """Put the text into the file `output`, whole or not at all; into a device or a pipe it is written as it comes.

    InputError where it cannot be written.
    """
    path = Path(os.path.realpath(output))  # a link keeps pointing where it points
    if os.path.exists(output) and not os.path.isfile(output):  # unlike Path's, these raise nothing
        try:
            number = os.open(output, os.O_WRONLY | os.O_NONBLOCK)  # a pipe that nobody reads is refused
            os.set_blocking(number, True)
            with open(number, "w", encoding="utf-8", newline="") as device:
                device.write(text)
        except OSError as error:
            raise _refused(path, error) from error
    else:
        write_all({path: text.encode()})


def written(form: str, output: str) -> str:
    """What is said of the file: where it is, and whether Python could import a module of this name."""
    path = Path(output)
    if form != "module" or not path.is_file() or (path.stem.isidentifier() and path.suffix == ".py"):
        return f"wrote {output}"
    of = [] if path.stem.isidentifier() else ["letters, digits and _"]
    of += [] if path.suffix == ".py" else [".py at the end"]
    return f"wrote {output}: rename it before you import it, to {', and '.join(of)}"


def write_all(contents: Mapping[Path, bytes]) -> None:
    """Put the contents into these files, in this order, once all of them are on the disk.

    InputError, and all files as they were, where one cannot be written.
    """
    staged: list[tuple[Path, Path]] = []
    path = Path()
    try:
        for named, content in contents.items():
            path = Path(os.path.realpath(named))
            if path.exists() and not path.is_file():
                raise FileExistsError(0, "it is no ordinary file")
            with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
                staged.append((Path(file.name), path))
                file.write(content)
        for temporary, path in staged:
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(path)
    except OSError as error:
        raise _refused(path, error) from error
    finally:
        for temporary, _ in staged:
            temporary.unlink(missing_ok=True)


def _refused(path: Path, error: OSError) -> InputError:
    return InputError(f"cannot write {path} ({error.strerror}): name a file in a folder that is there and writable")


def _umask() -> int:
    """The permissions that this process withholds from new files; it can only be read by setting it."""
    umask = os.umask(0)
    os.umask(umask)
    return umask
