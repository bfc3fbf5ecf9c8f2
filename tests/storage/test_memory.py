"""A store in memory does what a folder does."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from dpdist.errors import DataNotFound, SpecError
from dpdist.storage.store import MemoryStore, Store


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
