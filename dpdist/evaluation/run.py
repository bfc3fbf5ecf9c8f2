"""An evaluation from the command line's request to its page: open, look, judge, write."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdist.cluster.executor import Executor
from dpdist.cluster.opening import open_cluster
from dpdist.data.inputs import Files, Input, table_source
from dpdist.data.released import ReleasedTable
from dpdist.data.source import TableSource, find_files
from dpdist.errors import DataError, DataNotFound, DpdistError, SpecError
from dpdist.evaluation.inputs import Inputs, open_inputs
from dpdist.evaluation.page.files import Pages, is_remote, pages_at
from dpdist.evaluation.page.page import WORDS, About
from dpdist.evaluation.page.sections import PageSection
from dpdist.evaluation.report import (
    Options,
    about_release,
    check_output,
    record_sections,
    require_packages,
    vector_sections,
    write,
)
from dpdist.families.base.attempt import Progress, silent
from dpdist.families.base.family import AsReleased
from dpdist.families.base.linked import LinkedRows
from dpdist.families.base.registry import FAMILIES
from dpdist.publish.manifest import Manifest
from dpdist.publish.verify import open_release
from dpdist.spec.data import ParentTable
from dpdist.spec.release import DEFAULT_LEDGER
from dpdist.spec.unit import UnitSpec, WeightSpec

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from dpdist.evaluation.publishable import FiguresPublication
    from dpdist.spec.release import ReleaseSpec
    from dpdist.storage.store import Store

LARGE = 256 << 20
"""Bytes of files from which on worker processes read them, unless a cluster is named."""


_LABEL = max(map(len, WORDS.values())) + 2  # columns of a verdict in a word


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to evaluate, and against what."""

    release: str  # folder or ``s3://`` prefix
    # files, folders or globs of the real table, or a table that is no file; empty for those of the spec
    against: tuple[str, ...] | Input = ()
    holdout: tuple[str, ...] | Input = ()  # the same of a hold-out; empty for none
    # of two linked tables, the files of the parents' where these are in a table of their own; by default those of the
    # spec, and for the hold-out those of the real table
    parents: tuple[str, ...] = ()
    holdout_parents: tuple[str, ...] = ()
    # says how the real table is read (CSV, storage); its schema where the release holds statistics
    spec: ReleaseSpec | None = None
    # folder of the page, default: ``evaluation-<release>``; or an ``s3://`` prefix, if it is `confidential`
    output: str | Path | None = None
    confidential: bool = False  # only those may read the bucket of the output who may read the real table
    options: Options = field(default_factory=Options)
    cluster: str = "auto"  # ``auto``, ``threads``, ``embedded`` or the address of a scheduler
    public_key: Ed25519PublicKey | None = None  # the release's signature is then required
    # of object storage, unless the spec says
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    publish: float | None = None  # epsilon of figures that may be published (`dpdist.evaluation.publishable`)
    ledger: str = DEFAULT_LEDGER  # SQLAlchemy URL of the ledger they are charged to
    executor: Executor | None = None  # where tables are read, instead of `cluster`; it stays open

    @property
    def pages(self) -> Pages:
        """Where the page is written. Raises SpecError: in a bucket that nobody calls confidential."""
        output = self.output or default_output(self.release)
        if not is_remote(output):
            return pages_at(output)
        if not self.confidential:
            raise SpecError(
                f"--output {output}: the page is computed from private records without noise. Add --confidential if "
                "only those may read this bucket who may read the real table, else choose another --output"
            )
        return pages_at(output, self.spec.output.storage.options if self.spec is not None else self.storage_options)

    def source(
        self, table: tuple[str, ...] | Input, *, parents: tuple[str, ...] = (), attributes: tuple[str, ...] = ()
    ) -> Input:
        """A real table: how to read it, where it is given by paths; `parents` has these attributes of it."""
        if not isinstance(table, tuple):
            return table
        parent = ParentTable(path=parents, attributes=attributes) if parents else None
        paths = (*table, *(path for path in parents if path not in table))
        if self.spec is None:
            plain = TableSource(paths, extra_columns="ignore", parent=parent, storage_options=self.storage_options)
            return Files(plain)
        options = self.spec.data.storage.options or self.storage_options
        source = table_source(self.spec)
        return Files(replace(source, paths=paths, parent=parent, extra_columns="ignore", storage_options=options))

    @property
    def real_parents(self) -> tuple[str, ...]:
        """Files of the parents of the real table."""
        parent = None if self.spec is None else self.spec.data.parent
        return self.parents or (() if parent is None else parent.paths)


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """An evaluation that was written."""

    page: str  # page, figures: the HTML page and the JSON file; confidential
    figures: str
    verdicts: tuple[dict[str, str], ...]  # name, title, state and verdict of each section; confidential

    def to_json(self) -> dict[str, Any]:
        """What was written as a JSON object."""
        return asdict(self)

    def explain(self) -> str:
        """The verdicts and what was written, for people: sections of which the same is said share a line."""
        alike = groupby(self.verdicts, key=lambda one: (one["state"], one["verdict"]))
        told = [(state, ", ".join(one["title"] for one in of), verdict) for (state, verdict), of in alike]
        return "\n".join(
            [
                "CONFIDENTIAL: computed from private records without noise. Do not publish.",
                *(f"{WORDS[state]:<{_LABEL}}{titles}. {verdict}" for state, titles, verdict in told),
                f"{'Page':<{_LABEL}}{self.page}",
                f"{'Figures':<{_LABEL}}{self.figures}",
            ]
        )


