"""S3 servers in the process of the test."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


@cache
def moto() -> Any:
    """The S3 application of moto, one for a process: another one takes half a second and 25 MB."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    return DomainDispatcherApplication(create_backend_app)


@contextmanager
def serving(application: Any) -> Iterator[str]:
    """Serve a WSGI application on 127.0.0.1; give its address."""
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    server = make_server("127.0.0.1", 0, application, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def s3_server() -> Iterator[str]:
    """Give the endpoint of an S3 server on 127.0.0.1.

    All servers of moto in one process share their buckets. At the end this one takes away the buckets that were made
    while it ran, so that no test finds those of another, whatever the order.
    """
    before = set(_buckets())
    try:
        with serving(moto()) as endpoint:
            yield endpoint
    finally:
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
