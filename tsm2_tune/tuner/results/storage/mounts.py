"""Detection of network file systems, on which SQLite's locks may not work between machines.

A database on a network file system is never written. It is copied without locks, and the copy is read. An error is
raised if the file changes while it is copied.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.results.storage.addresses import EXAMPLE

MOUNTS = Path("/proc/self/mountinfo")
# The first letters of network file systems' types. A type may have the prefix "fuse.".
NETWORK = (
    *("nfs", "cifs", "smb", "9p", "lustre", "beegfs", "gpfs", "ceph", "glusterfs", "afs", "pvfs", "orangefs"),
    *("panfs", "sshfs", "s3fs", "gcsfuse", "rclone", "juicefs", "davfs", "wekafs"),
)
UNCHANGED = "ro&immutable=1"  # SQLite's mode for a file that does not change: it takes no lock and creates no file
_ESCAPED = re.compile(r"\\([0-7]{3})")
COUNTER = slice(24, 28)  # bytes of a database's header that change with each transaction that writes


def free_bytes_of(folder: str | Path) -> int | None:
    """Return the number of free bytes on the folder's disk; None if it is unknown."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize if found.f_blocks and found.f_frsize else None


def network_of(path: Path) -> str:
    """Return the type of the network file system that contains the path, such as "nfs4"; "" if it is local or
    unknown.
    """
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
        place = Path(os.path.realpath(path))  # raises if the working folder does not exist
    except OSError:
        return ""
    longest, kind = -1, ""
    for line in lines:  # a later mount hides an earlier mount at the same place
        fields, _, of_source = line.partition(" - ")
        at = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields.split()[4])
        if place.is_relative_to(at) and len(at) >= longest:
            longest, kind = len(at), of_source.split()[0]
    return kind if kind.removeprefix("fuse.").startswith(NETWORK) else ""


def refusal(path: Path, kind: str) -> StoreError:
    """Return the StoreError for writing to a database on a network file system."""
    return StoreError(
        f"{path} is on a network file system ({kind}), where two machines that write to a SQLite file corrupt it:"
        f" name a file on a local disk with --db, or for several machines a PostgreSQL database, {EXAMPLE}"
    )


class Unchanged:
    """A database file that must not change while it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = self._now()

    def check(self) -> None:
        """Raise StoreError if the file has changed since this object was created."""
        if self._now() != self._state:
            raise StoreError(
                f"{self._path} was written to while it was read: run this again when no run writes to it, or then"
                " copy it to a local disk"
            )

    def _now(self) -> tuple[int, int, bytes]:
        beside = [
            f"{self._path}{suffix}" for suffix in ("-journal", "-wal") if os.path.exists(f"{self._path}{suffix}")
        ]
        if beside:
            raise StoreError(
                f"{beside[0]} shows that a program writes to {self._path}: wait until that program has ended"
            )
        try:
            with self._path.open("rb") as file:  # opening it makes a network file system fetch changes
                found = os.fstat(file.fileno())
                return found.st_size, found.st_mtime_ns, file.read(COUNTER.stop)[COUNTER]
        except OSError as error:
            raise StoreError(
                f"{self._path} cannot be read ({error.strerror}): name another file with --db"
            ) from error
