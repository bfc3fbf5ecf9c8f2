"""What a run has published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dpdist.ledger import Ledger
from dpdist.ledger.statement import budget_sentence
from dpdist.lifecycle.history import RUN_RECORD
from dpdist.publish.manifest import Manifest
from dpdist.storage.store import Store

if TYPE_CHECKING:
    from dpdist.spec.release import ReleaseSpec


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
    ledger: Ledger, spec: ReleaseSpec, output: Store, manifest: Manifest, work: Store, *, already: bool = False
) -> Outcome:
    """The outcome of a run, from the manifest it published."""
    return Outcome(
        uri=output.uri,
        attempt=manifest.attempt,
        records=manifest.records,
        cells=manifest.cells,
        guarantee=manifest.guarantee,
        guarantees=manifest.guarantees,
        parameters=manifest.parameters,
        budget=budget_sentence(ledger, spec.dataset),
        run_record=f"{work.uri}/{RUN_RECORD}",
        cautions=manifest.cautions,
        already=already,
    )
