"""A PostgreSQL server for tests: in a temporary folder, reached by a socket there, which waits for no disk."""

from __future__ import annotations

import fcntl
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
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

    def _command(self, program: str, *arguments: str) -> list[str]:
        """Return the command of a server's program, run as a user other than root, which the server refuses."""
        as_other = ["--reuid=nobody", "--regid=nogroup", "--clear-groups"] if os.getuid() == 0 else []
        return ["setpriv", "--pdeathsig=QUIT", *as_other, str(self._programs / program), *arguments]

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the server's to its end."""
        return subprocess.run(
            self._command(program, *arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, cwd=self.folder, check=False, timeout=LIMIT_SECONDS,
        )  # fmt: skip

    def start(self) -> None:
        """Start it: it ends with this process, however that ends."""
        with (self.folder / "log").open("a") as log:
            self._process = subprocess.Popen(
                self._command("postgres", "-D", str(self.folder / "data")),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
            )  # fmt: skip
        end = time.monotonic() + LIMIT_SECONDS
        while True:
            try:
                self.sql("SELECT 1")
                return
            except Exception:  # it does not listen yet, or still recovers
                if self._process.poll() is not None or time.monotonic() > end:
                    raise OSError((self.folder / "log").read_text()[-2000:]) from None
                time.sleep(0.02)

    def stop(self) -> None:
        """Stop as in a crash: the server waits for nobody, and connections break."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(LIMIT_SECONDS)

    def restart(self) -> None:
        self.stop()
        self.start()

    def url(self, name: str, user: str = "postgres") -> str:
        return f"postgresql+psycopg://{user}@/{name}?host={self.folder}"

    def new(self, *options: str) -> str:
        """The URL of a new database that holds nothing."""
        name = f"results_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name} {' '.join(options)}")
        return self.url(name)

    def sql(self, statement: str, name: str = "postgres") -> list[tuple[Any, ...]]:
        return asked(self.url(name), statement)


def asked(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement with psycopg, without tsm2-tune, and return its rows."""
    import psycopg

    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description is not None else []


def _programs() -> Path | None:
    """The folder of the server's programs."""
    found = [Path(path).resolve() for path in (shutil.which("initdb"),) if path is not None]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    return next((path.parent for path in found if (path.parent / "postgres").exists()), None)


@contextmanager
def running(template: Path) -> Iterator[TestServer]:
    """A server; skips where none can be started. Its data are copied from the template, or the template from them."""
    pytest.importorskip("psycopg")
    programs = _programs()
    if programs is None or shutil.which("setpriv") is None:
        pytest.skip("no PostgreSQL server is installed, or no setpriv, which starts it as another user")
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # a socket's path has 107 bytes
    try:
        if os.getuid() == 0:
            shutil.chown(folder, "nobody")
        server = TestServer(folder, programs)
        _make_data(server, template)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make_data(server: TestServer, template: Path) -> None:
    data = server.folder / "data"
    with template.with_suffix(".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if template.exists():
            _copy(template, data)
        else:
            _init(server, data)
            _copy(data, template)
    with (data / "postgresql.conf").open("a") as conf:
        conf.writelines(f"{name} = {value}\n" for name, value in SETTINGS.items())
        conf.write(f"unix_socket_directories = '{server.folder}'\n")
    (data / "pg_hba.conf").write_text(ACCESS)


def _copy(folder: Path, to: Path) -> None:
    """Copy the folder with its owner, who runs the server."""
    subprocess.run(["cp", "-a", str(folder), str(to)], check=True)


def _init(server: TestServer, data: Path) -> None:
    plain = ("-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync", "--encoding=UTF8", "--locale=C")
    if server.run("initdb", *plain, *ENGLISH).returncode != 0:  # the version or the build has no ICU
        shutil.rmtree(data, ignore_errors=True)
        made = server.run("initdb", *plain)
        if made.returncode != 0:
            raise OSError(made.stdout)


def wait_until(is_so: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def database_name(address: str) -> str:
    return address.partition("@/")[2].partition("?")[0]
