"""Commands for readers of a release: verify, draw, tabulate, infer."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dpdist.cli.ledger import known_to_default
from dpdist.cli.shared import AsJson, Endpoint, PublicKey, guarantee_lines, option, say, show_json, storage_options
from dpdist.errors import DataNotFound, OutputExists, SpecError
from dpdist.privacy.formatting import folded, number_of, upwards

if TYPE_CHECKING:
    import pyarrow as pa
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from dpdist.families.base.plan import Plan
    from dpdist.inference.published import Published
    from dpdist.inference.records import Recomputed
    from dpdist.inference.series import Series
    from dpdist.publish.account import Total
    from dpdist.publish.verify import VerifyReport

ReleasePlace = Annotated[str, typer.Argument(metavar="RELEASE", help="Folder or s3:// prefix of a release.")]
Where = Annotated[
    str | None, typer.Option(metavar="CONDITION", help='Which records, such as "state = 8 and age >= 65".')
]
Out = Annotated[Path | None, typer.Option(help="Parquet file to write; default: the first rows are printed.")]
_SHOWN = 20
_MOST_MADE_UP = 100_000  # records of a made-up table


@dataclass(frozen=True)
class Place:
    """A release, and how it is reached and checked."""

    release: str
    key: Any  # Ed25519PublicKey or None
    options: dict[str, Any]

    def open(self) -> Published:
        """What is published there."""
        from dpdist.inference.published import Published

        return Published.open(self.release, self.key, storage_options=self.options)

    def series(self) -> Series | None:
        """The releases of several periods that are there; None where it is one release."""
        from dpdist.inference.series import Series
        from dpdist.model.earlier import is_pattern
        from dpdist.publish.manifest import MANIFEST
        from dpdist.storage.store import Store

        if is_pattern(self.release) or not Store(self.release, self.options).exists(MANIFEST):
            with suppress(*() if is_pattern(self.release) else (DataNotFound,)):
                return Series.open(self.release, self.key, storage_options=self.options)
        return None


def reads(command: Callable[..., None]) -> Callable[..., None]:
    """A command about a release: its place, the first parameter, is made of an argument and the options of readers."""

    def call(release: Any, public_key: Any, endpoint_url: Any, **given: Any) -> None:
        from dpdist.api.given import key_of

        command(Place(release, key_of(public_key), storage_options(endpoint_url)), **given)

    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    call.__name__, call.__doc__ = command.__name__, command.__doc__
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("release", inspect.Parameter.KEYWORD_ONLY, annotation=ReleasePlace),
            *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own),
            option("public_key", PublicKey),
            option("endpoint_url", Endpoint),
        ]
    )
    return call


@reads
def verify(
    place: Any,
    ledger: Annotated[
        str | None,
        typer.Option(
            help="SQLAlchemy URL or SQLite file of the ledger: also compare the release with the account. Default: "
            "dpdist-ledger.db of this folder, if it is there and knows the release."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the release that is expected.")] = None,
    attempt: Annotated[str | None, typer.Option(help="Its attempt, or at least 8 characters of its beginning.")] = None,
    required: Annotated[
        bool,
        typer.Option(
            "--require-signature",
            help="End with 1 unless a signature was checked (--public-key, --ledger) and the manifest lists all files.",
        ),
    ] = False,
    recompute: Annotated[
        bool,
        typer.Option(
            "--recompute", help="Also make all records again from the published model, and name changed ones."
        ),
    ] = False,
    total: Annotated[
        Path | None, typer.Option(help="What all releases of the data set tell together (`dpdist ledger total`).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a release: its files by the manifest, its guarantee by the events, and its signature."""
    from dpdist.api.calls import verify as call

    release, options = place.release, place.options
    again = None
    if recompute:
        from dpdist.inference.records import recompute as make_again

        again = make_again(release, place.key, storage_options=options)
    found = ledger if ledger is not None or required else known_to_default(release, options)
    report = call(release, public_key=place.key, ledger=found, name=name, attempt=attempt, storage_options=options)
    if again is not None and again.evidence is None and (place.key is not None or ledger is not None):
        from dpdist.model.earlier import repeat_evidence

        evidence, missing = repeat_evidence(release, report.manifest_sha256, options)
        again = replace(again, evidence=evidence, missing=missing)
    together = None if total is None else _total(total, place.key, report)
    of_folder = {} if ledger is not None or found is None else {"ledger": found}
    if as_json:
        made: dict[str, Any] = of_folder | ({} if again is None else {"recomputed": asdict(again)})
        made |= {} if together is None else {"total": asdict(together)}
        show_json(report.to_json() | made)
    else:
        if of_folder:
            say(f"ledger      {found}, which knows the release; if it came with the release, it proves nothing")
        _explain(release, report, again)
        if together is not None:
            say(folded(f"Total       {together.sentence}"))
    if required:
        _require_signature(release, report)