def run_evaluation(request: Request, *, progress: Progress = silent) -> Evaluated:
    """Evaluate a release and write the page.

    Parameters
    ----------
    request : Request
    progress : callable
        Called with (stage, finished steps, all steps).

    Raises
    ------
    DpdistError
        The release, the table or the hold-out cannot be read, the table does not fit the release's schema, or the
        folder cannot be written; see `dpdist.errors`.
    """
    require_packages()
    store, manifest = open_release(request.release, request.public_key, storage_options=request.storage_options)
    paths = request.against or (request.spec.data.paths if request.spec is not None else ())
    if not paths:
        raise SpecError("there is nothing to compare with: give --against PATH, or --spec SPEC of the release")
    pages = request.pages
    check_output(pages, store)
    request = replace(request, against=paths)
    statistics, real = manifest.format.layout == "statistics", real_records(manifest, request.spec)
    linked = linked_rows(manifest, request.spec)
    if request.publish is not None and (statistics or real is not None or linked is not None):
        raise SpecError("--publish: there are such figures for released records only, and none for linked tables")
    if linked is None and (request.parents or request.holdout_parents):
        raise SpecError("--parents: only a release of two linked tables (`kind: relational`) has parents")
    if linked is not None:
        about, sections = _linked(request, store, manifest, linked, progress)
    elif statistics:
        about, sections = _statistics(request, store, manifest, progress)
    else:
        about, sections = _records(request, store, manifest, real, progress)
    page, figures = write(pages, about, sections, manifest)
    return Evaluated(
        page=page,
        figures=figures,
        verdicts=tuple({"name": s.name, "title": s.title, "state": s.state, "verdict": s.verdict} for s in sections),
    )


def page_of_evaluation(request: Request) -> str:
    """Evaluate a release for somebody who may start that and not read what is found; return the page's address.

    What the table or the hold-out is refused for, and any error that is unforeseen, is an answer about their records:
    it stands on the page, and this ends as if there were none.

    Parameters
    ----------
    request : Request

    Raises
    ------
    DpdistError
        As `run_evaluation`, but for what depends on records.
    """
    try:
        return run_evaluation(request).page
    except DpdistError as error:
        if isinstance(error, DataNotFound) or not isinstance(error, DataError):
            raise
        why = str(error)
    except Exception:  # its text may quote a value, which the page may
        why = traceback.format_exc()
    store, manifest = open_release(request.release, request.public_key, storage_options=request.storage_options)
    ended = PageSection("ended", "The evaluation ended early", why, "bad")
    return write(request.pages, about_release(store, manifest, {}, request.options), [ended], manifest)[0]


def real_records(manifest: Manifest, spec: ReleaseSpec | None) -> AsReleased | None:
    """How real records are read and made like released rows that are none; None for released records."""
    family = FAMILIES.get(manifest.kind)
    return None if family is None or family.as_released is None else family.as_released(manifest, spec)


def linked_rows(manifest: Manifest, spec: ReleaseSpec | None) -> LinkedRows | None:
    """How released rows are parents with members; None where they are not. Raises SpecError: this version does not know
    the settings of the release, or the spec is that of another one.
    """
    family = FAMILIES.get(manifest.kind)
    return None if family is None or family.linked is None else family.linked(manifest, spec)


