"""Attempt keys: wrapped, bound to their attempt, shared, erased, never shown."""

import base64
import json
import os
import pickle
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import numpy as np
import pytest
from buckets import s3_server

from dpdist.errors import KeyUnavailable, StorageUnavailable
from dpdist.ledger import keys
from dpdist.ledger.keys import KeyRef, erase_key_file, forget_keys, load_noise, new_key
from dpdist.ledger.signing import KeyEncryptionKey
from dpdist.privacy.noise import Noise
from dpdist.storage.s3 import address

SECRET = bytes(range(32))
TEXT = base64.b64encode(SECRET).decode()


@pytest.fixture
def kek(monkeypatch: pytest.MonkeyPatch) -> KeyEncryptionKey:
    monkeypatch.setenv("DPDIST_KEK", TEXT)
    return KeyEncryptionKey.find()


def share(kek: KeyEncryptionKey, uri: str, *, attempt: str = "a1") -> tuple[bytes, KeyRef]:
    key = new_key()
    return key, keys.write_key_file(uri, attempt=attempt, wrapped=kek.wrap(key, attempt=attempt))


def test_keys_are_new_and_wrapping_is_authenticated(kek: KeyEncryptionKey) -> None:
    key = new_key()
    assert len(key) == 32
    assert key != new_key()
    wrapped = kek.wrap(key, attempt="a1")
    assert key not in wrapped
    assert wrapped != kek.wrap(key, attempt="a1")
    assert kek.unwrap(wrapped, attempt="a1") == key
    for position in (0, 20, len(wrapped) - 1):
        damaged = bytearray(wrapped)
        damaged[position] ^= 1
        with pytest.raises(KeyUnavailable, match="does not open with the key-encryption key from DPDIST_KEK"):
            kek.unwrap(bytes(damaged), attempt="a1")
    for wrong in (wrapped[:5], b""):
        with pytest.raises(KeyUnavailable):
            kek.unwrap(wrong, attempt="a1")
    with pytest.raises(KeyUnavailable):
        kek.unwrap(wrapped, attempt="a2")
    with pytest.raises(KeyUnavailable):
        KeyEncryptionKey(bytes(32), "elsewhere").unwrap(wrapped, attempt="a1")


@pytest.mark.parametrize("text", ["x", TEXT[:-8], base64.b64encode(bytes(31)).decode(), "é" * 44])
def test_a_malformed_key_encryption_key_is_refused_unseen(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("DPDIST_KEK", text)
    with pytest.raises(KeyUnavailable, match="DPDIST_KEK must hold 32 bytes in base64") as refused:
        KeyEncryptionKey.find()
    assert text == "x" or text not in str(refused.value)


def test_where_the_key_encryption_key_comes_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(KeyUnavailable, match="set DPDIST_KEK"):
        KeyEncryptionKey.find()
    default = tmp_path / "ledger.db.kek"
    with pytest.raises(KeyUnavailable, match="cannot be read"):
        KeyEncryptionKey.find(default)
    made = KeyEncryptionKey.find(default, create=True)
    assert stat.S_IMODE(default.stat().st_mode) == 0o600
    assert KeyEncryptionKey.find(default, create=True).secret == made.secret == KeyEncryptionKey.find(default).secret
    assert [file.name for file in tmp_path.iterdir()] == [default.name]

    named = tmp_path / "named"
    monkeypatch.setenv("DPDIST_KEK_FILE", str(named))
    with pytest.raises(KeyUnavailable, match=f"{named} cannot be read"):
        KeyEncryptionKey.find(default, create=True)
    named.write_text(TEXT + "\n")
    named.chmod(0o400)
    assert KeyEncryptionKey.find(default).secret == SECRET
    monkeypatch.setenv("DPDIST_KEK", base64.b64encode(bytes(32)).decode())
    assert KeyEncryptionKey.find(default).secret == bytes(32)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_key_file_others_may_read_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int) -> None:
    file = tmp_path / "kek"
    file.write_text(TEXT)
    file.chmod(mode)
    monkeypatch.setenv("DPDIST_KEK_FILE", str(file))
    with pytest.raises(KeyUnavailable, match=f"run chmod 600 {file}"):
        KeyEncryptionKey.find()


