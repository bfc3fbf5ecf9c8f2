"""What a release promises, as typed records that are never mixed.

Four kinds, each with the numbers and the words that belong to it: differential privacy, plausible deniability,
pointwise maximal leakage, and local information disclosure. None of them prints without what it protects (the
adjacency), with what probability it may fail (delta) and what it covers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, get_args

from dpdist.errors import AccountingError

Adjacency = Literal["add/remove", "replacement"]
Covers = Literal["the whole release", "one released record", "the model"]

_ONE_RECORD = {
    "add/remove": "one record is present or absent",
    "replacement": "one record is replaced by another",
}
_COMPUTATIONAL = "Noise comes from a keyed cryptographic generator, so the guarantee is computational."


def _check(kind: str, name: str, value: float, *, low: float, high: float = math.inf) -> None:
    if not low <= value <= high or math.isinf(value):
        raise AccountingError(f"{kind}: {name} must be finite and in [{low}, {high}], got {value!r}")


def _choice(kind: str, name: str, value: str, allowed: Any) -> None:
    if value not in get_args(allowed):
        raise AccountingError(f"{kind}: {name} must be one of {', '.join(get_args(allowed))}, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """Base of the four kinds."""

    kind: ClassVar[str] = ""

    def sentence(self) -> str:
        """The guarantee in plain words."""
        raise NotImplementedError

    def to_json(self) -> dict[str, Any]:
        """The guarantee as a JSON object, its sentence included."""
        return {"kind": self.kind, **asdict(self), "sentence": self.sentence()}


@dataclass(frozen=True, kw_only=True)
class DifferentialPrivacy(Guarantee):
    """(epsilon, delta)-differential privacy.

    Attributes
    ----------
    epsilon, delta : float
        Rounded upwards by the accountant.
    adjacency : {"add/remove", "replacement"}
        How two neighbouring tables differ.
    covers : {"the whole release", "one released record", "the model"}
        What the numbers are about.
    """

    kind: ClassVar[str] = "differential-privacy"
    epsilon: float
    delta: float
    adjacency: Adjacency
    covers: Covers

    def __post_init__(self) -> None:
        _check(self.kind, "epsilon", self.epsilon, low=0)
        _check(self.kind, "delta", self.delta, low=0, high=1)
        _choice(self.kind, "adjacency", self.adjacency, Adjacency)
        _choice(self.kind, "covers", self.covers, Covers)

    def sentence(self) -> str:
        """The guarantee in plain words."""
        return (
            f"({self.epsilon:.6g}, {self.delta:.6g})-differential privacy for {self.covers} ({self.adjacency}): "
            f"when {_ONE_RECORD[self.adjacency]}, the probability of any event about it changes by at most a factor "
            f"exp({self.epsilon:.6g}), plus {self.delta:.6g}. {_COMPUTATIONAL}"
        )


@dataclass(frozen=True, kw_only=True)
class PlausibleDeniability(Guarantee):
    """(k, gamma)-plausible deniability, with the (epsilon, delta) of one record by PD Theorem 1.

    Attributes
    ----------
    k : int
        Seeds that could have given each released record, the actual one included.
    gamma : float
        Largest ratio between the probabilities with which they give it.
    epsilon0 : float or None
        Parameter of the threshold noise; None for the deterministic test, which gives no differential privacy.
    epsilon, delta : float or None
        PD Theorem 1, for one released record given the model; present if and only if `epsilon0` is.
    """

    kind: ClassVar[str] = "plausible-deniability"
    k: int
    gamma: float
    epsilon0: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    covers: Covers = "one released record"

    def __post_init__(self) -> None:
        _check(self.kind, "k", self.k, low=1)
        _check(self.kind, "gamma", self.gamma, low=1)
        if len({value is None for value in (self.epsilon0, self.epsilon, self.delta)}) != 1:
            raise AccountingError(f"{self.kind}: epsilon0, epsilon and delta go together")
        if self.epsilon is not None and self.delta is not None and self.epsilon0 is not None:
            _check(self.kind, "epsilon0", self.epsilon0, low=0)
            _check(self.kind, "epsilon", self.epsilon, low=0)
            _check(self.kind, "delta", self.delta, low=0, high=1)
        if self.covers != "one released record":
            raise AccountingError(
                f"{self.kind}: it covers one released record; state the whole release as differential privacy"
            )

    def sentence(self) -> str:
        """The guarantee in plain words."""
        noisy = "" if self.epsilon0 is None else " (up to the noise on the threshold)"
        text = (
            f"Per record: ({self.k}, {self.gamma:.6g})-plausible deniability: each released record could have come "
            f"from at least {self.k} seeds{noisy}, with probabilities within a factor {self.gamma:.6g} of each other."
        )
        if self.epsilon is None:
            return f"{text} The test is deterministic: this is not differential privacy. {_COMPUTATIONAL}"
        return (
            f"{text} Given the model, one released record is ({self.epsilon:.6g}, {self.delta:.6g})-differentially "
            f"private (add/remove) for the seeds. This covers one released record, not the whole release. "
            f"{_COMPUTATIONAL}"
        )


@dataclass(frozen=True, kw_only=True)
class PML(Guarantee):
    """Pointwise maximal leakage under an assumed product prior.

    Attributes
    ----------
    epsilon : float
        Leakage, in nats.
    alpha : float
        Assumed least probability of every bin, for every record; an assumption about the population.
    prior : str
        The assumed family of priors.
    dp_epsilon : float or None
        Epsilon of differential privacy of the same noise under replacement (``2 / b``); None where there is no noise.
    """

    kind: ClassVar[str] = "pointwise-maximal-leakage"
    epsilon: float
    alpha: float
    prior: str = "independent records"
    dp_epsilon: float | None = None

    def __post_init__(self) -> None:
        _check(self.kind, "epsilon", self.epsilon, low=0)
        _check(self.kind, "alpha", self.alpha, low=0, high=1)

    def sentence(self) -> str:
        """The guarantee in plain words."""
        same = (
            "no noise, hence no differential privacy"
            if self.dp_epsilon is None
            else (f"the same noise is ({self.dp_epsilon:.6g}, 0)-differentially private (replacement)")
        )
        return (
            f"Pointwise maximal leakage of at most {self.epsilon:.6g} nats about any one record, for the whole "
            f"release, with delta 0, assuming {self.prior} and that every record falls in every bin with "
            f"probability at least {self.alpha:.6g} (replacement: the number of records is public). That is an "
            f"assumption about the population. It is not differential privacy; {same}. {_COMPUTATIONAL}"
        )


@dataclass(frozen=True, kw_only=True)
class LID(Guarantee):
    """A bound on local information disclosure; no differential privacy.

    Attributes
    ----------
    bound : float
        Largest probability that an attribute of a released row lies near the record it came from.
    """

    kind: ClassVar[str] = "local-information-disclosure"
    bound: float

    def __post_init__(self) -> None:
        _check(self.kind, "bound", self.bound, low=0, high=1)

    def sentence(self) -> str:
        """The guarantee in plain words."""
        return (
            "Not differentially private: there is no adjacency and no delta. Local information disclosure is at most "
            f"{self.bound:.6g} for each released row: original records are mixed into the output."
        )


_KINDS = {kind.kind: kind for kind in (DifferentialPrivacy, PlausibleDeniability, PML, LID)}


def from_json(data: Mapping[str, Any]) -> Guarantee:
    """The guarantee that `Guarantee.to_json` wrote.

    Raises
    ------
    AccountingError
        The kind is unknown, or its numbers are not those of a guarantee of that kind.
    """
    body = {name: value for name, value in data.items() if name not in ("kind", "sentence")}
    kind = data.get("kind")
    if kind not in _KINDS:
        raise AccountingError(f"unknown kind of guarantee {kind!r}: expected one of {', '.join(sorted(_KINDS))}")
    try:
        return _KINDS[kind](**body)
    except TypeError as error:
        raise AccountingError(f"guarantee {kind}: {error}") from None
