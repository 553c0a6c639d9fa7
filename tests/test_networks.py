"""A network that is lost between a run and the server of its database: no packet arrives, and nobody says so."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, suppress
from typing import Any

import pytest
from sqlalchemy.engine import make_url

from tests.databases import database_of
from tests.fabricated import GPU, PROBLEM, configuration, trial, tuning_run
from tests.servers import TestServer, asked, wait_until
from tsm2_tune.errors import StoreError
from tsm2_tune.tuner.results.storage import outage, retry
from tsm2_tune.tuner.results.storage import postgresql as servers
from tsm2_tune.tuner.results.storage.retry import Lost
from tsm2_tune.tuner.results.store import Store

pytestmark = pytest.mark.slow

# Options of connections in these tests: limits as short as Linux permits.
SHORTER = {"connect_timeout": "2", "keepalives_idle": "1", "keepalives_interval": "1", "keepalives_count": "2",
           "tcp_user_timeout": "500"}  # fmt: skip
WITHIN_SECONDS = 15.0  # for what takes 5 on a machine that does nothing else; Linux by itself would take 15 minutes
MINUTE = 60.0
SLEEPING = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
TIMES_AS_SHORT = 30
FIRST, SECOND = configuration(128), configuration(256)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that is lost is noticed soon, if at all: each time that there is becomes shorter."""
    shorter = {name: SHORTER.get(name, value) for name, value in servers.CONNECTION.items()}
    monkeypatch.setattr(servers, "CONNECTION", shorter)


@pytest.fixture
def store(network: Network, address: str, soon: None) -> Iterator[Store]:
    """The store, through the network. That is whole again at the end."""
    with Store.open(network.through(address), create=True) as store:
        try:
            yield store
        finally:
            network.mend()


def calling(call: Callable[[], Any]) -> Future[Any]:
    """Call in a thread of its own, which may hang."""
    called = Future[Any]()

    def run() -> None:
        try:
            called.set_result(call())
        except BaseException as error:
            called.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return called


def test_a_connection_ends_within_a_minute_of_the_loss(network: Network, address: str) -> None:
    """By what the kernel was told of its socket."""
    with Store.open(network.through(address), create=True) as store, store.database.transaction() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        with closing(socket.socket(fileno=os.dup(driver.fileno()))) as opened:
            assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            tcp = {
                name: opened.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
                for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
            }
    assert tcp["TCP_KEEPIDLE"] + tcp["TCP_KEEPINTVL"] * tcp["TCP_KEEPCNT"] <= MINUTE
    assert 0 < tcp["TCP_USER_TIMEOUT"] <= 1000 * MINUTE