def test_a_folder_that_cannot_hold_the_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyUnavailable, match=r"cannot be created at .*make the folder writable"):
        KeyEncryptionKey.find(tmp_path / "missing" / "kek", create=True)


def _find(path: str) -> bytes:
    return KeyEncryptionKey.find(path, create=True).secret


def test_all_who_make_the_default_key_at_once_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(_find, [str(tmp_path / "kek")] * 64))) == 1
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("where", ["local", "memory"])
def test_workers_load_the_noise_from_the_key_file(kek: KeyEncryptionKey, tmp_path: Path, where: str) -> None:
    uri = f"{tmp_path}/new/key.json" if where == "local" else "memory://bucket/key.json"
    key, ref = share(kek, uri)
    np.testing.assert_array_equal(load_noise(ref).words("x", 5), Noise(key).words("x", 5))
    with fsspec.open(uri) as file:
        content = file.read()
    assert key not in base64.b64decode(json.loads(content)["wrapped"])
    if where == "local":
        assert stat.S_IMODE(os.stat(uri).st_mode) == 0o600
        assert os.listdir(tmp_path / "new") == ["key.json"]

    erase_key_file(uri, attempt="a1")
    with pytest.raises(KeyUnavailable, match="the key of attempt a1 is not at"):
        load_noise(ref)
    erase_key_file(uri, attempt="a1")


