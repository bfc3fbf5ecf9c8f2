"""Whether a release is the one that a ledger committed, and whose key signed it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dpdist.errors import LedgerError, VerificationFailed
from dpdist.ledger import Books
from dpdist.ledger.records import event_json
from dpdist.ledger.signing import key_fingerprint
from dpdist.privacy.event import covers
from dpdist.privacy.formatting import upwards
from dpdist.publish.manifest import Manifest
from dpdist.publish.verify import VerifyReport, read_manifest, verify


@dataclass(frozen=True, kw_only=True)
class ReleaseAccount:
    """What a ledger knows of a release: what it charged, by itself and at the delta of the data set."""

    dataset: str
    attempt: str
    epsilon: float | None
    delta: float

    def to_json(self) -> dict[str, Any]:
        """The account as a JSON object."""
        return asdict(self)

    def explain(self) -> str:
        """The account for people."""
        charged = "nothing composes with it"
        if self.epsilon is not None:
            charged = f"charged epsilon {upwards(self.epsilon)} at delta {upwards(self.delta)}"
        return f"the release that data set {self.dataset} committed (attempt {self.attempt[:8]}); {charged}"


def verify_with_account(
    ledger: Books,
    uri: str | os.PathLike[str],
    public_key: Ed25519PublicKey | None = None,
    *,
    name: str | None = None,
    attempt: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[VerifyReport, ReleaseAccount]:
    """Verify a release and compare it with the account of its data set. Raises VerificationFailed, DataNotFound,
    StorageUnavailable: as `verify` and `check_account`; LedgerError: as `check_account`.
    """
    report = verify(uri, public_key, name=name, attempt=attempt, storage_options=storage_options)
    manifest = read_manifest(uri, storage_options=storage_options)
    account = check_account(ledger, manifest, report.manifest_sha256)
    if report.signature != "not checked":
        return report, account
    for key in ledger.public_keys(account.dataset):
        with suppress(VerificationFailed):  # another of its keys, or one that the spec named
            read_manifest(uri, key, storage_options=storage_options)
            return replace(report, signature="valid", signer=key_fingerprint(key)), account
    return replace(report, signature="foreign"), account


def check_account(ledger: Books, manifest: Manifest, sha256: str) -> ReleaseAccount:
    """Compare a manifest, whose bytes have this SHA-256, with the account of its data set. Raises VerificationFailed:
    the ledger does not know the attempt, never committed it, or committed another manifest or another charge;
    LedgerError: the ledger is damaged.
    """
    try:
        attempt = ledger.attempt(manifest.attempt)
    except LedgerError as error:
        raise VerificationFailed(f"the release is not in the account: {error}") from None
    statement = ledger.verify(attempt.dataset)
    differs: dict[str, Any] = {
        "its attempt was never committed": attempt.state != "committed",
        "another manifest was committed": attempt.state == "committed" and attempt.manifest_sha256 != sha256,
        "it has another name": attempt.release != manifest.name,
        "it is of another data set": attempt.dataset != manifest.spec.get("dataset"),
        "another charge was made": not covers(event_json(attempt.event), manifest.parameters.get("event")),
    }
    wrong = [problem for problem, found in differs.items() if found]
    if wrong:
        raise VerificationFailed(
            f"the release is not the one in the account of data set {attempt.dataset!r}: {', '.join(wrong)}; do not "
            "use it, and ask its publisher for the right one"
        )
    return ReleaseAccount(
        dataset=attempt.dataset,
        attempt=attempt.id,
        epsilon=None if attempt.event is None else float(attempt.epsilon),
        delta=float(statement.dataset.delta),
    )
