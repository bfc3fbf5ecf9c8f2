"""What every family of releases is: a spec, a plan, stages that share an attempt, and claims that an audit attacks.

A family is one `Family` record, found by its entry point (`dpdist.families.base.registry`). Command line, evaluation
and audit ask the record and the plan; they never ask for a type.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from dpdist.errors import SpecError
from dpdist.families.base.plan import Plan
from dpdist.privacy.arrays import Codes, Floats
from dpdist.privacy.testing import Canaries, Claim
from dpdist.spec.attribute import Attribute
from dpdist.spec.conditions import Mask
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.schema import Schema
from dpdist.spec.strict_yaml import load_yaml, write_yaml
from dpdist.spec.unit import UnitSpec
from dpdist.spec.validation import override, parse_overrides

if TYPE_CHECKING:
    import pyarrow as pa

    from dpdist.data.operators import Operator
    from dpdist.families.base.attempt import Attempt
    from dpdist.publish.manifest import Manifest
    from dpdist.spec.described import Described


SpecT = TypeVar("SpecT", bound=ReleaseSpec)
PlanT = TypeVar("PlanT", bound=Plan)


@dataclass(frozen=True)
class Stage(Generic[SpecT, PlanT]):
    """A step of a release that can be repeated: it finds what it stored, and noise is a function of the key."""

    name: str  # for people: progress, logs, tasks of a flow
    # takes the attempt and returns the stage's result, a frozen object that later stages ask for by its type
    # (`Attempt.result`); None where nothing follows
    run: Callable[[Attempt[SpecT, PlanT]], object]


# the kind of a statistic (``count``, ``entropy``, ``mean``), of what, and its true values
Truth: TypeAlias = tuple[str, str, Floats]
# the schema by which real records are read, and what turns their codes into columns like the released ones
AsReleased: TypeAlias = tuple[Schema, Callable[[Codes], Codes]]


@dataclass(frozen=True, kw_only=True)
class SolveRequest:
    """What ``dpdist plan --solve`` is asked for; None where an option is not given."""

    epsilon: float | None = None  # of the whole release
    risk: str | None = None  # such as "1% to 2%": what a guess may become
    accuracy: float | None = None  # largest expected error of two-way tables, in total variation
    pass_rate: float | None = None  # lowest expected pass rate that is acceptable
    public_table: Path | None = None  # a public table of the same schema
    # where to write the completed spec: the file `source` with the overrides `settings` and what was found
    write: Path | None = None
    source: Path
    settings: Sequence[str] = ()

    def refuse(self, *options: str, go_with: str) -> None:
        """Refuse options that would be passed over. Raises SpecError: one of them is given."""
        given = [f"--{option.replace('_', '-')}" for option in options if getattr(self, option) is not None]
        if given:
            raise SpecError(f"{', '.join(given)}: only with {go_with}")

    def completed(self, spec: ReleaseSpec, found: Mapping[str, Any], *, title: str) -> None:
        """Write, where asked to, the source file with its overrides and what was found, by dotted path, below a title.
        Raises SpecError: the source cannot be read, or the path cannot be written.
        """
        if self.write is None:
            return
        tree = load_yaml(self.source)
        schema: Any = tree["schema"]
        if isinstance(schema, str) and self.write.resolve().parent != self.source.resolve().parent:
            schema = spec.table.model_dump(mode="json")
        tree = override(tree, parse_overrides(self.settings) | dict(found)) | {"schema": schema}
        text = "".join(f"# {line}\n" for line in title.splitlines()) + write_yaml(tree, flow=True)
        try:
            self.write.write_text(text, encoding="utf-8")
        except OSError as error:
            raise SpecError(f"{self.write} cannot be written: {error.strerror}") from None


class Solution(Protocol):
    """What ``dpdist plan --solve`` found."""

    @property
    def plan(self) -> Plan | None:
        """The plan of the completed spec; None where none is completed."""

    def to_json(self) -> dict[str, Any]:
        """The solution as a JSON object."""

    def explain(self) -> str:
        """The solution for people."""


@dataclass(frozen=True)
class FoundPlan:
    """A plan with what was found."""

    plan: Plan
    text: str  # for people
    numbers: dict[str, Any]  # what was found

    def to_json(self) -> dict[str, Any]:
        """The solution as a JSON object."""
        return self.numbers | {"plan": self.plan.to_json()}

    def explain(self) -> str:
        """The solution for people."""
        return self.text


@dataclass(frozen=True, kw_only=True)
class Family(Generic[SpecT, PlanT]):
    """A family of releases."""

    kind: str  # the `kind` of its specs
    # class of its specs, or its path ``module:class`` where it is imported when it is first needed
    spec: type[SpecT] | str
    plan: Callable[[SpecT], PlanT]  # spec to plan. Reads no record
    # plan to the stages of a release, in order. The last one leaves `Attempt.parts`
    stages: Callable[[PlanT], Sequence[Stage[SpecT, PlanT]]]
    # plan to the stated guarantees that an audit attacks, each with the stages or functions that a release runs
    claims: Callable[[PlanT], tuple[Claim, ...]] = lambda plan: ()
    # plan to the mechanisms that can be audited in one run
    canaries: Callable[[PlanT], tuple[Canaries, ...]] = lambda plan: ()
    # spec and `SolveRequest` to what ``dpdist plan --solve`` shows. Without it nothing is solved
    solve: Callable[[SpecT, SolveRequest], Solution] | None = None
    # for families that release statistics: plan and the manifest's parameters to the operator that computes them on a
    # table, and what turns its summary into their true values (`Truth`), in the order of the release. An evaluation
    # compares the two
    truth: Callable[[PlanT, Mapping[str, Any]], tuple[Operator, Callable[[Any], list[Truth]]]] | None = None
    # manifest and spec (None if it is not known) to the schema by which real records are read, and what turns their
    # codes into columns like the released ones; None where the release holds records like those of the table. An
    # evaluation then trains models on them and compares nothing else
    as_released: Callable[[Manifest, SpecT | None], AsReleased | None] | None = None
    # plan, records of a smaller table and their ratio to those of the whole one, to the plan of a release of the
    # smaller table with the same noise. With it, an adversary who knows the mechanism can run the release on tables of
    # its own (`dpdist.evaluation.attacks.membership`)
    shadow: Callable[[PlanT, int, float], PlanT] | None = None

    # spec to a digest of what it reads of public tables, None where it names none: which these are is a matter of
    # paths, which are no part of a spec's fingerprint, so the digest also binds attempts
    public_tables: Callable[[SpecT], str | None] | None = None

    # manifest and spec (None if it is not known) to how released rows are parents with members, where they are. An
    # evaluation then compares both tables and what is within a parent, and its attacks have whole parents as targets
    linked: Callable[[Manifest, SpecT | None], LinkedRows] | None = None

    # manifest and released table to what they say about each column: ``dpdist schema draft`` makes a schema of it
    described: Callable[[Manifest, pa.Table], list[Described]] | None = None

    # of releases that clients may join by mailbox: makes a client's session (`dpdist.federated.session`)
    session: Callable[..., Any] | None = None

    @property
    def spec_class(self) -> type[SpecT]:
        """Class of its specs."""
        found: type[SpecT] = pkgutil.resolve_name(self.spec) if isinstance(self.spec, str) else self.spec
        return found


def imported(path: str) -> Callable[..., Any]:
    """A function, given as ``module:function``, that is imported when it is first called."""

    def call(*arguments: Any, **named: Any) -> Any:
        return pkgutil.resolve_name(path)(*arguments, **named)

    return call


def family_in(package: str, kind: str, spec: str, **more: str) -> Family[Any, Any]:
    """A family in modules of a package, each of them imported when it is first needed. The package has ``plan:plan``,
    ``stages:stages`` and ``claims:claims``; the class of its specs is ``module:class`` in it, and other members of
    `Family` are ``module:function``.
    """
    paths = {name: f"{name}:{name}" for name in ("plan", "stages", "claims")} | more
    members: dict[str, Any] = {name: imported(f"{package}.{path}") for name, path in paths.items()}
    return Family(kind=kind, spec=f"{package}.{spec}", **members)


@dataclass(frozen=True, eq=False)
class LinkedRows:
    """Where the parents' and the members' attributes are."""

    unit: UnitSpec  # the parents: the column of their ids, and how many members of each are used
    read: Schema  # by which the joined real rows are read
    order: int | None  # the attribute of `read` that orders the members of a parent; it is not compared
    parent: tuple[int, ...]  # attributes of `read`
    members: tuple[int, ...]
    kinds: tuple[tuple[str, int, Mask], ...]  # of members: name, attribute of `read` and its codes of the kind

    ids = 2  # columns of a released row before its attributes: the parent's number and the member's place

    @property
    def schema(self) -> Schema:
        """Of the released rows, without number and place."""
        kept = tuple(attribute for i, attribute in enumerate(self.read.attributes) if i != self.order)
        return Schema(attributes=kept, rules=self.read.rules)

    @property
    def parents_schema(self) -> Schema:
        """Of a row for each parent: its attributes, the number of its members and of those of each kind."""
        most = self.unit.at_most
        size = Attribute(name="(members)", kind="integer", bounds=(1, most))
        kinds = [Attribute(name=f"(of {name})", kind="integer", bounds=(0, most)) for name, _, _ in self.kinds]
        return Schema(attributes=(*(self.read.attributes[i] for i in self.parent), size, *kinds))

    def place(self, attribute: int) -> int:
        """Where an attribute of `read` is in `schema`."""
        return attribute - (self.order is not None and attribute > self.order)

    def compared(self, codes: Codes) -> Codes:
        """Codes of `read` as codes of `schema`."""
        return [column for i, column in enumerate(codes) if i != self.order]

    def of_kinds(self, codes: Codes) -> list[np.ndarray]:
        """For each kind which rows, codes of `schema`, are of it."""
        return [mask[codes[self.place(attribute)]] for _, attribute, mask in self.kinds]