def _require_signature(release: str, report: VerifyReport) -> None:
    if report.signature == "valid" and not report.unlisted and report.private:
        return
    why = "there are files that it does not list" if report.unlisted else "it was made with a fixed test key"
    why = "no signature was checked" if report.signature != "valid" else why
    say(f"dpdist: --require-signature: {release}: {why}", err=True)
    raise typer.Exit(1)


def _total(path: Path, key: Ed25519PublicKey | None, report: VerifyReport) -> Total:
    from dpdist.publish.account import Total

    if key is None:
        raise SpecError("--total: give the public key of the publisher (--public-key)")
    return Total.read(path, key, dataset=report.dataset, manifest_sha256=report.manifest_sha256)


def _explain(release: str, report: VerifyReport, again: Recomputed | None) -> None:
    parts, account = number_of(report.parts, "part"), report.account
    verdict = report.verdict if account is None else "verified by the account"
    if report.signature == "foreign":
        verdict += ", but signed by a key that is not the data set's"
    lines = [] if report.private else [f"{release}: NOT PRIVATE, made with a fixed test key: its noise can be computed"]
    lines += [
        f"{release}: {verdict}, {report.counted} in {parts}",
        f"Release     {report.identity}",
        f"Signature   {report.signed}",
        *(f"WARNING     {caution}" for caution in report.cautions),
    ]
    if account is not None:
        lines.append(f"Account     {account.explain()}")
    if again is not None:
        other = f"; the bytes of {number_of(len(again.rewritten), 'part')} are another pyarrow's"
        other = other if again.rewritten else ""
        if again.missing:
            other += f"; not the evidence: {', '.join(again.missing)} not found"
        elif again.evidence is None:
            other += "; not the evidence: its places are opened only with --public-key or --ledger"
        elif again.evidence:
            other += f"; and what {number_of(again.evidence, 'earlier release')} say of it"
        lines.append(f"Recomputed  all {again.records:,} records from the model and the public key{other}")
    lines += guarantee_lines(report.guarantees)
    if report.epsilon is not None:
        lines.append(f"Events      epsilon {upwards(report.epsilon)}, recomputed from the events in the manifest")
    if report.unlisted:
        names = [name if name.isprintable() else repr(name) for name in report.unlisted[:10]]  # whoever made them
        shown = ", ".join(names) + (", ..." if len(report.unlisted) > 10 else "")
        lines.append(
            f"WARNING     {number_of(len(report.unlisted), 'file')} beside it that the manifest does not name and that "
            f"were not checked: {shown}"
        )
    say(folded("\n".join(lines)))


