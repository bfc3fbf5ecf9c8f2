"""S3 for all: one client for a process, addresses with the way to them, nothing secret in either."""

import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpdist.cluster.certificates import write_certificates
from dpdist.errors import DataNotFound, SpecError, StorageUnavailable
from dpdist.storage.files import open_file, storage_errors
from dpdist.storage.s3 import ATTEMPTS, address, filesystem, s3_filesystem, split_address
from dpdist.storage.store import Store

ENDPOINT = {"endpoint_url": "http://127.0.0.1:1"}


def test_all_threads_and_rooms_share_a_client() -> None:
    barrier = threading.Barrier(8)

    def make(_: int) -> int:
        barrier.wait()
        return id(s3_filesystem(ENDPOINT))

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(make, range(8)))) == 1
    shared = s3_filesystem(ENDPOINT)
    assert Store("s3://b/x", ENDPOINT)._fs is shared
    assert filesystem("s3a://b/k", ENDPOINT) == (shared, "b/k")
    assert shared.config_kwargs["retries"] == {"mode": "standard", "total_max_attempts": ATTEMPTS}
    assert not shared.dircache.use_listings_cache


def test_other_options_or_credentials_make_another_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "one")
    first = s3_filesystem(ENDPOINT)
    assert s3_filesystem({**ENDPOINT, "profile": "other"}) is not first
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "two")
    assert s3_filesystem(ENDPOINT) is not first


def test_an_address_says_how_to_reach_it() -> None:
    options = {
        "endpoint_url": "https://s3.example:9000/a b?",
        "profile": "a&b=c",
        "client_kwargs": {"region_name": "x"},
    }
    assert split_address(address("s3://b/k", options)) == ("s3://b/k", options)
    assert address("s3://b/k") == address("s3://b/k", {}) == "s3://b/k"
    assert address("/folder/k", options) == "/folder/k"
    assert split_address("/folder/k?profile=x") == ("/folder/k?profile=x", {})
    assert split_address("s3://b/k?key=a&secret=b&anon=1") == ("s3://b/k", {})


@given(*[st.text(st.characters(exclude_categories=["Cs"]), min_size=1)] * 3)
def test_any_option_survives_in_an_address(endpoint: str, profile: str, region: str) -> None:
    options = {"endpoint_url": endpoint, "profile": profile, "client_kwargs": {"region_name": region}}
    assert split_address(address("s3://b/k", options)) == ("s3://b/k", options)


def test_the_name_of_a_file_is_no_address(tmp_path: Path) -> None:
    """Else an object's name would say which server its readers ask."""
    name = "s3://b/part?endpoint_url=http://127.0.0.1:2/"
    fs, path = filesystem(name, ENDPOINT)
    assert (path, fs.endpoint_url) == (name.strip("s3:/"), ENDPOINT["endpoint_url"])
    chained = tmp_path / "zip::part"
    chained.write_bytes(b"record")
    fs, path = filesystem(str(chained))
    assert fs.cat_file(path) == b"record"


@pytest.mark.parametrize("endpoint", ["http://id:planted@host", "https://host/?secret=planted", "host:9000", "ftp://h"])
def test_an_endpoint_holds_no_credentials(endpoint: str) -> None:
    with pytest.raises(SpecError, match=r"storage\.endpoint_url") as caught:
        Store("s3://b/x", {"endpoint_url": endpoint})
    assert "planted" not in str(caught.value)


def test_an_unknown_profile_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", f"{tmp_path}/none")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", f"{tmp_path}/none")
    with pytest.raises(DataNotFound, match=r"no credentials.*profile"), storage_errors("s3://b/k"):
        open_file("s3://b/k", {**ENDPOINT, "profile": "nobody"}).read()


@pytest.fixture(params=["silent", "deaf"])
def mute(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[bytes]]]:
    """Endpoint of a server that never answers, or never even reads, or never ends its answer, and what it read."""
    heard: list[bytes] = []
    taken: list[socket.socket] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                taken.append(listener.accept()[0])
                if request.param != "deaf":
                    heard.append(taken[-1].recv(1 << 16))
                if request.param == "stalling":
                    taken[-1].sendall(b"HTTP/1.1 206 Partial Content\r\nContent-Length: 1000\r\n\r\nthe first bytes")

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", heard
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    for connection in (listener, *taken):
        connection.close()


@pytest.mark.timeout(90)
def test_a_server_that_says_nothing_is_not_waited_for(mute: tuple[str, list[bytes]]) -> None:
    """Neither for its leave to go on (`Expect: 100-continue`) nor for room in its buffers."""
    endpoint, heard = mute
    retries = {"mode": "standard", "total_max_attempts": 2}
    own = {"key": "a", "secret": "b", "config_kwargs": {"read_timeout": 1, "retries": retries}}
    store = Store("s3://bucket/x", {"endpoint_url": endpoint, **own})
    with pytest.raises(StorageUnavailable):
        store.write_bytes("y", bytes(1 << 26))
    assert not any(b"expect" in request.lower() for request in heard)


@pytest.mark.parametrize("mute", ["stalling"], indirect=True)
def test_an_answer_that_stalls_is_not_waited_for(mute: tuple[str, list[bytes]]) -> None:
    own = {"key": "a", "secret": "b", "config_kwargs": {"read_timeout": 0.3}}
    with pytest.raises(StorageUnavailable, match="resume"), storage_errors("s3://b/k"):
        open_file("s3://b/k", {"endpoint_url": mute[0], **own}, size=1000).read(1000)


@pytest.fixture
def unknown_authority(tmp_path: Path) -> Iterator[str]:
    """Endpoint of a server with TLS whose authority this process does not know."""
    write_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "scheduler.pem", tmp_path / "scheduler-key.pem")
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                taken = listener.accept()[0]
            except OSError:
                return
            with suppress(OSError):
                context.wrap_socket(taken, server_side=True).close()
            taken.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"https://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    listener.close()


def test_a_certificate_of_an_unknown_authority(unknown_authority: str) -> None:
    once = {"retries": {"mode": "standard", "total_max_attempts": 1}}
    options = {"endpoint_url": unknown_authority, "key": "a", "secret": "b", "config_kwargs": once}
    store = Store("s3://bucket/x", options)
    said = "certificate must be .* of an authority that AWS_CA_BUNDLE names"
    for call in (store.check_writable, lambda: store.read_bytes("y")):
        with pytest.raises(StorageUnavailable, match=said):
            call()
    with pytest.raises(StorageUnavailable, match=said), storage_errors("s3://bucket/x"):
        open_file("s3://bucket/x", options).read()
