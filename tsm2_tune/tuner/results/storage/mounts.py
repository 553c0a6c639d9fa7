"""Files on a network's file system, where SQLite's locks may not hold between machines.

Such a database is not written. It may be read while it stays as it is: without locks, and without a file beside it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.results.storage.addresses import EXAMPLE

MOUNTS = Path("/proc/self/mountinfo")
# How their types begin there, behind "fuse." where a process serves them.
NETWORK = (
    *("nfs", "cifs", "smb", "9p", "lustre", "beegfs", "gpfs", "ceph", "glusterfs", "afs", "pvfs", "orangefs"),
    *("panfs", "sshfs", "s3fs", "gcsfuse", "rclone", "juicefs", "davfs", "wekafs"),
)
UNCHANGED = "ro&immutable=1"  # SQLite's mode for a file that stays as it is: it takes no lock and makes no file
_ESCAPED = re.compile(r"\\([0-7]{3})")
COUNTER = slice(24, 28)  # of a database's first bytes: another number after each transaction that wrote


def free_bytes_of(folder: str | Path) -> int | None:
    """Return the space that is left on the folder's disk; None if its file system does not tell."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize if found.f_blocks and found.f_frsize else None


def network_of(path: Path) -> str:
    """Return the type of the network's file system that the path is on; "" where it is on none, or nobody tells."""
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
        place = Path(os.path.realpath(path))  # not where the working folder is gone
    except OSError:
        return ""
    longest, kind = -1, ""
    for line in lines:  # a later mount hides an earlier one of the same place
        fields, _, of_source = line.partition(" - ")
        at = _ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields.split()[4])
        if place.is_relative_to(at) and len(at) >= longest:
            longest, kind = len(at), of_source.split()[0]
    return kind if kind.removeprefix("fuse.").startswith(NETWORK) else ""


def refusal(path: Path, kind: str) -> StoreError:
    """Return the error for a database on a network file system, with the remedy."""
    return StoreError(
        f"{path} is on a network file system ({kind}), where two machines that write a SQLite file destroy it: name a"
        f" file on a local disk with --db, or for several machines a PostgreSQL database, {EXAMPLE}"
    )


class Unchanged:
    """A database file as it is now, which is to stay so while it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = self._now()

    def check(self) -> None:
        """Raise StoreError if anybody has written to it since."""
        if self._now() != self._state:
            raise StoreError(
                f"{self._path} was written to while it was read: run this again when nobody tunes into it, or copy it"
                " to a local disk then"
            )

    def _now(self) -> tuple[int, int, bytes]:
        beside = [
            f"{self._path}{suffix}" for suffix in ("-journal", "-wal") if os.path.exists(f"{self._path}{suffix}")
        ]
        if beside:
            raise StoreError(f"{beside[0]} says that {self._path} is being written: wait until that has ended")
        try:
            with self._path.open("rb") as file:  # opening it makes a network ask for what is new
                found = os.fstat(file.fileno())
                return found.st_size, found.st_mtime_ns, file.read(COUNTER.stop)[COUNTER]
        except OSError as error:
            raise StoreError(
                f"{self._path} cannot be read ({error.strerror}): name another file with --db"
            ) from error
