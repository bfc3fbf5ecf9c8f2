"""The stages of a synthesis: count once, learn, draw the records, measure their accuracy, write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dpdist.data.operators import pair_counts_operator
from dpdist.families.base.accuracy import ReleaseAccuracy, accuracy_stage, count_tables
from dpdist.families.base.attempt import Attempt
from dpdist.families.base.family import Stage
from dpdist.families.base.passes import Passes
from dpdist.families.base.writing import ReleasedRecords, write_records
from dpdist.families.synthesis.draw import draw_records
from dpdist.families.synthesis.fitted import Fitted
from dpdist.families.synthesis.learn import Learned, learn
from dpdist.families.synthesis.plan import SynthesisPlan
from dpdist.families.synthesis.spec import WholeSynthesisSpec
from dpdist.ledger.keys import KeyRef, load_noise
from dpdist.privacy.arrays import Codes
from dpdist.schema.schema import Schema

SynthesisAttempt = Attempt[WholeSynthesisSpec, SynthesisPlan]


def stages(plan: SynthesisPlan) -> Sequence[Stage[WholeSynthesisSpec, SynthesisPlan]]:
    """The stages of a synthesis, in order."""
    accuracy = (Stage("accuracy", measure),) if plan.accuracy_mu else ()
    return (Stage("model", learn_model), Stage("records", draw), *accuracy, Stage("write", write_records))


def learn_model(attempt: SynthesisAttempt) -> Learned:
    """Count all pairs in one pass, and learn the model from them; it is stored.

    Raises
    ------
    DataError
        The table breaks its declared policies.
    """

    def make() -> Learned:
        if attempt.plan.accuracy_mu:
            counts = count_tables(attempt).pairs
        else:
            counts = Passes(attempt).run(pair_counts_operator(attempt.spec.table.cardinalities), stage="counting")
        noise = attempt.noise
        with attempt.stage("fitting") as progress:
            return learn(counts, choices=attempt.plan.choices, noise=noise, progress=progress)

    learned = attempt.stored(Learned, make)
    names, of_all = attempt.spec.table.names, 1 - attempt.spec.privacy.accuracy_share
    attempt.public["learned"] = learned.report | {
        "account": [[name, share * of_all] for name, share in learned.report["account"]],
        "pairs": [
            [f"{names[i]} (coarse)" if coarse else names[i] for i, coarse in pair] for pair in learned.report["pairs"]
        ],
    }
    return learned


@dataclass(frozen=True, eq=False)
class Source:
    """What parts are drawn from.

    Attributes
    ----------
    fitted : Fitted
    key : KeyRef
    rounds : int
        Of balancing.
    schema : Schema
    """

    fitted: Fitted
    key: KeyRef
    rounds: int
    schema: Schema

    @classmethod
    def of(cls, learned: Learned, plan: SynthesisPlan, key: KeyRef) -> Source:
        """What a learned model gives, with a key of the attempt or, once the model is released, any other."""
        fitted = learned.fitted
        rounds = 0 if fitted.adjustment is not None else plan.choices.balance
        return cls(fitted, key, rounds, plan.spec.table)

    def part(self, number: int, rows: int) -> Codes:
        """The records of a part."""
        columns = draw_records(self.fitted, load_noise(self.key), number, rows, rounds=self.rounds)
        return [
            column.astype(attribute.dtype) for column, attribute in zip(columns, self.schema.attributes, strict=True)
        ]


def draw(attempt: SynthesisAttempt) -> ReleasedRecords:
    """The records of each part, each a function of the model, the key and its number."""
    attempt.before_noise()
    task = attempt.executor.tasks("records")
    source = task.constant("model", Source.of(attempt.result(Learned), attempt.plan, attempt.key))
    return ReleasedRecords([task("part", _part, source, part, rows) for part, rows in enumerate(attempt.plan.parts)])


def measure(attempt: SynthesisAttempt) -> ReleaseAccuracy:
    """Measure the accuracy of the records, at the scale of the noisy number of records."""
    records = attempt.result(Learned).report["records"]
    return accuracy_stage(attempt, mu=attempt.plan.accuracy_mu, records=records)


def _part(source: Source, part: int, rows: int) -> Codes:
    return source.part(part, rows)
