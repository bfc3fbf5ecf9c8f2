import errno
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from manifests import manifest_of
from pydantic import ValidationError

from dpdist.errors import DataNotFound, DpdistError, OutputExists, OutputUnwritable, VerificationFailed
from dpdist.privacy.guarantee import DifferentialPrivacy, PlausibleDeniability
from dpdist.publish.manifest import (
    MANIFEST,
    SIGNATURE,
    Manifest,
    canonical_json,
    fingerprint,
    json_schema,
    publish,
    require_vacant,
)
from dpdist.publish.verify import read_release, verify
from dpdist.storage.store import Store


class TestContent:
    def test_the_guarantee_comes_first(self, fields: dict[str, Any]) -> None:
        guarantees = [
            DifferentialPrivacy(epsilon=2, delta=1e-9, adjacency="add/remove", covers="the model"),
            PlausibleDeniability(k=50, gamma=4),
        ]
        manifest = manifest_of(fields | {"guarantees": guarantees})
        lines = manifest.to_bytes().decode().splitlines()
        assert lines[1].startswith('  "guarantee": "(2, 1e-9)-differential privacy for the model (add/remove)')
        assert manifest.guarantee == f"{guarantees[0].sentence()} {guarantees[1].sentence()}"
        read = json.loads(manifest.to_bytes())
        assert [*read][:3] == ["guarantee", "guarantees", "computational_security"]
        numbers = ("differential-privacy", 2, 1e-9, "add/remove", "the model")
        assert tuple(read["guarantees"][0][n] for n in ("kind", "epsilon", "delta", "adjacency", "covers")) == numbers
        assert read["guarantees"][1]["k"] == 50
        assert "computational" in read["computational_security"]
        assert {"python", "numpy", "pyarrow", "cryptography"} <= set(read["packages"])

    def test_a_fixed_key_is_named_before_anything_else(self, fields: dict[str, Any]) -> None:
        manifest = manifest_of(fields, fixed_key=True)
        assert manifest.to_bytes().decode().splitlines()[1].startswith('  "not_private": "not private: ')
        assert "not_private" not in json.loads(manifest_of(fields).to_bytes())

    def test_it_comes_back_from_its_bytes(self, fields: dict[str, Any]) -> None:
        for fixed in (False, True):
            manifest = manifest_of(fields, fixed_key=fixed)
            assert Manifest.from_bytes(manifest.to_bytes()).guarantees == manifest.guarantees
            assert Manifest.from_bytes(manifest.to_bytes()).to_bytes() == manifest.to_bytes()

    def test_bytes_do_not_depend_on_the_order_of_names(self, fields: dict[str, Any]) -> None:
        ways = [{"a": 1, "b": {"x": 1, "y": 2}}, {"b": {"y": 2, "x": 1}, "a": 1}]
        first, second = (manifest_of(fields | {"parameters": p}).to_bytes() for p in ways)
        assert first == second
        assert canonical_json(ways[0]) == canonical_json(ways[1]) == b'{"a":1,"b":{"x":1,"y":2}}'
        assert fingerprint(ways[0]) == fingerprint(ways[1]) != fingerprint({"a": 1})

    def test_it_holds_a_day_and_no_time(self, fields: dict[str, Any]) -> None:
        assert json.loads(manifest_of(fields).to_bytes())["created"] == date(2026, 11, 20).isoformat()

    def test_it_cannot_be_changed(self, fields: dict[str, Any]) -> None:
        manifest = manifest_of(fields)
        with pytest.raises(ValidationError):
            manifest.records = 3

    @pytest.mark.parametrize("name", ["true_counts", "pass_rate", "candidates_tried", "seconds", "ledger", "key"])
    def test_it_has_no_place_for_what_is_private(self, fields: dict[str, Any], name: str) -> None:
        content = json.loads(manifest_of(fields).to_bytes()) | {name: 1}
        with pytest.raises(VerificationFailed, match=name):
            Manifest.from_bytes(json.dumps(content).encode())

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"parameters": {"a": ["postgresql://user:planted@host/db"]}}, r"parameters\.a\.0: .* no credentials"),
            ({"spec": {"x": {"y": "-----BEGIN PRIVATE KEY-----planted"}}}, r"spec\.x\.y: .* no credentials"),
            ({"spec": {"ledger": "sqlite:///planted.db"}}, "'ledger' is not public"),
            ({"spec": {"data": {"storage": {"profile": "planted"}}}}, "'storage' is not public"),
            ({"spec": {"output": {"signing_key": "planted.pem"}}}, "'signing_key' is not public"),
            ({"parameters": {"epsilon": float("inf")}}, "not finite"),
            ({"spec_sha256": "planted"}, "spec_sha256"),
            ({"attempt": "../planted"}, "attempt"),
            ({"guarantees": []}, "guarantee"),
        ],
    )
    def test_what_is_not_public_is_refused(self, fields: dict[str, Any], changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            manifest_of(fields | changes)

    def test_attributes_may_have_any_name(self, fields: dict[str, Any]) -> None:
        manifest_of(fields | {"parameters": {"scales": {"ledger": 1, "token": 2}}})

    def test_it_fits_its_json_schema(self, fields: dict[str, Any]) -> None:
        jsonschema = pytest.importorskip("jsonschema")
        schema = json_schema()
        jsonschema.Draft202012Validator.check_schema(schema)
        for fixed in (False, True):
            jsonschema.validate(json.loads(manifest_of(fields, fixed_key=fixed).to_bytes()), schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(json.loads(manifest_of(fields).to_bytes()) | {"pass_rate": 0.5}, schema)
        assert all("description" in field for field in schema["properties"].values())


class TestPublish:
    def test_a_release_exists_once_its_manifest_does(self, place: str, write_parts: Callable[..., Manifest]) -> None:
        store = Store(place)
        require_vacant(store)
        manifest = write_parts(store)
        require_vacant(store)
        with pytest.raises(DataNotFound, match="no finished release"):
            read_release(place)
        assert publish(store, manifest).to_bytes() == manifest.to_bytes()
        assert read_release(place).num_rows == manifest.records
        with pytest.raises(OutputExists, match=r"already holds a release .*choose another output\.path"):
            require_vacant(store)

    def test_an_attempt_publishes_twice_and_leaves_what_is_there(
        self, place: str, write_parts: Callable[..., Manifest]
    ) -> None:
        store = Store(place)
        first = publish(store, write_parts(store))
        resumed = first.model_copy(update={"packages": {"dpdist": "later"}})
        assert publish(store, resumed).to_bytes() == first.to_bytes()
        assert store.read_bytes(MANIFEST) == first.to_bytes()

    def test_another_attempt_does_not(self, place: str, write_parts: Callable[..., Manifest]) -> None:
        store = Store(place)
        first = publish(store, write_parts(store))
        other = write_parts(store, attempt="ffff")
        with pytest.raises(OutputExists, match="another release"):
            publish(store, other)
        assert verify(place).unlisted == tuple(part.name for part in other.parts)
        assert store.read_bytes(MANIFEST) == first.to_bytes()

    def test_a_foreign_manifest_is_left_alone(self, place: str, write_parts: Callable[..., Manifest]) -> None:
        store = Store(place)
        store.write_bytes(MANIFEST, b"{}")
        with pytest.raises(OutputExists):
            publish(store, write_parts(store))
        assert store.read_bytes(MANIFEST) == b"{}"

    def test_of_two_attempts_at_once_one_is_published(
        self, tmp_path: Path, write_parts: Callable[..., Manifest]
    ) -> None:
        for turn in range(5):
            store = Store(tmp_path / str(turn))
            manifests = [write_parts(store, attempt=f"{n}" * 8) for n in range(4)]

            def attempt(manifest: Manifest, store: Store = store) -> str | None:
                try:
                    return publish(store, manifest).attempt
                except OutputExists:
                    return None

            with ThreadPoolExecutor(4) as pool:
                winners = [name for name in pool.map(attempt, manifests) if name]
            assert winners == [Manifest.from_bytes(store.read_bytes(MANIFEST)).attempt]
            verify(store.uri)

    @pytest.mark.parametrize("damage", ["delete", "change"])
    def test_a_part_must_be_there(self, place: str, write_parts: Callable[..., Manifest], damage: str) -> None:
        store = Store(place)
        manifest = write_parts(store)
        name = manifest.parts[1].name
        store.delete(name) if damage == "delete" else store.write_bytes(name, b"")
        with pytest.raises(OutputUnwritable, match=f"{name} is missing or was changed"):
            publish(store, manifest)
        require_vacant(store)

    def test_a_signature_of_an_earlier_attempt_does_not_stay(
        self, place: str, write_parts: Callable[..., Manifest]
    ) -> None:
        store = Store(place)
        store.write_bytes(SIGNATURE, b"old")
        publish(store, write_parts(store))
        assert not store.exists(SIGNATURE)

    def test_a_crash_at_any_write_shows_nothing_and_the_same_release_follows(
        self, tmp_path: Path, release: Callable[..., Manifest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = Ed25519PrivateKey.generate()
        whole = Store(tmp_path / "whole")
        release(whole, signing_key=key)
        expected = {name: whole.read_bytes(name) for name in whole.names()}
        step = 0
        while True:
            store = Store(tmp_path / f"crash{step}")
            finished = crash_at(step, lambda store=store: release(store, signing_key=key), monkeypatch)
            if finished:
                break
            with pytest.raises(DataNotFound):
                read_release(store.uri)
            release(store, signing_key=key)
            assert {name: store.read_bytes(name) for name in store.names()} == expected
            step += 1
        assert step == 10  # three parts and a signature, each flushed and renamed; a manifest, flushed and linked

    def test_a_crash_at_any_request_shows_nothing(self, unruly: Any, release: Callable[..., Manifest]) -> None:
        app, options = unruly
        config = {"retries": {"mode": "standard", "total_max_attempts": 1}}
        store = Store("s3://unruly/x/one", {**options, "config_kwargs": config})
        release(store)
        requests = app.requests.index("PUT", app.requests.index("HEAD"))  # the manifest is the last PUT
        assert app.requests.count("PUT") == 4
        for step in range(requests + 1):
            store.delete(MANIFEST)
            app.answers.extend([None] * step + [(403, "AccessDenied")] * 4)
            with pytest.raises(DpdistError):
                release(store)
            app.answers.clear()
            assert not store.exists(MANIFEST)


def crash_at(step: int, run: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run with the given call that makes something last or visible failing, and whether there was none."""
    calls = 0

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == step + 1:
                raise OSError(errno.EIO, "crash")
            return real(*args)

        return call

    with monkeypatch.context() as patch:
        patch.setattr("dpdist.storage.local.flush", lambda _: None)
        for name in ("fsync", "replace", "link"):
            patch.setattr(os, name, failing(getattr(os, name)))
        try:
            run()
        except OutputUnwritable:
            return False
    return True
