"""An evaluation from the command line's request to its page: open, look, judge, write."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpdist.cluster.executor import Executor
from dpdist.cluster.opening import open_cluster
from dpdist.data.inputs import Files, Input, table_source
from dpdist.data.released import ReleasedTable
from dpdist.data.report import RowReport
from dpdist.data.source import TableSource, find_files
from dpdist.errors import DataError, DataNotFound, DpdistError, SpecError
from dpdist.evaluation.inputs import EvaluatedTables, open_inputs, weight_of
from dpdist.evaluation.page.files import Pages, is_remote, pages_at
from dpdist.evaluation.page.page import WORDS, PageSection
from dpdist.evaluation.report import (
    about_release,
    check_output,
    record_sections,
    require_packages,
    vector_sections,
    write,
)
from dpdist.evaluation.request import Request, Table
from dpdist.families.base.attempt import Progress, silent
from dpdist.families.base.family import AsReleased, LinkedRows
from dpdist.families.base.registry import FAMILIES
from dpdist.publish.manifest import Manifest
from dpdist.publish.verify import open_release
from dpdist.spec.data import ParentTable
from dpdist.spec.release import DEFAULT_LEDGER, ClusterSpec
from dpdist.spec.unit import UnitSpec

if TYPE_CHECKING:
    from dpdist.evaluation.publishable import FiguresPublication
    from dpdist.spec.release import ReleaseSpec

LARGE = 256 << 20  # bytes of files from which on worker processes read them, unless a cluster is named


Sections = tuple[list[PageSection], dict[str, RowReport]]
"""The sections of a page, and what the policies met in each private table."""

_LABEL = max(map(len, WORDS.values())) + 2  # columns of a verdict in a word


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
        """The verdicts and what was written, for people: sections with the same verdict share a line."""
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
    Raises DpdistError: the release, the table or the hold-out cannot be read, the table does not fit the release's
    schema, or the folder cannot be written; see `dpdist.errors`.

    Parameters
    ----------
    progress : callable
        Called with (stage, finished steps, all steps).
    """
    require_packages()
    store, manifest = open_release(request.release, request.public_key, storage_options=request.storage_options)
    if not request.against and request.spec is None:
        raise SpecError("there is nothing to compare with: give --against PATH, or --spec SPEC of the release")
    pages = pages_of(request)
    check_output(pages, store)
    statistics, linked = manifest.format.layout == "statistics", linked_rows(manifest, request.spec)
    family = FAMILIES.get(manifest.kind)
    # how real records are read and made like released rows that are no records
    real = None if family is None or family.as_released is None else family.as_released(manifest, request.spec)
    if request.publish is not None and (statistics or real is not None or linked is not None):
        raise SpecError("--publish: there are such figures for released records only, and none for linked tables")
    if linked is None and (request.parents or request.holdout_parents):
        raise SpecError("--parents: only a release of two linked tables (`kind: relational`) has parents")
    released = ReleasedTable(store, manifest)
    if linked is not None:
        sections, reports = _linked(request, released, linked, progress)
    elif statistics:
        sections, reports = _statistics(request, released, progress)
    else:
        sections, reports = _records(request, released, real, progress)
    page, figures = write(pages, about_release(store, manifest, reports, request), sections, manifest)
    return Evaluated(
        page=page,
        figures=figures,
        verdicts=tuple({"name": s.name, "title": s.title, "state": s.state, "verdict": s.verdict} for s in sections),
    )


