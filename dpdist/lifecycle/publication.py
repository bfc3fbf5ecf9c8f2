"""Publishing: store the manifest in the work folder, let the ledger decide, and only then make the release visible."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dpdist.data.inputs import Input
from dpdist.errors import DpdistError, OutputExists, ReleaseConflict
from dpdist.families.base.attempt import Attempt
from dpdist.ledger import Books, Charge
from dpdist.ledger.keys import PUBLIC_INPUT
from dpdist.ledger.statement import budget_sentence
from dpdist.lifecycle.history import CLAIM, RUN_RECORD, sweep_output, write_record
from dpdist.publish.description import DESCRIPTIONS, described
from dpdist.publish.manifest import MANIFEST, Manifest, publish, require_vacant
from dpdist.storage.store import Store

if TYPE_CHECKING:
    from dpdist.spec.release import ReleaseSpec

log = logging.getLogger("dpdist")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A published release of records, or of cells of statistics.

    `guarantees` and `parameters` are those of the manifest. `already` is true if an earlier run had published the
    release and this one had nothing to do.
    """

    uri: str
    attempt: str
    records: int
    cells: int | None
    guarantee: str
    guarantees: tuple[dict[str, Any], ...]
    parameters: Mapping[str, Any]
    budget: str
    run_record: str
    cautions: tuple[str, ...] = ()
    already: bool = False

    def to_json(self) -> dict[str, Any]:
        """The outcome as a JSON object; it has ``records`` or ``cells``."""
        outcome = asdict(self) | {"guarantees": [str(item["sentence"]) for item in self.guarantees]}
        del outcome["parameters"], outcome["records" if self.cells is not None else "cells"]
        return outcome

    @property
    def counted(self) -> str:
        """How many records, or cells of statistics, in words."""
        return f"{self.records:,} records" if self.cells is None else f"{self.cells:,} cells"


def outcome_of(
    ledger: Books, spec: ReleaseSpec, output: Store, manifest: Manifest, work: Store, *, already: bool = False
) -> Outcome:
    """The outcome of a run, from the manifest it published."""
    stated = ("attempt", "records", "cells", "guarantee", "guarantees", "parameters", "cautions")
    own: dict[str, Any] = {name: getattr(manifest, name) for name in stated}
    left, record = budget_sentence(ledger, spec.dataset), f"{work.uri}/{RUN_RECORD}"
    return Outcome(uri=output.uri, budget=left, run_record=record, already=already, **own)


@dataclass
class Publication:
    """How the release of one run becomes visible."""

    spec: ReleaseSpec
    ledger: Books
    output: Store  # output, work: the release's folder, and the folder below which attempts store theirs
    work: Store
    signing_key: Ed25519PrivateKey | None  # the key that the spec names; None for the identity of the data set
    bound: str  # the spec and test key that an attempt is bound to (`dpdist.lifecycle.run.Run`)
    input: Input  # what the release reads
    _committing: bool = False

    def committed(self) -> Outcome | None:
        """Finish a run that died between the ledger's commit and the manifest; None when there is no such run. Raises
        ReleaseConflict: the name is committed with another spec, or the manifest is not where this spec would have put
        it.
        """
        spec, ledger, output = self.spec, self.ledger, self.output
        reserved = ledger.find(spec.dataset, spec.name)
        if reserved is None or reserved.state != "committed":
            return None
        if reserved.spec_hash.partition(PUBLIC_INPUT)[0] != self.bound:
            raise ReleaseConflict(
                f"release {spec.name!r} of data set {spec.dataset!r} is committed, with another spec: choose another "
                "name"
            )
        folder = self.work / reserved.id
        for place in (output, folder):
            content = place.read_bytes(MANIFEST) if place.exists(MANIFEST) else b""
            if hashlib.sha256(content).hexdigest() == reserved.manifest_sha256:
                published = self._make_visible(content, folder)
                ledger.erase(reserved)
                return outcome_of(ledger, spec, output, published, folder, already=place is output)
        raise ReleaseConflict(
            f"release {spec.name!r} of data set {spec.dataset!r} is committed, but neither {output.uri} nor the work "
            "folder holds its manifest: give the output.path and work it was made with"
        )

    def publish(self, attempt: Attempt[Any, Any], reserved: Charge) -> Outcome:
        """Commit an attempt whose parts are written, and publish its manifest. Raises ReleaseConflict: the input
        changed while it was read; OutputExists: another release has claimed or filled the output.
        """
        if self._committing:  # repeated after a failure of the storage: the ledger may have committed
            finished = self.committed()
            if finished is not None:
                return finished
        content = self._stored_manifest(attempt, reserved)
        if self.input.fingerprint != reserved.input_fingerprint:
            raise ReleaseConflict(
                "the input changed while it was read, so nothing is published: leave the files alone during a release, "
                "and start a new attempt (--new-attempt, in Python attempt='replace'). The charge stays spent"
            )
        require_vacant(self.output)
        self.claim(reserved)
        write_record(attempt, reserved)
        self.claim(reserved)  # again: two runs that took over a dead claim at once may each have thought it was theirs
        digest = hashlib.sha256(content).hexdigest()
        attempt.before_commit(digest)
        self._committing = True
        self.ledger.commit(reserved, manifest_sha256=digest)
        self._log("release committed", reserved)
        published = self._make_visible(content, attempt.work)
        self._log("release published", reserved)
        return outcome_of(self.ledger, self.spec, self.output, published, attempt.work)

    def _make_visible(self, content: bytes, folder: Store) -> Manifest:
        sweep_output(self.ledger, self.output)  # what is published holds nothing else
        for name in DESCRIPTIONS:  # under one name for all attempts, so only the committed one writes them
            if folder.exists(name):
                self.output.write_bytes(name, folder.read_bytes(name))
        key = self.signing_key or self.ledger.signing_key(self.spec.dataset)
        published = publish(self.output, Manifest.from_bytes(content), signing_key=key)
        self.output.delete(CLAIM)
        return published

    def _stored_manifest(self, attempt: Attempt[Any, Any], reserved: Charge) -> bytes:
        """The manifest's bytes, made once and stored in the work folder."""
        if attempt.work.exists(MANIFEST):
            return attempt.work.read_bytes(MANIFEST)
        manifest = Manifest.of(attempt.plan, attempt, created=date.fromisoformat(reserved.created[:10]))
        return attempt.work.write_exclusive(MANIFEST, described(manifest, attempt.work).to_bytes())

    def give_free(self, reserved: Charge) -> None:
        """Let others have the output: this attempt will not fill it, or claims it again when it is resumed."""
        with suppress(DpdistError):
            if self.output.exists(CLAIM) and self.output.read_bytes(CLAIM) == reserved.id.encode():
                self.output.delete(CLAIM)

    def claim(self, reserved: Charge) -> None:
        """Reserve the output, before a record is read; replace the claim of an attempt that was given up.

        The ledger cannot tell of the attempts of another one.

        Raises OutputExists: another attempt has claimed it.
        """
        output, mine = self.output, reserved.id.encode()
        claimed = output.write_exclusive(CLAIM, mine)
        if claimed != mine and self.ledger.ended(claimed.decode(errors="replace")):
            output.delete(CLAIM)
            claimed = output.write_exclusive(CLAIM, mine)
        if claimed != mine:
            raise OutputExists(
                f"{output.uri} is claimed by another release (file {CLAIM}): choose another output.path, or "
                "delete that file if the other release was given up"
            )

    def _log(self, message: str, reserved: Charge) -> None:
        log.info(message, extra={"release": self.spec.name, "dataset": self.spec.dataset, "attempt": reserved.id})
