"""A PostgreSQL server for tests: in a temporary folder, reached by a socket there, which waits for no disk."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SETTINGS = {
    "listen_addresses": "''",
    "unix_socket_permissions": "0777",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "60",
    "shared_buffers": "16MB",
    "log_min_messages": "error",
}
# Only who has a password may come in without being trusted; texts are sorted as in English unless one says otherwise.
ACCESS = "local all secretive scram-sha-256\nlocal all all trust\n"
ENGLISH = ("--locale-provider=icu", "--icu-locale=en-US")
LIMIT_SECONDS = 60.0


class TestServer:
    """A server that runs."""

    __test__ = False

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self._programs = folder, programs
        self._numbers = itertools.count(1)

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the server's as a user that it allows: root is none."""
        as_other = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if os.getuid() == 0 else []
        with (self.folder / "said").open("a") as said:  # a pipe would be the server's, too, and never end
            return subprocess.run(
                [*as_other, str(self._programs / program), *arguments],
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, text=True, cwd=self.folder, check=False,
                timeout=LIMIT_SECONDS,
            )  # fmt: skip

    def control(self, *arguments: str) -> None:
        """Have pg_ctl start or stop it."""
        done = self.run("pg_ctl", "-D", str(self.folder / "data"), "-w", "-l", str(self.folder / "log"), *arguments)
        if done.returncode != 0:
            raise OSError((self.folder / "said").read_text()[-2000:])

    def start(self) -> None:
        self.control("start")

    def restart(self) -> None:
        """As after a crash: nobody is waited for, and connections end."""
        self.control("restart", "-m", "immediate")

    def url(self, name: str, user: str = "postgres") -> str:
        return f"postgresql+psycopg://{user}@/{name}?host={self.folder}"

    def new(self, *options: str) -> str:
        """The URL of a new database that holds nothing."""
        name = f"results_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name} {' '.join(options)}")
        return self.url(name)

    def sql(self, statement: str, name: str = "postgres") -> list[tuple[Any, ...]]:
        """What the server answers without us."""
        import psycopg

        with psycopg.connect(host=str(self.folder), user="postgres", dbname=name, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description is not None else []


def asked(url: str, statement: str) -> list[tuple[Any, ...]]:
    """What the database answers without us."""
    import psycopg

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description is not None else []


def missing() -> str:
    """Why no server can be started; "" where one can."""
    if not _programs():
        return "no PostgreSQL server is installed"
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        return "PostgreSQL does not run as root, and setpriv is missing"
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "the package psycopg is not installed"
    return ""


def _programs() -> Path | None:
    """The folder of the server's programs."""
    found = [Path(path).resolve() for path in (shutil.which("initdb"),) if path is not None]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    return next((path.parent for path in found if (path.parent / "pg_ctl").exists()), None)


@contextmanager
def running() -> Iterator[TestServer]:
    """A server; skips where none can be started."""
    if why := missing():
        pytest.skip(why)
    programs = _programs()
    assert programs is not None
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # a socket's path has 107 bytes
    try:
        if os.getuid() == 0:
            shutil.chown(folder, "nobody")
        server = TestServer(folder, programs)
        (folder / "said").touch(0o666)
        _make_data(server)
        server.start()
        try:
            yield server
        finally:
            server.control("stop", "-m", "immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make_data(server: TestServer) -> None:
    data = server.folder / "data"
    plain = ("-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync", "--encoding=UTF8", "--locale=C")
    if server.run("initdb", *plain, *ENGLISH).returncode != 0:  # of a version, or a build, without ICU
        shutil.rmtree(data, ignore_errors=True)
        if server.run("initdb", *plain).returncode != 0:
            raise OSError((server.folder / "said").read_text())
    with (data / "postgresql.conf").open("a") as file:
        file.writelines(f"{name} = {value}\n" for name, value in SETTINGS.items())
        file.write(f"unix_socket_directories = '{server.folder}'\n")
    (data / "pg_hba.conf").write_text(ACCESS)
