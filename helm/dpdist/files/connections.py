"""What a pod of this kind reaches, asked from inside by `helm test`; ends with 1 where that is not as it should be."""

import json
import os
import socket
import sys
import time
from urllib.parse import urlsplit

PORTS = {"http": 80, "https": 443, "postgresql": 5432}
PATIENCE = 60  # seconds: policies follow a new pod with some delay


def place(address):
    """Host and port of HOST:PORT or of a URL; of a variable where it begins with $."""
    if address.startswith("$"):
        address = os.environ[address[1:]]
    if "://" not in address:
        address = f"tcp://{address}"
    parts = urlsplit(address)
    return parts.hostname, parts.port or PORTS.get(parts.scheme.split("+")[0], 443)


def reached(address):
    """Whether a connection is made."""
    try:
        socket.create_connection(place(address), timeout=3).close()
    except OSError:
        return False
    return True


wrong = 0
for name, (address, wanted) in json.loads(sys.argv[1]).items():
    end = time.monotonic() + PATIENCE
    while (found := reached(address)) != wanted and time.monotonic() < end:
        time.sleep(2)
    verdict = "as it should" if found == wanted else "WRONG: " + ("it must" if wanted else "it must not")
    print(f"{'reaches' if found else 'does not reach'} {name}: {verdict}", flush=True)
    wrong += found != wanted
sys.exit(1 if wrong else 0)
