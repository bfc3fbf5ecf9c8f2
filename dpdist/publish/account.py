"""What a ledger says of a release to readers: whether it committed it, and what all releases tell together."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from dpdist.errors import KeyUnavailable, LedgerError, SpecError, VerificationFailed
from dpdist.ledger import Books
from dpdist.ledger.records import event_json
from dpdist.ledger.signing import check_signature, key_fingerprint, sign
from dpdist.privacy.accountant import most_right
from dpdist.privacy.event import covers
from dpdist.privacy.events import ApproximateDP
from dpdist.privacy.formatting import risk_sentence, upwards
from dpdist.publish.manifest import Manifest
from dpdist.publish.verify import ReleaseAccount, VerifyReport, read_manifest, verify
from dpdist.spec.contract import adjacency_of, protected_by

_MEANT: Final = b"dpdist total\n"  # before what is signed, so that a total is no manifest
_LARGEST: Final = 1 << 22  # bytes of a file


def verify_with_account(
    ledger: Books,
    uri: str | os.PathLike[str],
    public_key: Ed25519PublicKey | None = None,
    *,
    name: str | None = None,
    attempt: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> VerifyReport:
    """Verify a release and compare it with the account of its data set. Raises VerificationFailed, DataNotFound,
    StorageUnavailable: as `verify` and `check_account`; LedgerError: as `check_account`.
    """
    report = verify(uri, public_key, name=name, attempt=attempt, storage_options=storage_options)
    manifest = read_manifest(uri, storage_options=storage_options)
    account = check_account(ledger, manifest, report.manifest_sha256)
    report = replace(report, account=account)
    if report.signature != "not checked":
        return report
    for key in ledger.public_keys(account.dataset):
        with suppress(VerificationFailed):  # another of its keys, or one that the spec named
            read_manifest(uri, key, storage_options=storage_options)
            return replace(report, signature="valid", signer=key_fingerprint(key))
    return replace(report, signature="foreign")


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
    epsilon = None if attempt.event is None else float(attempt.epsilon)
    delta = float(statement.dataset.delta)
    return ReleaseAccount(dataset=attempt.dataset, attempt=attempt.id, epsilon=epsilon, delta=delta)


@dataclass(frozen=True, kw_only=True)
class Total:
    """The budget that all charges of a data set have taken together, on a day.

    Attributes
    ----------
    dataset : str
    epsilon, delta : str
        Decimals, rounded upwards; open attempts count.
    adjacency, unit : str
        In words.
    uncovered : tuple of str
        What no budget covers, in words.
    day : str
        UTC.
    head : str
        Digest of the newest entry of the data set's journal.
    releases : tuple of str
        SHA-256 of the manifest of each committed release, which says nothing to those who have no manifest.
    """

    dataset: str
    epsilon: str
    delta: str
    adjacency: str
    unit: str
    uncovered: tuple[str, ...]
    day: str
    head: str
    releases: tuple[str, ...]

    @classmethod
    def of(cls, ledger: Books, dataset: str) -> Total:
        """What the ledger says now. Raises DatasetUnknown; LedgerError: it is damaged, or no epsilon bounds all."""
        shown = ledger.show(dataset)
        spent = shown.budget.epsilon_spent
        if spent is None:
            raise LedgerError(f"data set {dataset}: no finite epsilon bounds all of its releases at its delta")
        leaked = [f"leakage of {upwards(shown.budget.pml_spent)} nats"] if shown.budget.pml_spent else []
        return cls(
            dataset=dataset,
            epsilon=upwards(spent),
            delta=upwards(shown.budget.delta_cap),
            adjacency=adjacency_of(shown.dataset.contract),
            unit=protected_by(shown.dataset.contract),
            uncovered=(*shown.uncovered, *leaked),
            day=f"{datetime.now(UTC):%Y-%m-%d}",
            head=shown.head,
            releases=tuple(sorted(one.manifest_sha256 for one in shown.attempts if one.manifest_sha256)),
        )

    @property
    def sentence(self) -> str:
        """What readers should know, with what it means for one guess."""
        event = ApproximateDP(float(Fraction(self.epsilon)), float(Fraction(self.delta)))
        first = (
            f"CAUTION: {'; '.join(self.uncovered)}. Apart from that, all releases" if self.uncovered else "All releases"
        )
        return (
            f"{first} of data set {self.dataset} until {self.day} together are ({self.epsilon}, {self.delta})-"
            f"differentially private ({self.adjacency}). "
            f"{risk_sentence(most_right(event), unit=self.unit)}, by these two numbers alone."
        )

    def signed(self, ledger: Books) -> bytes:
        """The file, signed by the data set's identity. Raises KeyUnavailable: it has none, or its key does not open."""
        key = ledger.signing_key(self.dataset)
        if key is None:
            raise KeyUnavailable(
                f"data set {self.dataset} has no signing identity: set DPDIST_KEK, then dpdist ledger identity "
                f"{self.dataset} --new"
            )
        fields = asdict(self)
        return json.dumps({"total": fields, "signature": sign(_content(fields), key).hex()}, indent=2).encode() + b"\n"

    @classmethod
    def read(cls, path: Path, key: Ed25519PublicKey, *, dataset: str | None, manifest_sha256: str) -> Total:
        """The total in a file, of the data set of a release, which it must count.

        Raises
        ------
        SpecError
            The file cannot be read.
        VerificationFailed
            It is no total, is of another data set, does not count the release, or its signature is not of this key.
        """
        try:
            with path.open("rb") as file:
                content = file.read(_LARGEST + 1)
        except OSError as error:
            raise SpecError(f"--total: {path} cannot be read ({error.strerror})") from None
        try:
            read = json.loads(content if len(content) <= _LARGEST else b"")
            fields, signature = read["total"], bytes.fromhex(read["signature"])
            check_signature(_content(fields), signature, key)
            found = cls(**fields | {name: tuple(fields[name]) for name in ("uncovered", "releases")})
        except VerificationFailed:
            raise VerificationFailed(
                f"{path}: the signature does not fit the total and the public key: get it again from its publisher"
            ) from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise VerificationFailed(f"{path}: expected what `dpdist ledger total` wrote") from None
        if dataset != found.dataset:
            raise VerificationFailed(
                f"{path}: it is the total of data set {found.dataset}, the release is of {dataset}"
            )
        if manifest_sha256 not in found.releases:
            raise VerificationFailed(f"{path}: it is of {found.day} and does not count this release: get a newer one")
        return found


def _content(fields: dict[str, Any]) -> bytes:
    return _MEANT + json.dumps(fields, sort_keys=True).encode()
