r"""Figures of an evaluation that may be published: noisy, and charged to the budget of the data set.

The k-marginal scores (k = 1, 2, 3) of a release R are one minus the mean total variation distance between marginals of
R and of the n real records. How much one record changes a distance depends on n, which is private. So what is measured
is the *sum*

    U_k = mean over marginals of 1/2 sum_x |c(x) - n q(x)|,

c the real counts and q the released shares, which are public. A record in cell r adds [x = r] - q(x) to the terms, so
U_k changes by at most 1 - q(r) <= 1 (add/remove), and so does n; the c records of a unit change them by c.
U_1, U_2, U_3 and n take discrete Laplace noise at a quarter of epsilon each, on a grid; the scores are their quotients,
which is post-processing. U_k is computed in exact integers and rounded down to the grid.

The charge is reserved before a record is encoded or counted. What was drawn is stored before the commit: a run that
dies is continued by running it again, at no new charge and with the same noise.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpdist.data.inputs import Input
from dpdist.data.source import find_files, format_of
from dpdist.errors import LedgerError, ReleaseConflict, SpecError
from dpdist.evaluation.page.files import Pages
from dpdist.evaluation.page.page import PageSection, PageTable
from dpdist.evaluation.utility.marginals import Marginals, Subset
from dpdist.ledger import Books, Charge
from dpdist.ledger.keys import KeyRef
from dpdist.privacy import accountant
from dpdist.privacy.accountant import most_right
from dpdist.privacy.events import ApproximateDP, Composed, DiscreteLaplace
from dpdist.privacy.guarantee import DifferentialPrivacy
from dpdist.privacy.noise import SAMPLER_DELTA, Noise
from dpdist.publish.manifest import Manifest, fingerprint
from dpdist.spec.contract import Contract
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.unit import UnitSpec, protected

FILE = "publishable.json"

STEPS = 1 << 10  # steps of the grid in a unit of U_k
LARGEST_EPSILON = 20.0

_ORDERS = (1, 2, 3)
_TAIL = 0.025
_ADVICE = "make room there and run it again; it costs nothing more"


@dataclass(frozen=True)
class FiguresPlan:
    """Noise on the publishable figures."""

    epsilon: float  # of all figures together, add/remove adjacency
    unit: UnitSpec | None = None  # what they protect; None for single records

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= LARGEST_EPSILON:
            raise SpecError(f"--publish is an epsilon above 0, at most {LARGEST_EPSILON:g}")

    @property
    def scales(self) -> tuple[float, float]:
        """Scales of the noise on each U_k, in steps of the grid, and on n."""
        share = self.epsilon / (len(_ORDERS) + 1)
        sums, number = self.sensitivities
        return sums / share * (1 + 2.0**-40), number / share * (1 + 2.0**-40)

    @property
    def sensitivities(self) -> tuple[int, int]:
        """Most that a record, or a unit, changes each U_k, in steps of the grid, and n."""
        records = 1 if self.unit is None else self.unit.at_most
        return records * STEPS + 1, records

    @property
    def event(self) -> Composed:
        """The charge."""
        (sums, number), (of_sums, of_number) = self.scales, self.sensitivities
        return Composed(
            (
                DiscreteLaplace(scale=sums, sensitivity=of_sums, count=len(_ORDERS), label="distances"),
                DiscreteLaplace(scale=number, sensitivity=of_number, label="number of records"),
                ApproximateDP(0.0, self.lost, label="samplers"),
            )
        )

    @property
    def lost(self) -> float:
        """What the samplers add to delta."""
        return (len(_ORDERS) + 1) * SAMPLER_DELTA

    @property
    def guarantee(self) -> DifferentialPrivacy:
        """What the figures promise."""
        return DifferentialPrivacy(
            epsilon=accountant.epsilon(self.event, delta=self.lost),
            delta=self.lost,
            right=most_right(self.event),
            adjacency="add/remove",
            covers="the published figures",
            **protected(self.unit),
        )


def steps_of_distance(released: Marginals, real: Marginals, k: int) -> int:
    """U_k in steps of the grid, rounded down; exact."""
    subsets = real.subsets(k)
    if not subsets:
        return 0
    n, size = real.records, released.records
    total = sum(_twice(released, real, which, n, size) for which in subsets)
    return total * STEPS // (2 * size * len(subsets))


def _twice(released: Marginals, real: Marginals, which: Subset, n: int, size: int) -> int:
    """``sum_x |size c(x) - n r(x)|``, exact."""
    counts, shares = real.table(which), released.table(which)
    if n * size < 1 << 61:
        return int(np.abs(counts * np.int64(size) - shares * np.int64(n)).sum())
    return int(np.abs(counts.astype(object) * size - shares.astype(object) * n).sum())


def measure(released: Marginals, real: Marginals, plan: FiguresPlan, noise: Noise) -> dict[str, Any]:
    """Draw the noise: noisy scores (0 to 1000) with a 95 % half-width each, and the noisy number of records."""
    sums, number = plan.scales
    drawn = noise.discrete_laplace("evaluation/distances", len(_ORDERS), scale=sums)
    n = real.records + int(noise.discrete_laplace("evaluation/records", 1, scale=number)[0])
    half = sums * math.log(1 / _TAIL) / STEPS  # of U_k: each tail has at most this probability
    scores, widths = {}, {}
    for k, draw in zip(_ORDERS, drawn.tolist(), strict=True):
        if real.subsets(k):
            distance = (steps_of_distance(released, real, k) + draw) / STEPS / max(n, 1)
            scores[str(k)] = round(min(max(1000 * (1 - distance), 0.0), 1000.0), 3)
            widths[str(k)] = round(1000 * half / max(n, 1), 3)
    return {"k_marginal_score": scores, "half_width_95": widths, "records": n}


def refuse_another_reading(manifest: Manifest, spec: ReleaseSpec | None, table: Input) -> None:
    """Refuse a table that may be read otherwise than it was for the release; opens nothing.

    How a CSV file is read decides which records it has, so whoever chose it could ask the file anything. Parquet files
    and tables in memory are read in one way.
    Raises SpecError: the table is of CSV files, and the spec is not that of the release.

    Parameters
    ----------
    spec : ReleaseSpec, optional
        What says how the table is read.
    """
    if spec is not None and spec.fingerprint == manifest.spec_sha256:
        return
    if table.source is not None and format_of(table.source, find_files(table.source)) == "csv":
        raise SpecError(
            "--publish: CSV files are read as the release has read them, which its spec says: give it as --spec, as it "
            "was released"
        )


class FiguresPublication:
    """The charge and the life of the publishable figures of one evaluation, in its folder."""

    def __init__(self, ledger: Books, manifest: Manifest, plan: FiguresPlan, pages: Pages, seed: int) -> None:
        self.ledger, self.manifest, self.plan, self.pages, self.seed = ledger, manifest, plan, pages, seed
        self.dataset = str(manifest.spec.get("dataset", ""))
        self.name = f"{manifest.name}/evaluation"
        self._attempt: Charge | None = None

    @property
    def bound(self) -> str:
        """What binds the attempt, apart from its input."""
        return fingerprint(
            {"release": self.manifest.attempt, "epsilon": self.plan.epsilon, "seed": self.seed, "version": 1}
        )

    def reserve(self, input_fingerprint: str) -> None:
        """Charge the figures, or take up the run that was interrupted. Raises ReleaseConflict: another manifest or
        table, or figures of this release with other settings; BudgetExceeded, GuaranteeRefused, DatasetUnknown: no
        charge is admitted.
        """
        release = self.ledger.find(self.dataset, self.manifest.name)
        if release is None or release.state != "committed" or release.id != self.manifest.attempt:
            raise ReleaseConflict(
                f"the ledger does not know this release of data set {self.dataset!r}: give the --ledger that it was "
                "charged to"
            )
        if release.manifest_sha256 != hashlib.sha256(self.manifest.to_bytes()).hexdigest():
            raise ReleaseConflict(
                "the manifest is not the one that the ledger committed, so its schema and parts may be other ones: "
                "copy the release again from its publisher"
            )
        if release.input_fingerprint != input_fingerprint:
            raise ReleaseConflict(
                "--against is not the table that the release was made from (another path, size or time of change), "
                "so the figures would be charged to the wrong data: give the files as they were released from"
            )
        bound: dict[str, Any] = {"spec_hash": self.bound, "input_fingerprint": input_fingerprint}
        found = self.ledger.find(self.dataset, self.name)
        if found is not None and found.state == "committed":
            if found.spec_hash != self.bound:
                raise ReleaseConflict(
                    f"figures of release {self.manifest.name!r} were published already, with another epsilon or seed: "
                    "once for each release"
                )
            self._attempt = found
        elif found is not None:
            self._attempt = self.ledger.resume(dataset=self.dataset, release=self.name, **bound)
        else:
            text = self.ledger.dataset(self.dataset).contract  # the release, whose schema this is, kept one
            bound["contract"] = None if text is None else Contract.from_text(text).digest
            self._attempt = self.ledger.reserve(
                dataset=self.dataset, release=self.name, event=self.plan.event, guarantee="dp", **bound
            )
        if self._attempt.state != "committed":  # the table is about to be read: from here on the charge stays
            self._attempt = self.ledger.mark_drawing(self._attempt)

    def bounding_key(self) -> KeyRef | None:
        """Where tasks find the key that chooses the records of units; None where no choice is needed."""
        attempt = self._attempt
        if self.plan.unit is None or attempt is None or attempt.state == "committed":
            return None
        return self.ledger.share_key(attempt, self.pages.address(self.pages.hidden(f"key.{attempt.id}")))

    def publish(self, counts: Mapping[str, Marginals]) -> PageSection:
        """Draw, store, commit and show the figures. Raises ReleaseConflict: published from another folder;
        OutputUnwritable.
        """
        attempt = self._attempt
        if attempt is None:
            raise LedgerError("the figures are not charged: reserve comes first")
        kept = self.pages.hidden(f"{FILE}.{attempt.id}")
        if attempt.state == "committed":
            content = self.pages.read(FILE) or self.pages.read(kept) or b""
            if hashlib.sha256(content).hexdigest() != attempt.manifest_sha256:
                raise ReleaseConflict(
                    f"the figures of release {self.manifest.name!r} were published from another folder: give that "
                    "--output, or leave --publish out"
                )
        else:
            content = self._content(counts, self.ledger.noise(attempt))
            self.pages.write(kept, content, advice=_ADVICE)
            self.ledger.commit(attempt, manifest_sha256=hashlib.sha256(content).hexdigest())
        self.pages.write(FILE, content, advice=_ADVICE)
        self.pages.delete(kept)
        return self._section(json.loads(content))

    def _content(self, counts: Mapping[str, Marginals], noise: Noise) -> bytes:
        guarantee = self.plan.guarantee
        sums, number = self.plan.scales
        body = {
            "guarantee": guarantee.sentence(),
            "guarantees": [guarantee.to_json()],
            "release": self.manifest.name,
            "release_attempt": self.manifest.attempt,
            "dataset": self.dataset,
            "adjacency": "add/remove",
            "figures": measure(counts["released"], counts["real"], self.plan, noise),
            "noise": {"kind": "discrete laplace", "scale_of_distance_sums": sums / STEPS, "scale_of_records": number},
            "three_way_marginals": {"number": len(counts["real"].triples), "seed": self.seed},
        }
        return (json.dumps(body, indent=2, sort_keys=True) + "\n").encode()

    def _section(self, body: Mapping[str, Any]) -> PageSection:
        figures = body["figures"]
        rows = tuple(
            (f"{k}-way", score, figures["half_width_95"][k]) for k, score in figures["k_marginal_score"].items()
        )
        table = PageTable(
            "Figures that may be published",
            ("marginals", "score", "95 % half-width"),
            rows,
            f"In {FILE}, beside this page. {body['guarantee']}",
        )
        verdict = (
            f"{FILE} may be published: noisy scores, charged to data set {self.dataset} with epsilon "
            f"{self.plan.epsilon:g}. Nothing else on this page may."
        )
        return PageSection("publishable", "What may be published", verdict, "info", (table,), (), dict(body))
