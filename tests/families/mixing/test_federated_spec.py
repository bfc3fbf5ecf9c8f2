"""Specs and plans of federated releases: what is refused, what is told, what becomes public."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from federations import federation

from dpdist.errors import AccountingError, RoundFailed, SpecError
from dpdist.families.mixing.budget import compare
from dpdist.families.mixing.plan import FederatedPlan, planned
from dpdist.families.mixing.spec import MixingSpec
from dpdist.federated import messages
from dpdist.privacy.formatting import upwards
from dpdist.privacy.guarantee import FederatedPrivacy, from_json
from dpdist.spec.validation import override, validated


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    spec = federation(tmp_path_factory.mktemp("spec"), names=("a", "b", "c", "d"))
    return spec.model_dump(mode="json", by_alias=True)


def changed(tree: dict[str, Any], **changes: Any) -> MixingSpec:
    paths = {path.replace("__", "."): value for path, value in changes.items()}
    return validated(MixingSpec, override(json.loads(json.dumps(tree)), paths))


def clients_with(tree: dict[str, Any], **change: Any) -> list[dict[str, Any]]:
    clients: list[dict[str, Any]] = json.loads(json.dumps(tree["federated"]["clients"]))
    clients[1] |= {key: value(clients[0]) if callable(value) else value for key, value in change.items()}
    return clients


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__path": "people.parquet"}, "or in a federated release the path of each client"),
        ({"mixing__scaling": "standardised"}, "scale by the declared bounds"),
        ({"cluster__mode": "threads"}, "worker processes of their own"),
        ({"federated__colluding": 3}, "fewer than two honest ones"),
        ({"federated__at_least": 1}, "two honest clients"),
        ({"federated__at_least": 5}, "fewer clients"),
        ({"federated__trust": "local", "federated__colluding": 1}, "private against all others"),
        ({"federated__trust": "blind"}, "local"),
    ],
)
def test_specs_that_make_no_sense_are_refused(tree: dict[str, Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        changed(tree, **changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "a"}, "the same name"),
        ({"resource": "client-a"}, "the same resource"),
        ({"public_key": lambda a: a["public_key"]}, "the same public_key"),
        ({"identity": None}, "go together"),
        ({"identity": None, "public_key": None}, "needs `identity` and `public_key`"),
        ({"public_key": "c2hvcnQ="}, "line between the dashes"),
        ({"public_key": "not base64"}, "line between the dashes"),
        ({"ledger": "postgresql+psycopg://me:word@db/ledger"}, "password"),
        ({"name": "b/../a"}, "name: expected a text of the form"),
    ],
)
def test_clients_that_make_no_sense_are_refused(tree: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        changed(tree, federated__clients=clients_with(tree, **change))


def test_a_central_release_needs_a_table(tree: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=r"data\.path"):
        changed(tree, federated=None)


def test_where_clients_are_is_neither_published_nor_bound(tree: dict[str, Any]) -> None:
    spec = changed(tree)
    moved = changed(
        tree,
        federated__clients=clients_with(tree, resource="else", ledger="sqlite:///else.db", work="/else", identity="x"),
    )
    assert moved.fingerprint == spec.fingerprint
    assert changed(tree, federated__colluding=1).fingerprint != spec.fingerprint
    other = messages.identity_text(Ed25519PrivateKey.generate())
    assert changed(tree, federated__clients=clients_with(tree, public_key=other)).fingerprint != spec.fingerprint
    public = json.dumps(spec.public())
    for client in tree["federated"]["clients"]:
        assert client["ledger"] not in public
        assert client["path"] not in public
    assert spec.public()["federated"] == {"clients": 4, "trust": "correlated", "colluding": 0, "at_least": 2}
    assert spec.worker_resources == ("client-a", "client-b", "client-c", "client-d")


def plan_of(spec: MixingSpec, sigma_over_clip: float = 0.2) -> FederatedPlan:
    made = planned(spec, order=8, sigma_over_clip=sigma_over_clip)
    assert isinstance(made, FederatedPlan)
    return made


def test_the_charge_does_not_depend_on_trust_but_for_the_samplers(tree: dict[str, Any]) -> None:
    correlated = plan_of(changed(tree))
    colluding = plan_of(changed(tree, federated__colluding=2))
    local = plan_of(changed(tree, federated__trust="local"))
    assert correlated.event == colluding.event
    assert correlated.noises == 4 + 6
    assert local.noises == 4
    assert local.epsilon == pytest.approx(correlated.epsilon, rel=1e-5)
    # Two of four colluding: the honest two carry twice the noise of four.
    assert colluding.shared(4).average == pytest.approx(math.sqrt(2) * correlated.shared(4).average, rel=1e-3)
    assert local.shared(4).average == pytest.approx(2 * correlated.shared(4).average, rel=1e-3)


def test_the_memory_of_messages_is_planned(tree: dict[str, Any]) -> None:
    few, many = (changed(tree, mixing__classes={"low": {"minimum": 500, "records": n}}) for n in (10_000, 100_000))
    small, large = plan_of(few), plan_of(many)
    message = 8 * 3 * 100_000  # three coordinates
    assert large.needs().task_bytes >= 4 * message > small.needs().task_bytes
    assert large.needs().driver_bytes == (4 + 4) * message
    assert "146 MiB in the driver" in large.explain()


def test_noise_too_small_for_the_grid_is_refused_when_planned(tree: dict[str, Any]) -> None:
    with pytest.raises(AccountingError, match="too small for the grid"):
        plan_of(changed(tree), sigma_over_clip=1e-3)
    plan_of(changed(tree, federated__trust="local"), sigma_over_clip=1e-3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "if no other client shares its secrets"),
        ({"federated__colluding": 2}, "together with any 2 of the other clients"),
        ({"federated__trust": "local"}, "together with all other clients"),
    ],
)
def test_the_guarantee_names_whom_it_holds_against(tree: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    made = plan_of(changed(tree, **changes))
    whole, client = made.guarantees
    assert "for the whole release (add/remove)" in whole.sentence()
    assert words in client.sentence()
    assert "add/remove: one of its records" in client.sentence()
    assert f", {upwards(made.delta)})-differentially private" in client.sentence()
    assert from_json(client.to_json()) == client
    assert words in made.explain()
    assert json.dumps(made.to_json())


def test_guarantees_out_of_range_are_refused() -> None:
    for bad in ({"trust": "local", "colluding": 1}, {"trust": "none"}, {"trust": "local", "epsilon": -1.0}):
        with pytest.raises(AccountingError):
            FederatedPrivacy(**{"epsilon": 1.0, "delta": 1e-6, **bad})  # type: ignore[arg-type]


def test_what_was_signed_by_another_or_changed_is_refused(tmp_path: Path) -> None:
    import numpy as np

    key, other = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()
    pinned, steps = messages.identity_text(key), np.arange(6, dtype=np.int64).reshape(2, 3)
    statement = messages.message_statement(steps, client="a", round="1")
    messages.require_signature(key.sign(statement), statement, client="a", pinned=pinned)
    for text in (
        messages.message_statement(steps + 1, client="a", round="1"),
        messages.message_statement(steps, client="b", round="1"),
        messages.message_statement(steps, client="a", round="2"),
        messages.message_statement(steps.reshape(3, 2), client="a", round="1"),
    ):
        with pytest.raises(RoundFailed, match="'a' is not signed"):
            messages.require_signature(key.sign(statement), text, client="a", pinned=pinned)
    with pytest.raises(RoundFailed, match="not signed"):
        messages.require_signature(other.sign(statement), statement, client="a", pinned=pinned)


def test_a_key_of_another_kind_is_no_identity() -> None:
    public = X25519PrivateKey.generate().public_key()
    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    import base64

    with pytest.raises(ValueError, match="Ed25519"):
        messages.parse_identity(base64.b64encode(der).decode())


def test_a_client_without_identity_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        messages.load_identity(str(tmp_path / "none.pem"), pinned="")


def test_a_comparison_of_orders_says_whose_noise_it_is(tree: dict[str, Any]) -> None:
    made = compare(changed(tree), orders=(8,))
    assert "each client by itself" in made.explain()
    alone = {"federated": None, "data": made.spec.data.model_copy(update={"path": "people.csv"})}
    assert "each client" not in replace(made, spec=made.spec.model_copy(update=alone)).explain()
