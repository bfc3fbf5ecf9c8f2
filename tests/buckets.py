"""An S3 server in the process of the test, which leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def s3_server() -> Iterator[str]:
    """Give the endpoint of an S3 server on 127.0.0.1.

    All servers of moto in one process share their buckets. At the end this one takes away the buckets that were made
    while it ran, so that no test finds those of another, whatever the order.
    """
    from moto.server import ThreadedMotoServer

    before = set(_buckets())
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()
        for name in set(_buckets()) - before:
            _buckets()[name].keys.clear()  # moto deletes no bucket that holds anything
            _backend().delete_bucket(name)


def _buckets() -> dict[str, Any]:
    buckets: dict[str, Any] = _backend().buckets
    return buckets


def _backend() -> Any:
    from moto.core.models import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
