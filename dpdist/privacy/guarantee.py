"""What a release promises, as typed records that are never mixed.

Five kinds, each with the numbers and the words that belong to it: differential privacy, plausible deniability,
pointwise maximal leakage, local information disclosure, and what leaves a client of a federated release. None of them
prints without what it protects (the adjacency), with what probability it may fail (delta) and what it covers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Literal, get_args

from dpdist.errors import AccountingError
from dpdist.privacy.formatting import GUESS, Fact, risk_sentence, upwards

Adjacency = Literal["add/remove", "replacement"]
Covers = Literal[
    "the whole release",
    "the whole release, if its model is as declared",
    "one released record",
    "the model",
    "the published figures",
]

_ONE = {
    "add/remove": "one {} is present or absent",
    "replacement": "one {} is replaced by another, their number being public",
}
_COMPUTATIONAL = "Noise comes from a keyed cryptographic generator, so the guarantee is computational."


def _choice(kind: str, name: str, value: str, allowed: Any) -> None:
    if value not in get_args(allowed):
        raise AccountingError(f"{kind}: {name} must be one of {', '.join(get_args(allowed))}, got {value!r}")


def _listed(names: tuple[str, ...]) -> str:
    """A few names, or how many there are."""
    return ", ".join(names) if len(names) <= 8 else f"{len(names)} columns"


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """Base of all kinds."""

    kind: ClassVar[str] = ""
    computational: ClassVar[bool] = True
    before_meaning: ClassVar[str] = ". "
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}  # of numbers, by field

    def __post_init__(self) -> None:
        for item in fields(self):
            value, (low, high) = getattr(self, item.name), self.ranges.get(item.name, (None, None))
            if low is None or (value is None and item.default is None):
                continue
            if not low <= value <= high or math.isinf(value):
                raise AccountingError(f"{self.kind}: {item.name} must be finite and in [{low}, {high}], got {value!r}")

    def statement(self) -> str:
        """What is promised, in one sentence without its full stop."""
        raise NotImplementedError

    def meaning(self) -> str:
        """What the statement means and what it does not cover, without the last full stop; it may be empty."""
        return ""

    def for_one_guess(self) -> str:
        """What it means for one guess, without the full stop; empty where it bounds none."""
        return ""

    def sentence(self) -> str:
        """The guarantee in plain words: statement, meaning, what it means for one guess, assumption."""
        said = self.before_meaning.join(filter(None, (self.statement(), self.meaning())))
        said = ". ".join(filter(None, (said, self.for_one_guess())))
        return f"{said}. {_COMPUTATIONAL}" if self.computational else f"{said}."

    def to_json(self) -> dict[str, Any]:
        """The guarantee as a JSON object, its sentence included."""
        body = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
        for name in ("records", "right"):
            if body.get(name, 0) is None:
                del body[name]
        return {"kind": self.kind, **body, "sentence": self.sentence()}


@dataclass(frozen=True, kw_only=True)
class DifferentialPrivacy(Guarantee):
    """(epsilon, delta)-differential privacy."""

    kind: ClassVar[str] = "differential-privacy"
    ranges: ClassVar = {**{"epsilon": (0, math.inf), "delta": (0, 1)}, **{"records": (1, math.inf), "right": (0, 1)}}
    before_meaning: ClassVar[str] = ": "
    epsilon: float  # epsilon, delta: rounded upwards by the accountant
    delta: float
    adjacency: Adjacency  # how two neighbouring tables differ
    covers: Covers  # what the numbers are about
    unit: str = "record"  # what is protected: one record, all records of one curve, or those with one id
    records: int | None = None  # records of one unit, at most; None where the unit is a record or a curve
    # most that whoever guesses right with `dpdist.privacy.formatting.GUESS` is right; None where it is not stated
    right: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        _choice(self.kind, "adjacency", self.adjacency, Adjacency)
        _choice(self.kind, "covers", self.covers, Covers)
        if (self.records is None) != (self.unit in ("record", "curve")):
            raise AccountingError(f"{self.kind}: records goes with a unit of several records, and only with it")

    def statement(self) -> str:
        """What is promised, in one sentence without its full stop."""
        whom = "" if self.records is None else f" of one {self.unit} with all its records"
        budget = f"({upwards(self.epsilon)}, {upwards(self.delta)})"
        return f"{budget}-differential privacy for {self.covers} ({self.adjacency}{whom})"

    def meaning(self) -> str:
        """What the statement means."""
        each = "" if self.records is None else f" with all its records (at most {self.records:,} are used)"
        change = _ONE[self.adjacency].format(f"{self.unit}{each}")
        return (
            f"when {change}, the probability of any event about it changes by at most a factor "
            f"exp({upwards(self.epsilon)}), plus {upwards(self.delta)}"
        )

    def for_one_guess(self) -> str:
        """By the curve of the events."""
        return "" if self.right is None else risk_sentence(self.right, unit=self.unit)


@dataclass(frozen=True, kw_only=True)
class PlausibleDeniability(Guarantee):
    """(k, gamma)-plausible deniability, with the (epsilon, delta) of one record by PD Theorem 1."""

    kind: ClassVar[str] = "plausible-deniability"
    ranges: ClassVar = {
        **{"k": (1, math.inf), "gamma": (1, math.inf)},
        **{"epsilon0": (0, math.inf), "epsilon": (0, math.inf), "delta": (0, 1)},
    }
    before_meaning: ClassVar[str] = ": "
    k: int  # seeds that could have given each released record, the actual one included
    gamma: float  # largest ratio between the probabilities with which they give it
    # parameter of the threshold noise; None for the deterministic test, which gives no differential privacy
    epsilon0: float | None = None
    # epsilon, delta: PD Theorem 1, for one released record given the model; present if and only if `epsilon0` is
    epsilon: float | None = None
    delta: float | None = None
    covers: Covers = "one released record"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({value is None for value in (self.epsilon0, self.epsilon, self.delta)}) != 1:
            raise AccountingError(f"{self.kind}: epsilon0, epsilon and delta go together")
        if self.covers != "one released record":
            raise AccountingError(
                f"{self.kind}: it covers one released record; state the whole release as differential privacy"
            )

    def statement(self) -> str:
        """What is promised, in one sentence without its full stop."""
        return f"Per record: ({self.k}, {self.gamma:.6g})-plausible deniability"

    def meaning(self) -> str:
        """What the statement means and what it does not cover, without the last full stop."""
        noisy = "" if self.epsilon0 is None else " (up to the noise on the threshold)"
        text = (
            f"each released record could have come from at least {self.k} seeds{noisy}, with probabilities within a "
            f"factor {self.gamma:.6g} of each other."
        )
        if self.epsilon is None or self.delta is None:
            return f"{text} The test is deterministic: this is not differential privacy"
        return (
            f"{text} Given the model, one released record is ({upwards(self.epsilon)}, {upwards(self.delta)})-"
            f"differentially private (add/remove) for the seeds. This covers one released record, not the whole release"
        )


@dataclass(frozen=True, kw_only=True)
class PML(Guarantee):
    """Pointwise maximal leakage under an assumed product prior."""

    kind: ClassVar[str] = "pointwise-maximal-leakage"
    ranges: ClassVar = {"epsilon": (0, math.inf), "alpha": (0, 1), "delta": (0, 1)}
    epsilon: float  # leakage, in nats
    alpha: float  # assumed least probability of every bin, for every record; an assumption about the population
    prior: str = "independent records"  # the assumed family of priors
    # epsilon of differential privacy of the same noise under replacement (``2 / b``); None where there is no noise
    dp_epsilon: float | None = None
    delta: float = 0.0  # probability that the sampler of the noise is not exact

    def statement(self) -> str:
        """What is promised, in one sentence without its full stop."""
        return (
            f"Pointwise maximal leakage of at most {upwards(self.epsilon)} nats about any one record, for the whole "
            f"release, with delta {upwards(self.delta)}, assuming {self.prior} and that every record falls in every "
            f"bin with probability at least {self.alpha:.6g} (replacement: the number of records is public)"
        )

    def meaning(self) -> str:
        """What is assumed, and the differential privacy of the same noise, without the last full stop."""
        same = (
            "no noise, hence no differential privacy"
            if self.dp_epsilon is None
            else f"the same noise is ({upwards(self.dp_epsilon)}, {upwards(self.delta)})-differentially private "
            "(replacement)"
        )
        return f"That is an assumption about the population. It is not differential privacy; {same}"

    def for_one_guess(self) -> str:
        """A guess is right more often by the factor of the leakage, under the assumption."""
        right = min(GUESS * math.exp(self.epsilon) + self.delta, 1.0)
        return f"{risk_sentence(right)}, under this assumption"


@dataclass(frozen=True, kw_only=True)
class LID(Guarantee):
    """A bound on local information disclosure; no differential privacy."""

    kind: ClassVar[str] = "local-information-disclosure"
    ranges: ClassVar = {"bound": (0, 1), "eta": (0, 1), "response": (0, 1)}
    computational: ClassVar[bool] = False
    bound: float  # largest share of released rows with a value near that of the record they were mixed from
    eta: float | None = None  # what is near, as a share of the width of a column's scale; None where it is not stated
    # the columns it is measured in; None where they are not stated. Without any, nothing is bounded
    columns: tuple[str, ...] | None = None
    original: tuple[str, ...] = ()  # columns that are released as they are
    response: float | None = None  # largest share of rows whose response is near the original one; None: not bounded

    def __post_init__(self) -> None:
        for name in ("columns", "original"):  # lists, where they come from JSON
            names = getattr(self, name)
            object.__setattr__(self, name, None if names is None else tuple(names))
        super().__post_init__()

    def statement(self) -> str:
        """What is not promised, in one sentence without its full stop."""
        return (
            "Not differentially private: there is no adjacency and no delta, and original records are mixed into the "
            "output"
        )

    def meaning(self) -> str:
        """What is released as it is, and the bound, without the last full stop."""
        kept = f"Released as they are: {_listed(self.original)}. " if self.original else ""
        if self.columns == ():
            return f"{kept}Local information disclosure is not bounded: no column is looked at"
        what = "near" if self.eta is None else f"within {self.eta:.6g} of a column's width of"
        where = "" if self.columns is None else f" in {_listed(self.columns)}"
        which = "some column" if self.columns is None else "any of these"
        response = "" if self.response is None else f", and for no more than {self.response:.6g} of them the response"
        return (
            f"{kept}Local information disclosure is at most {self.bound:.6g}, as measured{where}: for no more than "
            f"that share of the released rows is {which} {what} the original record's{response}. It says nothing about "
            f"{'' if self.columns is None else 'other columns, nor about '}any one record"
        )


@dataclass(frozen=True, kw_only=True)
class FederatedPrivacy(Guarantee):
    """(epsilon, delta)-differential privacy of all that leaves a client of a federated release."""

    kind: ClassVar[str] = "federated-differential-privacy"
    ranges: ClassVar = {"epsilon": (0, math.inf), "delta": (0, 1), "colluding": (0, math.inf)}
    # epsilon, delta: of one client's records; clients hold disjoint ones, so this is also what any record is exposed to
    epsilon: float
    delta: float
    # whether each message is private by itself, or the messages of all clients together
    trust: Literal["local", "correlated"]
    colluding: int = 0  # with correlated noise: clients that may share all they know with the coordinator
    adjacency: Adjacency = "add/remove"

    def __post_init__(self) -> None:
        super().__post_init__()
        _choice(self.kind, "adjacency", self.adjacency, Literal["add/remove"])
        if self.trust not in ("local", "correlated") or (self.trust == "local" and self.colluding):
            raise AccountingError(f"{self.kind}: trust is local (no colluding clients) or correlated")

    def statement(self) -> str:
        """What is promised, in one sentence without its full stop."""
        against = (
            "together with all other clients"
            if self.trust == "local"
            else f"together with any {self.colluding} of the other clients"
            if self.colluding
            else "if no other client shares its secrets"
        )
        return (
            f"Of each client, all that leaves it is ({upwards(self.epsilon)}, {upwards(self.delta)})-differentially "
            f"private ({self.adjacency}: one of its records is present or absent) against a coordinator who follows "
            f"the protocol and sees every message, {against}"
        )


_KINDS = {kind.kind: kind for kind in (DifferentialPrivacy, PlausibleDeniability, PML, LID, FederatedPrivacy)}


def from_json(data: Mapping[str, Any]) -> Guarantee:
    """The guarantee that `Guarantee.to_json` wrote.
    Raises AccountingError: the kind is unknown, or its numbers are not those of a guarantee of that kind.

    Parameters
    ----------
    data : mapping
        The JSON object.
    """
    body = {name: value for name, value in data.items() if name not in ("kind", "sentence")}
    kind = data.get("kind")
    if kind not in _KINDS:
        raise AccountingError(f"unknown kind of guarantee {kind!r}: expected one of {', '.join(sorted(_KINDS))}")
    try:
        return _KINDS[kind](**body)
    except TypeError as error:
        raise AccountingError(f"guarantee {kind}: {error}") from None


def explained(guarantees: Sequence[Guarantee]) -> list[Fact]:
    """Guarantees for people: each in one sentence, then what they mean, what all of them assume, and their risks."""
    facts = []
    for guarantee in guarantees:
        numbers = {name: value for name, value in asdict(guarantee).items() if isinstance(value, int | float)}
        facts.append(Fact("Guarantee", f"{guarantee.statement()}.", numbers))
    meanings = [meaning for guarantee in guarantees if (meaning := guarantee.meaning())]
    facts += [Fact("Meaning", f"{meaning[0].upper()}{meaning[1:]}.") for meaning in meanings]
    if any(guarantee.computational for guarantee in guarantees):
        facts.append(Fact("Meaning", _COMPUTATIONAL))
    return facts + [Fact("Risk", f"{text}.") for guarantee in guarantees if (text := guarantee.for_one_guess())]