def page_of_evaluation(request: Request) -> str:
    """Evaluate a release for somebody who starts it without the right to read what is found; return the page's address.

    What the table or the hold-out is refused for, and any error that is unforeseen, is an answer about their records:
    it stands on the page, and this ends as if there were none.
    Raises DpdistError: as `run_evaluation`, but for what depends on records.
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
    return write(pages_of(request), about_release(store, manifest, {}, request), [ended], manifest)[0]


def linked_rows(manifest: Manifest, spec: ReleaseSpec | None) -> LinkedRows | None:
    """How released rows are parents with members; None where they are not. Raises SpecError: another spec."""
    family = FAMILIES.get(manifest.kind)
    return None if family is None or family.linked is None else family.linked(manifest, spec)


def tables_of(request: Request, attributes: tuple[str, ...] = ()) -> EvaluatedTables:
    """The tables of a request; of linked tables, `attributes` are those that the parents have."""
    spec = request.spec
    parent = None if spec is None else spec.data.parent
    own = request.parents or (() if parent is None else parent.paths)

    def source(table: Table, parents: tuple[str, ...] = ()) -> Input:
        if not isinstance(table, tuple):
            return table
        above = ParentTable(path=parents, attributes=attributes) if parents and attributes else None
        paths = (*table, *(path for path in parents if above is not None and path not in table))
        if spec is None:
            return Files(
                TableSource(paths, extra_columns="ignore", parent=above, storage_options=request.storage_options)
            )
        options = spec.data.storage.options or request.storage_options
        whole = table_source(spec)
        return Files(replace(whole, paths=paths, parent=above, extra_columns="ignore", storage_options=options))

    return EvaluatedTables(
        source(request.against or (spec.data.paths if spec is not None else ()), own),
        source(request.holdout, request.holdout_parents or own) if request.holdout else None,
        source(spec.data.paths) if spec is not None else None,
    )


def pages_of(request: Request) -> Pages:
    """Where the page is written. Raises SpecError: in a bucket that nobody calls confidential."""
    name = request.release.rstrip("/").rsplit("/", 1)[-1] or "release"
    output = request.output or Path(f"evaluation-{name}")
    if not is_remote(output):
        return pages_at(output)
    if not request.confidential:
        raise SpecError(
            f"--output {output}: the page is computed from private records without noise. Add --confidential if "
            "only readers of the real table can read this bucket, else choose another --output"
        )
    return pages_at(
        output, request.spec.output.storage.options if request.spec is not None else request.storage_options
    )


def _linked(request: Request, released: ReleasedTable, linked: LinkedRows, progress: Progress) -> Sections:
    from dpdist.evaluation.linked.sections import linked_sections, open_linked

    tables = tables_of(request, tuple(linked.read.names[i] for i in linked.parent))
    with opened_cluster(request, tables.against) as cluster:
        inputs = open_linked(released, linked, tables, executor=cluster, seed=request.seed, progress=progress)
        return linked_sections(inputs, request), inputs.reports


def _records(request: Request, released: ReleasedTable, real: AsReleased | None, progress: Progress) -> Sections:
    tables, unit = tables_of(request), None
    if request.publish is not None:
        from dpdist.evaluation.publishable import refuse_another_reading

        refuse_another_reading(released.manifest, request.spec, tables.against)
        if weight_of(released.manifest) is not None:
            raise SpecError("--publish: such figures count each record once, and this release counts weights")
        unit = _unit(released.manifest)
    with opened_cluster(request, tables.against) as cluster:
        options: dict[str, Any] = {"executor": cluster, "seed": request.seed, "progress": progress}
        if real is not None:
            inputs = open_inputs(released, tables, real=real, unit=unit, **options)
            return vector_sections(inputs, request), inputs.reports
        with publishing(request, released.manifest) as publication:
            charge = None if publication is None else publication.reserve
            inputs = open_inputs(released, tables, unit=unit, charge=charge, **options)
            key = None if publication is None else publication.bounding_key()
            looked = inputs if key is None else inputs.bounded(key)
            return record_sections(looked, request, publication), inputs.reports


def _unit(manifest: Manifest) -> UnitSpec | None:
    """The unit that a release protects."""
    unit = manifest.spec.get("unit")
    return None if unit is None else UnitSpec.model_validate(unit)


@contextmanager
def publishing(request: Request, manifest: Manifest) -> Iterator[FiguresPublication | None]:
    """The publishable figures of a request, not charged as yet; None if none are asked for."""
    if request.publish is None:
        yield None
        return
    from dpdist.evaluation.publishable import FiguresPlan, FiguresPublication
    from dpdist.ledger import Books

    plan = FiguresPlan(request.publish, _unit(manifest))
    named = DEFAULT_LEDGER if request.spec is None else request.spec.ledger
    with closing(Books.open(request.ledger or os.environ.get("DPDIST_LEDGER") or named, create=False)) as ledger:
        yield FiguresPublication(ledger, manifest, plan, pages_of(request), request.seed)


def _statistics(request: Request, released: ReleasedTable, progress: Progress) -> Sections:
    from dpdist.evaluation.utility.statistics import statistics_sections

    against = tables_of(request).against
    with opened_cluster(request, against) as cluster:
        sections, report = statistics_sections(released.store, released.manifest, against, cluster, progress=progress)
    return sections, {"real": report}


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
        where = ClusterSpec(mode="address", address=mode, security=spec.security if spec is not None else None)
    else:
        where = ClusterSpec(mode="threads" if mode == "threads" else "embedded")
    with open_cluster(where) as cluster:
        yield cluster