def test_keys_on_s3(kek: KeyEncryptionKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nobody there: the address says where
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with s3_server() as endpoint:
        options = {"endpoint_url": endpoint, "client_kwargs": {"region_name": "us-east-1"}}
        uri = address("s3://keys/run/key.json", options)
        s3 = fsspec.filesystem("s3", endpoint_url=options["endpoint_url"])
        with pytest.raises(KeyUnavailable, match="check that the folder or bucket exists"):
            share(kek, uri)
        s3.mkdir("keys")
        s3.touch("keys/run/other")
        s3.ls("keys/run")  # a listing without the key is cached now
        key, ref = share(kek, uri)
        assert pickle.loads(pickle.dumps(ref)) == ref
        assert repr(ref) == "KeyRef(attempt='a1', uri='s3://keys/run/key.json')"
        np.testing.assert_array_equal(load_noise(ref).words("x", 5), Noise(key).words("x", 5))
        erase_key_file(ref.uri, attempt="a1")
        with pytest.raises(KeyUnavailable, match="the key of attempt a1 is not at"):
            load_noise(ref)
        erase_key_file(ref.uri, attempt="a1")
        s3.clear_instance_cache()


def test_a_storage_that_is_away_lets_the_run_be_resumed(
    kek: KeyEncryptionKey, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted")
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.0)
    uri = address("s3://keys/run/key.json", {"endpoint_url": "http://127.0.0.1:9"})
    for action in (
        lambda: share(kek, uri),
        lambda: load_noise(KeyRef("a1", uri)),
        lambda: erase_key_file(uri, attempt="a1"),
        lambda: erase_key_file(uri, attempt="a1", patient=False),
    ):
        with pytest.raises(StorageUnavailable, match=r"key file of attempt a1 .*s3://keys/run/key\.json.*resume") as e:
            action()
        assert "planted" not in str(e.value)


def test_a_file_is_overwritten_before_it_is_deleted(kek: KeyEncryptionKey, tmp_path: Path) -> None:
    share(kek, f"{tmp_path}/key.json")
    os.link(tmp_path / "key.json", tmp_path / "second name")
    erase_key_file(f"{tmp_path}/key.json", attempt="a1")
    assert set((tmp_path / "second name").read_bytes()) == {0}


def test_what_a_killed_writer_left_is_erased_too(kek: KeyEncryptionKey, tmp_path: Path) -> None:
    for name in ("other.json", "key.json"):
        share(kek, f"{tmp_path}/{name}")
    (tmp_path / f".key.json.{'0' * 32}").write_bytes((tmp_path / "key.json").read_bytes()[:20])
    erase_key_file(f"{tmp_path}/key.json", attempt="a1")
    assert os.listdir(tmp_path) == ["other.json"]


def test_the_cache_is_bounded_and_can_be_cleared(kek: KeyEncryptionKey, tmp_path: Path) -> None:
    refs = [share(kek, f"{tmp_path}/{i}.json", attempt=f"a{i}")[1] for i in range(12)]
    noises = [load_noise(ref) for ref in refs]
    assert len(keys._cache) == 8
    assert load_noise(refs[-1]) is noises[-1]
    (tmp_path / "11.json").unlink()
    assert load_noise(refs[-1]) is noises[-1]
    forget_keys("a11")
    with pytest.raises(KeyUnavailable):
        load_noise(refs[-1])
    assert load_noise(refs[-2]) is noises[-2]
    forget_keys()
    assert not keys._cache


def test_a_damaged_or_foreign_key_file_is_refused(kek: KeyEncryptionKey, tmp_path: Path) -> None:
    uri = f"{tmp_path}/key.json"
    _, ref = share(kek, uri, attempt="another")
    with pytest.raises(KeyUnavailable, match="is not the key file of attempt a1"):
        load_noise(KeyRef("a1", uri))
    content = json.loads(Path(uri).read_text())
    Path(uri).write_text(json.dumps({**content, "attempt": "a1"}))
    with pytest.raises(KeyUnavailable, match="does not open"):
        load_noise(KeyRef("a1", uri))
    for text in ("", "[]", "{}", json.dumps({**content, "wrapped": "?"}), json.dumps({**content, "wrapped": 1})):
        Path(uri).write_text(text)
        with pytest.raises(KeyUnavailable, match="cannot be read"):
            load_noise(ref)


def test_storage_that_refuses_is_named_without_credentials(kek: KeyEncryptionKey, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyUnavailable, match=r"cannot be written to .*check that the folder or bucket exists"):
        share(kek, f"{tmp_path}/file/key.json")
    uri = "nosuch://user:secret@host/key.json?token=secret"
    for work in (
        lambda: share(kek, uri),
        lambda: load_noise(KeyRef("a1", uri)),
        lambda: erase_key_file(uri, attempt="a1"),
    ):
        with pytest.raises(KeyUnavailable, match=r"nosuch://host/key\.json") as refused:
            work()
        assert "secret" not in str(refused.value)


def test_the_driver_tells_processes_of_its_machine_where_the_default_key_is(tmp_path: Path) -> None:
    kek = KeyEncryptionKey.find(tmp_path / "ledger.db.kek", create=True)
    key = new_key()
    ref = keys.write_key_file(
        f"{tmp_path}/key.json", attempt="a1", wrapped=kek.wrap(key, attempt="a1"), kek_file=kek.path
    )
    np.testing.assert_array_equal(load_noise(ref).words("x", 2), Noise(key).words("x", 2))


def test_a_fixed_key_is_for_tests(tmp_path: Path) -> None:
    ref = KeyRef.fixed(SECRET.hex())
    assert ref.is_fixed
    assert not KeyRef("a1", "memory://key").is_fixed
    np.testing.assert_array_equal(load_noise(ref).words("x", 2), Noise(SECRET).words("x", 2))
    other = KeyRef.fixed("ff" * 32)
    np.testing.assert_array_equal(load_noise(other).words("x", 2), Noise(b"\xff" * 32).words("x", 2))
    for wrong in ("", "00", "zz" * 32):
        with pytest.raises(KeyUnavailable, match="64 hexadecimal digits"):
            KeyRef.fixed(wrong)


def test_nothing_prints_or_pickles_a_secret(kek: KeyEncryptionKey) -> None:
    assert str(SECRET) not in repr(kek)
    assert SECRET.hex() not in repr(KeyRef.fixed(SECRET.hex()))
    assert repr(KeyRef("a1", "s3://id:secret@bucket/key.json")) == "KeyRef(attempt='a1', uri='s3://bucket/key.json')"
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(kek)
    ref = KeyRef("a1", "memory://key")
    assert pickle.loads(pickle.dumps(ref)) == ref


def test_another_process_loads_the_same_noise(kek: KeyEncryptionKey, tmp_path: Path) -> None:
    _, ref = share(kek, f"{tmp_path}/key.json")
    code = f"from dpdist.ledger.keys import *; print(*load_noise(KeyRef('a1', {ref.uri!r})).words('x', 3))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == [str(word) for word in load_noise(ref).words("x", 3)]