@reads
def draw(
    place: Any,
    records: Annotated[int, typer.Option(min=1, max=100_000_000, help="Number of records.")] = 1000,
    where: Where = None,
    out: Out = None,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other records.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Draw new records from the model of a release.

    Any number of them, also under a condition; it costs nothing.
    """
    from dpdist.inference.records import draw_table

    drawn = draw_table(place.open(), records, where=where, seed=seed)
    if drawn.note:
        say(drawn.note, err=True)
    _write(drawn.table, out, as_json)


@reads
def export(
    place: Any,
    to: Annotated[Literal["csv", "dta", "sav", "rds"], typer.Option(help="csv, dta (Stata), sav (SPSS) or rds (R).")],
    out: Annotated[Path | None, typer.Option(help="File to write; default: the name of the release.")] = None,
) -> None:
    """Write a release as one file, with its labels."""
    from dpdist.api.calls import open_release
    from dpdist.api.export import export as write

    release = open_release(place.release, public_key=place.key, storage_options=place.options)
    say(str(write(release, to, out)))


@reads
def tabulate(
    place: Any,
    attributes: Annotated[list[str], typer.Argument(metavar="ATTRIBUTE...", help="Attributes of the table.")],
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Print the counts of a table's cells, with intervals.

    The counts are those of the model, with standard errors and 95 % intervals.
    """
    from dpdist.inference.answers import tabulate as table_of

    _write(table_of(place.open(), attributes), out, as_json)


@reads
def infer(
    place: Any,
    questions: Annotated[
        list[str],
        typer.Argument(
            metavar="QUESTION...",
            help='"count where state = 8", "mean age", "quantile 0.9 age", "share where ... minus share where ...", '
            '"regression income on age, sex = 1"; of a series also "change of share where ... between 2026-03 and '
            '2026-04", sum, average or trend of ... from ... to ..., moving average of ... over 3',
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Answer questions about the private table, with 95 % intervals.

    RELEASE may be a series: a folder of releases, or a pattern such as 'releases/2026-??'.
    """
    from dpdist.inference.comparisons import answer
    from dpdist.inference.series import told

    series = place.series()
    if series is None:
        opened = place.open()
        answers = [[item] for question in questions for item in answer(opened, question)]
    else:
        answers = [series.answer(question) for question in questions]
    if as_json:
        show_json([item.to_json() for found in answers for item in found])
        return
    for found in answers:
        say(told(found))


@reads
def replicates(
    place: Any,
    out: Annotated[Path, typer.Option(help="File to write: .csv, or else Parquet.")],
    number: Annotated[int, typer.Option(min=20, max=1_000, help="Number of replicates.")] = 80,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, other replicates.")] = 0,
) -> None:
    """Write the released records with replicate weights.

    For R's survey package, Stata or samplics; it costs nothing.
    """
    from dpdist.inference.replicates import make_replicates

    made = make_replicates(place.open(), number, seed=seed)
    _write(made.to_arrow(), out, False)
    say(f"weights in {made.prefix}weight, replicates in {made.prefix}replicate_1 to {made.prefix}replicate_{number}")
    say(f"Fay's coefficient {made.fay!r}, mse about the full sample")


def audit_coverage(plan: Plan, runs: int, as_json: bool) -> None:
    """How often intervals cover, by releases of made-up tables whose law is known."""
    from dpdist.inference.coverage import against_law

    records = min(max(plan.spec.data.minimum_records, 1_000), _MOST_MADE_UP)
    found = against_law(plan, records=records, runs=runs)
    if as_json:
        show_json({of: [asdict(one) for one in covered] for of, covered in found.items()})
        return
    say(f"{'nominal 95 % intervals':<24}{'of':<8}{'number':>8}{'covered':>9}{'naive':>8}{'length':>8}")
    for of, covered in found.items():
        for one in covered:
            line = f"{one.number:>8,}{one.coverage:>9.1%}{one.naive:>8.1%}{one.width:>8.2f}"
            say(f"{one.of:<24}{of:<8}{line}")


def _write(table: pa.Table, out: Path | None, as_json: bool) -> None:
    if out is not None:
        import pyarrow.parquet as pq

        from dpdist.publish.parts import write_csv
        from dpdist.storage.files import translated

        if out.exists():
            raise OutputExists(f"{out} exists: choose another --out")
        with translated(str(out), writing=True):
            out.parent.mkdir(parents=True, exist_ok=True)
        if out.suffix == ".csv":
            write_csv(table, out)
        else:
            pq.write_table(table, out)
        say(f"{out}: {table.num_rows:,} rows")
    elif as_json:
        show_json(table.to_pylist())
    else:
        rows = [table.column_names, *(row.values() for row in table.slice(0, _SHOWN).to_pylist())]
        lines = [[f"{v:.6g}" if isinstance(v, float) else re.sub(r"[\t\n]", " ", str(v)) for v in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)] if sys.stdout.isatty() else None
        for line in lines:  # in columns for people, between tabs for programs
            say("  ".join(map(str.ljust, line, widths)).rstrip() if widths else "\t".join(line))
        if table.num_rows > _SHOWN:
            say(f"... {table.num_rows - _SHOWN:,} more; --out FILE writes them all")