def _linked(
    request: Request, store: Store, manifest: Manifest, linked: LinkedRows, progress: Progress
) -> tuple[About, list[PageSection]]:
    from dpdist.evaluation.linked.sections import linked_sections, open_linked

    own, attributes = request.real_parents, tuple(linked.read.names[i] for i in linked.parent)
    against = request.source(request.against, parents=own, attributes=attributes)
    holdout = None
    if request.holdout:
        above = request.holdout_parents or own
        holdout = request.source(request.holdout, parents=above, attributes=attributes)
    training = None
    if request.spec is not None:
        training = request.source(request.spec.data.paths)
    with opened_cluster(request, against) as cluster:
        inputs = open_linked(
            ReleasedTable(store, manifest),
            linked,
            against=against,
            holdout=holdout,
            training=training,
            executor=cluster,
            seed=request.options.seed,
            progress=progress,
        )
        sections = linked_sections(inputs, request.options)
    return about_release(store, manifest, inputs.reports, request.options), sections


def _records(
    request: Request, store: Store, manifest: Manifest, real: AsReleased | None, progress: Progress
) -> tuple[About, list[PageSection]]:
    against = request.source(request.against)
    holdout = request.source(request.holdout) if request.holdout else None
    weighed = manifest.spec.get("weight")
    weight = None if weighed is None else WeightSpec.model_validate(weighed)
    if request.publish is not None:
        from dpdist.evaluation.publishable import refuse_another_reading

        refuse_another_reading(manifest, request.spec, against)
        if weight is not None:
            raise SpecError("--publish: such figures count each record once, and this release counts weights")
    with opened_cluster(request, against) as cluster:
        inputs = open_inputs(
            ReleasedTable(store, manifest),
            against=against,
            holdout=holdout,
            executor=cluster,
            seed=request.options.seed,
            progress=progress,
            real=real,
            training=request.source(request.spec.data.paths) if request.spec is not None else None,
            unit=_unit(manifest) if request.publish is not None else None,
            weight=weight,
        )
        if real is not None:
            sections = vector_sections(inputs, request.options)
        else:
            with charged(request, inputs) as publication:
                key = None if publication is None else publication.bounding_key()
                sections = record_sections(inputs if key is None else inputs.bounded(key), request.options, publication)
    return about_release(store, manifest, inputs.reports, request.options), sections


def _unit(manifest: Manifest) -> UnitSpec | None:
    """The unit that a release protects."""
    unit = manifest.spec.get("unit")
    return None if unit is None else UnitSpec.model_validate(unit)


@contextmanager
def charged(request: Request, inputs: Inputs) -> Iterator[FiguresPublication | None]:
    """The publishable figures of a request, charged; None if none are asked for."""
    if request.publish is None:
        yield None
        return
    from dpdist.evaluation.publishable import FiguresPlan, FiguresPublication
    from dpdist.ledger import Ledger

    plan = FiguresPlan(request.publish, _unit(inputs.manifest))
    ledger = Ledger.open(request.ledger, create=False)
    publication = FiguresPublication(ledger, inputs.manifest, plan, request.pages, request.options.seed)
    try:
        publication.reserve(inputs.real.fingerprint)
        yield publication
    finally:
        ledger.close()


def _statistics(
    request: Request, store: Store, manifest: Manifest, progress: Progress
) -> tuple[About, list[PageSection]]:
    from dpdist.evaluation.utility.statistics import statistics_sections

    against = request.source(request.against)
    with opened_cluster(request, against) as cluster:
        sections, report = statistics_sections(store, manifest, against, cluster, progress=progress)
    return about_release(store, manifest, {"real": report}, request.options), sections


@contextmanager
def opened_cluster(request: Request, table: Input) -> Iterator[Executor]:
    """The cluster of a request; by itself: this process for files up to `LARGE`, worker processes above."""
    if request.executor is not None:
        yield request.executor
        return
    mode = request.cluster
    if mode == "auto":
        files = () if table.source is None else find_files(table.source)
        mode = "embedded" if sum(file.size for file in files) > LARGE else "threads"
    if mode not in ("threads", "embedded") and "://" not in mode:
        raise SpecError("--cluster is auto, threads, embedded or the address of a scheduler, such as tcp://host:8786")
    spec = request.spec.cluster if request.spec is not None else None
    if "://" in mode:
        security = spec.security if spec is not None else None
        with open_cluster(mode="address", address=mode, security=security) as cluster:
            yield cluster
        return
    with open_cluster(mode=mode) as cluster:
        yield cluster


def default_output(release: str) -> Path:
    """The folder of an evaluation unless another is given."""
    name = release.rstrip("/").rsplit("/", 1)[-1] or "release"
    return Path(f"evaluation-{name}")
