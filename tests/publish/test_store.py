"""Stores: whole files, names that stay inside, errors that say what to do, and a store in memory."""

import errno
import os
import pickle
import resource
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dpdist.errors import DataNotFound, DpdistError, OutOfDisk, OutputUnwritable, SpecError, StorageUnavailable
from dpdist.storage import store as store_module
from dpdist.storage.s3 import ATTEMPTS
from dpdist.storage.store import MemoryStore, Store

SECRET = "planted-secret-key"


def options_for(options: dict[str, Any], **config: Any) -> dict[str, Any]:
    return {**options, "config_kwargs": config}


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a small file system in memory; skips where that is not permitted."""
    mounted: list[Path] = []

    def make(settings: str) -> Path:
        folder = tmp_path / "mounted"
        folder.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", settings, "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting a file system is not permitted here")
        mounted.append(folder)
        return folder

    yield make
    for folder in reversed(mounted):
        subprocess.run(["umount", str(folder)], check=True)


class TestOperations:
    def test_files_are_written_read_listed_replaced_and_deleted(self, place: str) -> None:
        store = Store(place)
        assert store.sizes() == {}
        assert not store.exists("a/b.txt")
        store.write_bytes("a/b.txt", b"one")
        store.write_bytes("c", b"")
        assert store.exists("a/b.txt")
        assert not store.exists("a")
        assert store.read_bytes("a/b.txt") == b"one"
        assert store.read_bytes("c") == b""
        store.write_bytes("a/b.txt", b"three")
        assert store.sizes() == {"a/b.txt": 5, "c": 0}
        assert store.names() == ("a/b.txt", "c")
        store.delete("a/b.txt")
        store.delete("a/b.txt")
        assert store.names() == ("c",)

    def test_a_store_within_a_store_sees_its_own_files_only(self, place: str) -> None:
        store = Store(place)
        inner = store / "attempts" / "one"
        inner.write_bytes("x", b"1")
        Store(f"{place}-two").write_bytes("y", b"2")
        (store / "attempts/one2").write_bytes("z", b"3")
        assert inner.names() == ("x",)
        assert store.names() == ("attempts/one/x", "attempts/one2/z")
        assert inner.uri == f"{place}/attempts/one"

    def test_a_listing_holds_what_is_there_while_others_write(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        store.write_bytes("x", b"1")
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                store.write_bytes("y", b"2")

        with ThreadPoolExecutor(2) as pool:
            pool.submit(write)
            pool.submit(write)
            try:
                assert all("x" in store.sizes() for _ in range(300))
            finally:
                stop.set()

    def test_exclusive_files_are_stored_once_and_read_back(self, place: str) -> None:
        store = Store(place)
        assert store.write_exclusive("result", b"first") == b"first"
        assert store.write_exclusive("result", b"second") == b"first"
        assert store.read_bytes("result") == b"first"

    def test_twelve_writers_of_one_exclusive_file_agree_on_a_winner(self, place: str) -> None:
        store = Store(place)
        barrier = threading.Barrier(12)

        def write(number: int) -> bytes:
            barrier.wait()
            return store.write_exclusive("result", b"%d" % number * 10_000)

        with ThreadPoolExecutor(12) as pool:
            found = set(pool.map(write, range(12)))
        assert found == {store.read_bytes("result")}
        assert store.names() == ("result",)

    def test_the_place_is_probed_without_a_trace(self, place: str) -> None:
        store = Store(place)
        store.check_writable()
        assert store.names() == ()
        if store.is_local:
            assert not list(Path(place).iterdir())

    def test_a_store_travels_to_other_processes(self, place: str) -> None:
        store = Store(place) / "inner"
        store.write_bytes("x", b"1")
        other = pickle.loads(pickle.dumps(store))
        assert other.uri == store.uri
        assert other.read_bytes("x") == b"1"

    def test_a_relative_path_is_below_the_working_folder_and_makes_its_parents(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        store = pickle.loads(pickle.dumps(Store("releases/one")))
        monkeypatch.chdir("/")
        store.write_bytes("x", b"1")
        assert (tmp_path / "releases" / "one" / "x").read_bytes() == b"1"
        assert Store(f"file://{tmp_path}/releases/one").names() == ("x",)


class TestWholeOrNotAtAll:
    @pytest.mark.parametrize("call", ["fsync", "replace"])
    def test_a_failed_write_leaves_the_old_file_and_nothing_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        store = Store(tmp_path)
        store.write_bytes("x", b"old")

        def fail(*_: object) -> None:
            raise OSError(errno.EIO, "failed")

        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail)
            with pytest.raises(OutputUnwritable, match="EIO"):
                store.write_bytes("x", b"new")
        assert [*tmp_path.iterdir()] == [tmp_path / "x"]
        assert store.read_bytes("x") == b"old"

    def test_what_a_killed_writer_leaves_is_hidden(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        (tmp_path / ".x.0123").write_bytes(b"half")
        assert store.names() == ()
        assert store.write_exclusive("x", b"whole") == b"whole"

    def test_files_are_on_the_disk_before_they_are_visible(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[str] = []
        for name in ("fsync", "replace", "link"):
            real = getattr(os, name)
            monkeypatch.setattr(os, name, lambda *a, name=name, real=real: (calls.append(name), real(*a))[1])
        Store(tmp_path).write_bytes("x", b"1")
        Store(tmp_path).write_exclusive("y", b"1")
        assert calls == ["fsync", "replace", "fsync", "fsync", "link", "fsync"]

    def test_s3_files_are_one_put(self, unruly: Any) -> None:
        app, options = unruly
        Store("s3://unruly/x", options).write_bytes("_manifest.json", bytes(12 << 20))
        assert app.requests == ["PUT"]

    def test_s3_is_asked_no_more_than_it_must(self, unruly: Any) -> None:
        app, options = unruly
        store = Store("s3://unruly/x", options)
        for call, requests in (
            (lambda: store.exists("y"), ["HEAD"]),
            (lambda: store.write_exclusive("y", b"1"), ["HEAD", "PUT", "GET"]),
            (lambda: store.write_exclusive("y", b"2"), ["HEAD", "GET"]),
            (lambda: store.read_bytes("y"), ["GET"]),
            (store.sizes, ["GET"]),
            (lambda: store.delete("y"), ["DELETE"]),
        ):
            app.requests.clear()
            call()
            assert app.requests == requests


class TestNames:
    @pytest.mark.parametrize(
        "name", ["..", "a/../b", "/etc/passwd", "a//b", "a/", ".hidden", "a\\b", "a b", "a\nb", "x" * 300]
    )
    def test_names_do_not_lead_out(self, place: str, name: str) -> None:
        store = Store(place)
        for call in (store.read_bytes, store.exists, store.delete, store.__truediv__):
            with pytest.raises(SpecError, match="not a name in a store"):
                call(name)
        for write in (store.write_bytes, store.write_exclusive):
            with pytest.raises(SpecError, match="not a name in a store"):
                write(name, b"")

    def test_symbolic_links_do_not_lead_out(self, tmp_path: Path) -> None:
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / "x").write_bytes(b"secret")
        (tmp_path / "inside").mkdir()
        (tmp_path / "inside" / "link").symlink_to(tmp_path / "outside")
        with pytest.raises(SpecError, match="symbolic link"):
            Store(tmp_path / "inside").read_bytes("link/x")

    @pytest.mark.parametrize(
        ("uri", "message"),
        [
            (f"s3://user:{SECRET}@bucket/x", "no credentials"),
            (f"s3://bucket/x?token={SECRET}", "no parameters"),
            (f"https://user:{SECRET}@host/x", "not supported"),
            ("s3://", "s3://bucket/prefix"),
            ("s3://bucket/../other", "s3://bucket/prefix"),
            ("s3://bucket//x", "s3://bucket/prefix"),
            ("", "empty"),
        ],
    )
    def test_addresses_are_checked_and_never_repeated(self, uri: str, message: str) -> None:
        with pytest.raises(SpecError, match=message) as caught:
            Store(uri)
        assert SECRET not in str(caught.value)

    def test_credentials_are_neither_shown_nor_pickled(self) -> None:
        for options in ({"secret": SECRET}, {"client_kwargs": {"aws_session_token": SECRET}}):
            store = Store("s3://bucket/x", options)
            assert SECRET not in repr(store) + str(store) + store.uri
            with pytest.raises(SpecError, match="never travel to workers") as caught:
                pickle.dumps(store / "inner")
            assert SECRET not in str(caught.value)


class TestLocalErrors:
    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(DataNotFound, match="does not exist: check the path"):
            Store(tmp_path).read_bytes("x")

    def test_a_missing_parent(self, tmp_path: Path) -> None:
        store = Store(tmp_path / "not" / "there")
        for call in (
            store.check_writable,
            lambda: store.write_bytes("x", b""),
            lambda: store.write_exclusive("x", b""),
        ):
            with pytest.raises(OutputUnwritable, match="the folder above it does not exist: create that"):
                call()
        assert not (tmp_path / "not").exists()

    @pytest.mark.parametrize("below", ["", "/below"])
    def test_a_file_as_folder(self, tmp_path: Path, below: str) -> None:
        (tmp_path / "file").write_bytes(b"")
        store = Store(f"{tmp_path}/file{below}")
        assert not store.exists("x")
        for call in (store.check_writable, lambda: store.write_exclusive("x", b"")):
            with pytest.raises(OutputUnwritable, match="file where a folder is needed"):
                call()

    def test_a_folder_as_file(self, tmp_path: Path) -> None:
        (tmp_path / "x").mkdir()
        with pytest.raises(OutputUnwritable, match="or the reverse"):
            Store(tmp_path).write_bytes("x", b"")
        assert [*tmp_path.iterdir()] == [tmp_path / "x"]

    def test_no_permission(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(errno.EACCES, "refused")

        monkeypatch.setattr(store_module.local, "write", refuse)  # mode bits do not bind root
        with pytest.raises(OutputUnwritable, match="permission is denied"):
            Store(tmp_path).write_bytes("x", b"")

    def test_no_hard_links(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise OSError(errno.ENOTSUP, "not supported")

        monkeypatch.setattr(os, "link", refuse)
        for call in (Store(tmp_path).check_writable, lambda: Store(tmp_path).write_exclusive("x", b"")):
            with pytest.raises(OutputUnwritable, match="no hard links"):
                call()

    def test_a_read_only_file_system(self, mount: Callable[[str], Path]) -> None:
        store = Store(mount("ro,size=64k") / "release")
        with pytest.raises(OutputUnwritable, match="read-only: mount it for writing"):
            store.check_writable()

    def test_a_full_disk(self, mount: Callable[[str], Path]) -> None:
        store = Store(mount("size=64k") / "release")
        store.write_bytes("x", bytes(10_000))
        for write in (store.write_bytes, store.write_exclusive):
            with pytest.raises(OutOfDisk, match="no space is left"):
                write("y", bytes(100_000))
        assert store.names() == ("x",)
        store.write_bytes("y", bytes(10_000))

    def test_a_limit_on_file_sizes(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            with pytest.raises(OutOfDisk, match="ulimit -f"):
                store.write_bytes("x", bytes(10_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not [*tmp_path.iterdir()]

    def test_a_path_that_is_too_long(self, tmp_path: Path) -> None:
        store = Store(tmp_path)
        for _ in range(25):
            store = store / ("x" * 190)
        with pytest.raises(OutputUnwritable, match="too long"):
            store.write_bytes("x", b"")

    def test_errors_of_the_program_pass_through(self, tmp_path: Path) -> None:
        with pytest.raises(TypeError):
            Store(tmp_path).write_bytes("x", "text")  # type: ignore[arg-type]


S3_ANSWERS = [
    (404, "NoSuchBucket", DataNotFound, OutputUnwritable, "bucket does not exist"),
    (403, "AccessDenied", DataNotFound, OutputUnwritable, "access is denied"),
    (400, "ExpiredToken", DataNotFound, OutputUnwritable, "credentials have expired"),
    (403, "InvalidAccessKeyId", DataNotFound, OutputUnwritable, "does not accept the credentials"),
    (403, "SignatureDoesNotMatch", DataNotFound, OutputUnwritable, "does not accept the credentials"),
    (403, "RequestTimeTooSkewed", DataNotFound, OutputUnwritable, "clock"),
    (400, "AuthorizationHeaderMalformed", DataNotFound, OutputUnwritable, "another region"),
    (403, "QuotaExceeded", OutOfDisk, OutOfDisk, "quota is used up"),
    (503, "SlowDown", StorageUnavailable, StorageUnavailable, "asks to slow down"),
    (500, "InternalError", StorageUnavailable, StorageUnavailable, "does not answer"),
    (418, "Teapot", DataNotFound, OutputUnwritable, "the system reports"),
]


class TestS3Errors:
    @pytest.mark.parametrize(("status", "code", "reading", "writing", "message"), S3_ANSWERS)
    def test_answers_of_the_server(
        self,
        unruly: Any,
        status: int,
        code: str,
        reading: type[DpdistError],
        writing: type[DpdistError],
        message: str,
    ) -> None:
        app, options = unruly
        store = Store("s3://unruly/x", options_for(options, retries={"mode": "standard", "total_max_attempts": 1}))
        calls = [(writing, store.check_writable), (reading, lambda: store.read_bytes("y"))]
        for kind, call in calls:
            app.answers.extend([(status, code)] * 4)
            with pytest.raises(kind, match=message) as caught:
                call()
            app.answers.clear()
            assert "planted" not in str(caught.value)
            assert caught.value.__suppress_context__
            assert caught.value.__cause__ is None

    def test_a_missing_bucket(self, s3: str) -> None:
        store = Store("s3://no-such-bucket-here/x")
        assert not store.exists("y")
        for call in (store.check_writable, lambda: store.write_exclusive("y", b"")):
            with pytest.raises(OutputUnwritable, match="the bucket does not exist: create it"):
                call()
        with pytest.raises(DataNotFound, match="the bucket does not exist"):
            store.read_bytes("y")

    def test_no_access_to_look(self, unruly: Any) -> None:
        app, options = unruly
        store = Store("s3://unruly/x", options)
        for code in ("AccessDenied", "ExpiredToken"):  # the answer to HEAD has no body, hence no code
            app.answers.append((403, code))
            with pytest.raises(DataNotFound, match="access is denied"):
                store.exists("y")

    def test_no_credentials(self, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            monkeypatch.setenv(name, str(tmp_path / "none"))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for options in ({"skip_instance_cache": True}, {"profile": "nobody"}):
            with pytest.raises(OutputUnwritable, match="no credentials were found: set AWS_ACCESS_KEY_ID"):
                Store(f"s3://{bucket}/x", options).check_writable()

    def test_no_server(self, s3: str) -> None:
        quick = {
            "endpoint_url": "http://127.0.0.1:9",
            "config_kwargs": {"retries": {"mode": "standard", "total_max_attempts": 1}},
        }
        with pytest.raises(StorageUnavailable, match="no server answers at the endpoint"):
            Store("s3://bucket/x", quick).check_writable()


class TestS3Retries:
    def test_the_library_backs_off_with_jitter(self, s3: str) -> None:
        config = Store("s3://bucket/x")._fs.config_kwargs
        assert config["retries"] == {"mode": "standard", "total_max_attempts": ATTEMPTS}
        changed = Store("s3://bucket/x", {"config_kwargs": {"read_timeout": 1}})._fs.config_kwargs
        assert (changed["read_timeout"], changed["retries"]) == (1, config["retries"])

    @pytest.mark.parametrize("answer", [(503, "SlowDown"), (500, "InternalError"), "silence"])
    def test_throttling_failures_and_time_outs_are_repeated(self, unruly: Any, answer: Any) -> None:
        app, options = unruly
        store = Store("s3://unruly/x", options_for(options, read_timeout=1))
        app.answers.append(answer)
        store.write_bytes("y", b"1")
        app.answers.append(answer)
        assert store.read_bytes("y") == b"1"
        assert app.requests.count("PUT") >= 2
        assert app.requests.count("GET") >= 2

    @pytest.mark.parametrize("answer", [(412, "PreconditionFailed"), (409, "ConditionalRequestConflict")])
    def test_an_exclusive_put_that_lost_reads_the_winner(self, unruly: Any, answer: Any) -> None:
        app, options = unruly
        store = Store("s3://unruly/x", options_for(options, retries={"mode": "standard", "total_max_attempts": 1}))
        store.write_bytes("y", b"winner")
        app.answers.extend([(404, "NoSuchKey"), answer])
        assert store.write_exclusive("y", b"loser") == b"winner"

    def test_a_server_without_conditional_put_still_stores(self, unruly: Any) -> None:
        app, options = unruly
        store = Store("s3://unruly/x", options)
        app.answers.extend([(404, "NoSuchKey"), (501, "NotImplemented")])
        assert store.write_exclusive("y", b"1") == b"1"


class TestSweep:
    def test_probes_are_swept_and_nothing_else(self, place: str) -> None:
        store = Store(place)
        assert store.sweep() == ()
        store.write_bytes("data/part", b"x")
        store.write_bytes("probe", b"x")
        store._fs.pipe_file(f"{store._path('')}/.probe-{'a' * 32}", b"dpdist")
        assert store.sweep() == (f".probe-{'a' * 32}",)
        assert list(store.sizes(hidden=True)) == ["data/part", "probe"]
        assert store.sweep() == ()

    def test_sweeping_disturbs_no_writer(self, tmp_path: Path) -> None:
        store, ended = Store(tmp_path / "release"), threading.Event()

        def sweep() -> None:
            while not ended.is_set():
                store.sweep()

        sweeper = threading.Thread(target=sweep)
        sweeper.start()
        try:
            for number in range(150):
                store.check_writable()
                store.write_bytes("one", b"%d" % number)
                assert store.write_exclusive(f"only/{number}", b"x") == b"x"
        finally:
            ended.set()
            sweeper.join()
        assert store.read_bytes("one") == b"149"
        assert not list((tmp_path / "release").rglob(".*"))


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else Store(tmp_path / "store")


def test_files_are_written_read_and_deleted(store: Store) -> None:
    store.check_writable()
    assert not store.exists("a")
    store.write_bytes("a", b"first")
    store.write_bytes("a", b"second")
    inner = store / "data"
    assert inner.write_exclusive("b", b"won") == b"won"
    assert inner.write_exclusive("b", b"lost") == b"won"
    assert store.read_bytes("data/b") == b"won"
    assert store.exists("a")
    assert not store.exists("data")
    assert store.sizes() == {"a": 6, "data/b": 3}
    assert inner.names() == ("b",)
    store.delete("a")
    store.delete("a")
    assert store.names() == ("data/b",)


def test_what_is_missing_or_leads_out_is_refused(store: Store) -> None:
    with pytest.raises(DataNotFound):
        store.read_bytes("missing")
    for name in ("../a", ".hidden", "/a"):
        with pytest.raises(SpecError):
            store.write_bytes(name, b"")


def test_a_store_in_memory_belongs_to_one_process() -> None:
    with pytest.raises(TypeError, match="one process"):
        pickle.dumps(MemoryStore())
