"""Ports on 127.0.0.1 for the servers of tests."""

import os
import random
import socket
from contextlib import suppress

_FIRST = 12_000 + 1_000 * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8)
_given: set[int] = set()


def free_port() -> int:
    """A port that nobody listens on, that the system gives to nobody by itself, and that was not given before."""
    while True:
        port = random.SystemRandom().randrange(_FIRST, _FIRST + 1_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port
