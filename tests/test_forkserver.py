"""The server of forks, where a request fails."""

import os
import socket
import struct
from collections.abc import Callable
from typing import NoReturn

import forkserver
import pytest


def _no_process() -> NoReturn:
    raise BlockingIOError("no process is left")


@pytest.mark.parametrize(
    ("size", "fork", "error"), [(2, _no_process, BlockingIOError), (3, os.fork, EOFError)], ids=["no process", "half"]
)
def test_who_asks_in_vain_does_not_wait(
    size: int, fork: Callable[[], int], error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the connection nor a file that came with the request stays open in the server."""
    ours, theirs = socket.socketpair()
    reading, writing = os.pipe()
    monkeypatch.setattr(os, "fork", fork)
    try:
        socket.send_fds(ours, [struct.pack("I", size)], [writing])
        os.close(writing)
        ours.sendall(b"{}")
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(error):
            forkserver._forked(theirs, [], [])
        ours.setblocking(False)
        os.set_blocking(reading, False)
        assert ours.recv(4) == os.read(reading, 1) == b""
    finally:
        os.close(reading)
        ours.close()
        theirs.close()
