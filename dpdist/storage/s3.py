"""Object storage: one S3 file system for a process and its options, and addresses that carry these options.

The table, the release, the work folder and the key file reach S3 through the same client. Making it takes a tenth of a
second of CPU. Threads can share it. It sets what every request needs: time limits, retries with growing pauses, no
cached listings. `fsspec`'s own cache makes a client for each thread instead.

Credentials are found by every process itself, in its environment or by the name of a profile.
"""

from __future__ import annotations

import copy
import json
import os
import re
import socket
import threading
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from dpdist.errors import SpecError

ATTEMPTS = 6
"""How often botocore sends one request before it gives up."""

CONFIG: dict[str, Any] = {
    "retries": {"mode": "standard", "total_max_attempts": ATTEMPTS},
    "connect_timeout": 10,
    "read_timeout": 30,
    "max_pool_connections": 32,
    "tcp_keepalive": True,
    "request_checksum_calculation": "when_required",  # not every server knows the checksums of newer clients
    "response_checksum_validation": "when_required",
}
"""Configuration of every client; `options` may change single settings by ``config_kwargs``."""

IMPATIENT: dict[str, Any] = {"retries": {"total_max_attempts": 1}, "connect_timeout": 2, "read_timeout": 5}
"""Settings for requests that are optional now and can be made later."""

_PLAIN = re.compile(r"s3a?://[A-Za-z0-9][A-Za-z0-9._-]*(/|\Z)")

_SHARED = 8
_shared: OrderedDict[tuple[Any, ...], Any] = OrderedDict()
_lock = threading.Lock()


def is_s3(uri: str) -> bool:
    """Whether an address is one of S3."""
    return uri.startswith(("s3://", "s3a://"))


def require_plain(uri: str) -> None:
    """Refuse an S3 address of another form than s3://bucket/key: an object would have a second name.
    Raises SpecError.
    """
    if is_s3(uri) and (not _PLAIN.match(uri) or "?versionId=" in uri):
        raise SpecError(
            f"{uri!r} is no plain address of S3: expected s3://bucket/key, with the name of a bucket (letters, digits, "
            "dots, dashes) and no version"
        )


def s3_filesystem(options: Mapping[str, Any] | None = None) -> Any:
    """The S3 file system of this process for some options of `s3fs.S3FileSystem` (``endpoint_url``, ``profile``,
    ``client_kwargs``) and its present ``AWS_*`` variables. Raises SpecError: the endpoint is no address, or holds
    credentials.
    """
    given = {name: value for name, value in (options or {}).items() if value is not None}
    _check_endpoint(given.get("endpoint_url"))
    variables = tuple(sorted(item for item in os.environ.items() if item[0].startswith("AWS_")))
    identity = (os.getpid(), json.dumps(given, sort_keys=True, default=repr), variables)
    with _lock:
        if identity not in _shared:
            _shared[identity] = _new(given)
            while len(_shared) > _SHARED:
                _shared.popitem(last=False)
        _shared.move_to_end(identity)
        return _shared[identity]


def filesystem(uri: str, options: Mapping[str, Any] | None = None) -> tuple[Any, str]:
    """The file system of a path or URL and the path in it, whatever characters that has; `options` are for remote ones.

    For an `address`, pass its two parts (`split_address`), because the name of an object may contain a ``?``.
    """
    if is_s3(uri):
        require_plain(uri)
        fs = s3_filesystem(options)
        return fs, fs._strip_protocol(uri)
    from fsspec import filesystem as named
    from fsspec.core import url_to_fs

    if "://" not in uri:
        fs = named("file")
        return fs, fs._strip_protocol(uri)
    remote = not uri.startswith(("file://", "local://"))
    return url_to_fs(uri, **(options or {} if remote else {}))  # type: ignore[no-any-return]


def address(uri: str, options: Mapping[str, Any] | None = None) -> str:
    """An address with the options a process needs to reach it: ``s3://bucket/key?endpoint_url=…&profile=…&region=…``.

    For a process that is given an address alone, such as a worker that looks for a key. Nothing in it is secret.
    """
    options = options or {}
    region = (options.get("client_kwargs") or {}).get("region_name")
    own = {"endpoint_url": options.get("endpoint_url"), "profile": options.get("profile"), "region": region}
    query = urlencode({name: value for name, value in own.items() if value}, quote_via=quote)
    return f"{uri}?{query}" if query and is_s3(uri) else uri


def split_address(uri: str) -> tuple[str, dict[str, Any]]:
    """The address alone and its options; the inverse of `address`."""
    if not is_s3(uri):
        return uri, {}
    uri, _, query = uri.partition("?")
    options: dict[str, Any] = dict(parse_qsl(query))
    region = options.pop("region", None)
    if region:
        options["client_kwargs"] = {"region_name": region}
    return uri, {name: options[name] for name in ("endpoint_url", "profile", "client_kwargs") if name in options}


def _new(options: Mapping[str, Any]) -> Any:
    import fsspec
    from aiobotocore.session import AioSession
    from botocore.handlers import add_expect_header

    config = copy.deepcopy({**CONFIG, **options.get("config_kwargs", {})})  # botocore changes what it is given
    config.setdefault("connector_args", {})["socket_factory"] = partial(_socket, config["read_timeout"])
    session = AioSession(profile=options.get("profile"))
    session.unregister("before-call.s3", add_expect_header)  # no time limit holds while "100 Continue" is waited for
    own = {"config_kwargs": config, "session": session, "use_listings_cache": False, "skip_instance_cache": True}
    fs = fsspec.filesystem("s3", **{**options, **own})
    fs.retries = 2  # for answers that break off, which botocore does not repeat
    return fs


def _socket(patience: float, where: tuple[Any, ...]) -> socket.socket:
    """A socket that fails when the server accepts no data for so long; `read_timeout` is for answers."""
    made = socket.socket(*where[:3])
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # where the system has it: on Linux
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * patience))
    return made


def _check_endpoint(endpoint: object) -> None:
    if endpoint is None:
        return
    parts = urlsplit(str(endpoint))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SpecError("storage.endpoint_url: expected an address such as https://storage.example:9000")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise SpecError(
            "storage.endpoint_url holds credentials or parameters: give credentials through the environment "
            "(AWS_ACCESS_KEY_ID, ...) or a profile"
        )
