"""A network between a program and the PostgreSQL server of the tests, which loses every packet when it is cut."""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from sqlalchemy.engine import make_url

from tests.servers import TestServer

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


@contextmanager
def network_to(server: TestServer) -> Iterator[Network]:
    """A network to the server; skips where none can be cut."""
    if sys.platform != "linux":
        pytest.skip("only Linux drops packets before a socket")
    network = Network(server)
    try:
        yield network
    finally:
        network.close()