def test_sending_into_a_lost_network_ends(network: Network, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the server's kernel to acknowledge it, and then for a new connection."""
    monkeypatch.setattr(retry, "WAITS_SECONDS", ())
    store.add_trial(tuning_run(), trial(500.0, FIRST))
    network.cut()
    adding = calling(lambda: store.add_trial(tuning_run(), trial(501.0, SECOND)))
    error = adding.exception(WITHIN_SECONDS)
    assert isinstance(error, StoreError)
    assert "cannot be reached" in str(error)


def test_an_answer_that_is_waited_for_in_a_lost_network_is_lost(network: Network, address: str, store: Store) -> None:
    """All that was sent had arrived, so that only keepalives tell."""

    def ask() -> None:
        with store.database.transaction() as connection:
            connection.exec_driver_sql("SELECT pg_sleep(30)")

    asking = calling(ask)
    wait_until(lambda: bool(asked(address, SLEEPING)))
    network.cut()
    assert isinstance(asking.exception(WITHIN_SECONDS), Lost)


def test_a_run_goes_on_when_the_network_is_back(network: Network, address: str, store: Store) -> None:
    with store.leases(GPU) as ours:
        assert ours.take(PROBLEM)
        store.add_trial(tuning_run(), trial(500.0, FIRST))
        network.cut()
        adding = calling(lambda: store.add_trial(tuning_run(), trial(501.0, SECOND)))
        wait_until(outage.is_waited_for, WITHIN_SECONDS)
        assert not adding.done()
        network.mend()
        assert adding.result(WITHIN_SECONDS) == 2
    assert asked(address, "SELECT config FROM trial ORDER BY id") == [(FIRST.text,), (SECOND.text,)]
    assert asked(address, "SELECT * FROM lease") == []


def test_lost_client_unlocks(network: Network, address: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server ends the transaction, and with it the lock, while others still wait for that."""
    shorter = {
        name: f"{int(servers.SESSION[name].removesuffix('s')) // TIMES_AS_SHORT}s"
        for name in ("lock_timeout", "idle_in_transaction_session_timeout")
    }
    monkeypatch.setattr(servers, "SET_SESSION", servers.set_session(servers.SESSION | shorter))
    is_in, others_are_done = threading.Event(), threading.Event()

    def write() -> None:
        with lost.database.transaction(writes=True, about=(GPU, PROBLEM.text)):
            is_in.set()
            others_are_done.wait(MINUTE)

    with Store.open(network.through(address), create=False) as lost, Store.open(address, create=False) as other:
        writing = calling(write)
        assert is_in.wait(MINUTE)
        network.cut()
        assert other.add_trial(tuning_run(), trial(500.0)) == 1
        network.mend()
        others_are_done.set()
        assert isinstance(writing.exception(WITHIN_SECONDS), Lost)


def test_a_server_that_takes_a_connection_and_says_nothing_is_lost(soon: None) -> None:
    pytest.importorskip("psycopg")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        there = f"postgresql+psycopg://postgres@127.0.0.1:{silent.getsockname()[1]}/results"
        assert isinstance(calling(lambda: database_of(there)).exception(WITHIN_SECONDS), Lost)


# From asm/socket.h and linux/filter.h: the kernel filters a socket's packets; this filter passes 0 bytes.
SO_ATTACH_FILTER, SO_DETACH_FILTER = 26, 27
TAKE_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)
CHUNK_BYTES = 65536


class Network:
    """A port on this machine from which bytes go to the server's socket, and back.

    While it is cut, the kernel drops whatever comes for that port and answers nothing, as where a machine is gone:
    neither side is told. What a proxy received and did not pass on, its kernel would acknowledge.
    """

    def __init__(self, server: TestServer) -> None:
        self._there = str(server.folder / ".s.PGSQL.5432")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self._changing, self._is_whole = threading.Lock(), threading.Event()
        self._is_whole.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def through(self, url: str) -> str:
        """The URL by which the database of this one is reached through here."""
        port = self._listener.getsockname()[1]
        return str(make_url(url).set(host="127.0.0.1", port=port, query={}))

    def cut(self) -> None:
        """Lose packets from now on."""
        self._is_whole.clear()
        kept = ctypes.create_string_buffer(TAKE_NOTHING)
        program = struct.pack("HL", 1, ctypes.addressof(kept))
        with self._changing:
            for one in self._sockets:
                with suppress(OSError):  # it has ended
                    one.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)

    def mend(self) -> None:
        """Lose none any more."""
        with self._changing:
            for one in self._sockets:
                with suppress(OSError):  # it has ended, or was never cut
                    one.setsockopt(socket.SOL_SOCKET, SO_DETACH_FILTER, 0)
        self._is_whole.set()

    def close(self) -> None:
        self._is_whole.set()
        with self._changing:
            for one in self._sockets:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                here, _ = self._listener.accept()
                there = socket.socket(socket.AF_UNIX)
                with self._changing:
                    self._sockets += [here, there]
                there.connect(self._there)
                for one, other in ((here, there), (there, here)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        """Send what one socket receives to the other, until either is closed."""
        with suppress(OSError):
            while data := one.recv(CHUNK_BYTES):
                self._is_whole.wait()
                other.sendall(data)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def network(server: TestServer) -> Iterator[Network]:
    """A network to the server; skips where none can be cut."""
    if sys.platform != "linux":
        pytest.skip("only Linux drops packets before a socket")
    network = Network(server)
    yield network
    network.close()
