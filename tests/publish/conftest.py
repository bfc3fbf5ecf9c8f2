"""A small release of every kind of column, in a folder and on an S3 server.

The S3 server is moto, or a real one: set DPDIST_TEST_S3 to its endpoint and give credentials in the environment.
"""

import os
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import fsspec
import numpy as np
import pytest
from buckets import moto, s3_server, serving
from manifests import manifest_of
from werkzeug import Request, Response

from dpdist.privacy.events import ApproximateDP
from dpdist.privacy.guarantee import DifferentialPrivacy
from dpdist.privacy.noise import Noise
from dpdist.publish.manifest import Manifest, publish
from dpdist.publish.part_format import PartFormat
from dpdist.publish.parts import decode, part_name, write_part
from dpdist.spec.attribute import Attribute
from dpdist.spec.groups import Category, Count
from dpdist.spec.schema import Schema
from dpdist.storage.store import Store

SECRET = "planted-secret-key"
KEY = bytes(range(32))
ATTEMPT = "0123abcd-4567"
ROWS = 500
PARTS = 3


class Unruly:
    """A real S3 application behind answers that go wrong first: a status and a code, or silence."""

    def __init__(self) -> None:
        self.answers: deque[tuple[int, str] | Literal["silence"]] = deque()
        self._next = threading.Event()
        self.requests: list[str] = []
        self._app = moto()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Any:
        request = Request(environ)
        self.requests.append(request.method)
        self._next.set()
        answer = self.answers.popleft() if self.answers else None
        if answer == "silence":
            self._next = threading.Event()
            self._next.wait(20)  # until the client asks again
        elif answer is not None:
            request.get_data()
            status, code = answer
            body = f"<Error><Code>{code}</Code><Message>about {SECRET}</Message></Error>"
            return Response(body, status, mimetype="application/xml")(environ, start)
        return self._app(environ, start)


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """Endpoint of an S3 server; the environment holds its address and credentials."""
    real = os.environ.get("DPDIST_TEST_S3")
    with pytest.MonkeyPatch.context() as patch:
        if real:
            patch.setenv("AWS_ENDPOINT_URL", real)
            yield real
            return
        from moto.s3.responses import S3Response

        deciding, plain = threading.Lock(), S3Response.put_object

        def put_object(response: S3Response) -> Any:
            with deciding:  # one writer after the other, as S3 promises of conditional writes
                return plain(response)

        patch.setattr(S3Response, "put_object", put_object)
        patch.setenv("AWS_ACCESS_KEY_ID", "planted-access-key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
        with s3_server() as endpoint:
            patch.setenv("AWS_ENDPOINT_URL", endpoint)
            yield endpoint


@pytest.fixture
def bucket(s3: str) -> Iterator[str]:
    """Name of a new bucket."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    fs = fsspec.filesystem("s3", use_listings_cache=False)
    fs.mkdir(name)
    yield name
    fs.rm(name, recursive=True)


@pytest.fixture(scope="session")
def unruly_server() -> Iterator[tuple[Unruly, dict[str, Any]]]:
    with serving(app := Unruly()) as endpoint:
        options = {"endpoint_url": endpoint, "key": "planted-access-key", "secret": SECRET}
        Store("s3://unruly", options)._fs.mkdir("unruly")
        yield app, options


@pytest.fixture
def unruly(
    unruly_server: tuple[Unruly, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> tuple[Unruly, dict[str, Any]]:
    """An S3 server that can be told to fail, with an empty bucket named `unruly`, and the options to reach it."""
    app, options = unruly_server
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
    app.answers.clear()
    store = Store("s3://unruly", options)
    for name in store.names():
        store.delete(name)
    app.requests.clear()
    return app, options


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest) -> str:
    """Address of an empty place for a release."""
    if request.param == "local":
        folder: Path = request.getfixturevalue("tmp_path")
        return str(folder / "release")
    return f"s3://{request.getfixturevalue('bucket')}/releases/one"


@pytest.fixture(scope="session")
def schema() -> Schema:
    """One attribute of every kind."""
    return Schema(
        attributes=(
            Attribute(name="age", kind="integer", bounds=(17, 90), missing=Category(category="unknown")),
            Attribute(name="wage", kind="integer", bounds=(-50, 1_000_000), bins=Count(count=9)),
            Attribute(name="sex", kind="categorical", values=(1, 2), labels=("male", "female")),
            Attribute(name="state", kind="categorical", values=("NY", "CA", "WA"), missing=Category(category="none")),
            Attribute(name="degree", kind="ordinal", values=tuple(range(300))),
        )
    )


@pytest.fixture(scope="session")
def codes(schema: Schema) -> list[np.ndarray]:
    """Codes of ROWS records, every code of the smaller domains among them."""
    return [
        np.resize(np.arange(a.cardinality)[:: index % 2 * 2 - 1], ROWS).astype(a.dtype)
        for index, a in enumerate(schema.attributes)
    ]


@pytest.fixture
def write_parts(schema: Schema, codes: list[np.ndarray]) -> Callable[..., Manifest]:
    """Write the parts of a release and return its manifest, not yet published."""

    def write(store: Store, attempt: str = ATTEMPT, **changes: Any) -> Manifest:
        form = PartFormat()
        bounds = np.linspace(0, ROWS, PARTS + 1).astype(int)
        parts = [
            write_part(
                store,
                part_name(attempt, index),
                decode(schema, [c[a:b] for c in codes], form=form, noise=Noise(KEY), start=int(a)),
            )
            for index, (a, b) in enumerate(pairwise(bounds))
        ]
        return manifest_of(manifest_fields(schema, attempt=attempt, parts=parts, form=form) | changes)

    return write


@pytest.fixture
def release(write_parts: Callable[..., Manifest]) -> Callable[..., Manifest]:
    """Write a whole release."""

    def write(store: Store, signing_key: Any = None, **changes: Any) -> Manifest:
        return publish(store, write_parts(store, **changes), signing_key=signing_key)

    return write


@pytest.fixture(scope="session")
def fields(schema: Schema) -> dict[str, Any]:
    """Arguments for `manifest_of` of a release without parts."""
    return manifest_fields(schema, attempt=ATTEMPT, parts=(), form=PartFormat())


def manifest_fields(schema: Schema, **others: Any) -> dict[str, Any]:
    return {
        "guarantees": [
            DifferentialPrivacy(epsilon=1.25, delta=1e-9, adjacency="add/remove", covers="the whole release")
        ],
        "kind": "plausible-deniability",
        "name": "one",
        "created": date(2026, 11, 20),
        "parameters": {"records": ROWS, "noise": {"scale": 2.5}, "event": ApproximateDP(1.25, 1e-9).to_json()},
        "spec_sha256": "0" * 64,
        "spec": {"kind": "plausible-deniability", "synthesis": {"records": ROWS}},
        "table": schema,
        **others,
    }
