"""The life of a release: plan, charge, compute, publish, commit. It can be resumed at every step.

This module keeps the order:

1. Whatever can be refused without reading a record is refused first: spec, ledger, output, files, cluster.
2. The charge is reserved before a record is read. Once one may have been, the charge stays: whether a table is refused
   is an answer about its records.
3. Records are read and noise is drawn only after the ledger has recorded that they will be.
4. The manifest is stored in the work folder, the ledger commits this attempt and destroys its key, and only then is the
   manifest written to the output. A run that dies in between is finished by resuming it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, get_args
from uuid import uuid4

from dpdist.cluster.executor import Executor
from dpdist.data.inputs import Input, input_of
from dpdist.data.records import Opened
from dpdist.errors import (
    DataError,
    DataNotFound,
    DpdistError,
    LedgerError,
    OutOfMemory,
    OutputExists,
    ReleaseConflict,
    ResourceError,
    SpecError,
    WrongFormat,
)
from dpdist.families.base.attempt import Attempt, Progress, silent
from dpdist.families.base.family import Stage
from dpdist.families.base.owners import refuse_tables_of_others
from dpdist.families.base.registry import family_of, make_plan
from dpdist.ledger import Books
from dpdist.ledger.keys import PUBLIC_INPUT, WITH_TEST_KEY, KeyRef, require_test_keys
from dpdist.ledger.records import event_json
from dpdist.ledger.signing import load_signing_key
from dpdist.lifecycle.conformity import keep_apart, opened_executor, refuse
from dpdist.lifecycle.history import ERROR_FILE, sweep_before, write_record
from dpdist.lifecycle.lineage import Lineage
from dpdist.lifecycle.publication import Outcome, Publication
from dpdist.privacy.event import covers
from dpdist.publish.manifest import require_vacant
from dpdist.spec.contract import kept_contract
from dpdist.storage.store import Store

if TYPE_CHECKING:
    from dpdist.spec.release import ReleaseSpec
    from dpdist.spec.schema import Schema

log = logging.getLogger("dpdist")
log.addHandler(logging.NullHandler())  # else Python prints errors to the terminal

AttemptMode = Literal["new", "resume", "once", "replace"]
"""What a run does about the attempts of its release that the ledger knows.

``new`` begins, and is refused where an attempt is open. ``resume`` continues the one that was interrupted: the same
bytes, no new charge. ``once`` begins, or resumes, or finds the release published: it is safe to repeat. ``replace``
gives an interrupted attempt up, whose charge stays, and charges a new one.
"""

KEY_FILE = "key.json"

CHARGE_STAYS = (
    "The charge stays spent, because what a table is refused for is an answer about its records. Whoever keeps the "
    "table can check it without a charge: dpdist contract check"
)


@dataclass(kw_only=True, eq=False, repr=False)
class Run:
    """One run of a release: opened, then its steps in order.

    Steps can be repeated: each finds what it stored, and noise is a pure function of the attempt's key.
    """

    spec: ReleaseSpec = field(kw_only=False)
    attempt: AttemptMode = "new"
    fixed_key: str | None = field(default=None, repr=False)  # 64 hexadecimal digits, for tests: NOT PRIVATE
    progress: Progress = silent  # called with (stage, finished steps, all steps)
    announce: Callable[[str], None] = lambda text: None  # called with lines for people
    input: Input | None = None  # what is read; by default the files that the spec names
    executor: Executor | None = None  # where the stages compute, and what stays open; by default the spec's
    outcome: Outcome | None = field(default=None, init=False)  # what was published, once it is
    resumed: bool = field(default=False, init=False)  # whether it continues an attempt; known when it is open

    def __post_init__(self) -> None:
        if self.attempt not in get_args(AttemptMode):
            raise SpecError(f"attempt: expected one of {', '.join(get_args(AttemptMode))}, got {self.attempt!r}")
        self.plan = make_plan(self.spec)
        self.plan.rehearse_hooks()
        self.resumed = self.attempt == "resume"
        self._input = self.input or input_of(self.spec)
        self._identity = str(uuid4())
        self._logged: dict[str, Any] = {"release": self.spec.name, "dataset": self.spec.dataset}
        self._stack = ExitStack()
        self._lineage = Lineage(self.plan)

    def __enter__(self) -> Run:
        with ExitStack() as stack:
            stack.push(self._log_error)
            self._open(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    @property
    def steps(self) -> dict[str, Callable[[], None]]:
        """The steps of the release by name, in order; none if a resumed release is already committed."""
        if self.outcome is not None:
            return {}
        family = {stage.name: partial(self._stage, stage) for stage in family_of(self.spec).stages(self.plan)}
        return {"charge": self._charge, **family, "publish": self._publish}

    def finish(self) -> Outcome:
        """Take all steps; return what was published."""
        for step in self.steps.values():
            step()
        if self.outcome is None:
            raise LedgerError(f"release {self.spec.name!r} ended without an outcome: resume it")
        return self.outcome

    def _open(self, stack: ExitStack) -> None:
        """Make the checks that need no charge, and open what the steps need."""
        spec = self.spec
        refuse(self.plan)
        self._output = Store(spec.output.path, spec.output.storage.options)
        self._work = Store(spec.work, spec.output.storage.options if spec.work.startswith("s3") else None)
        signing_key = load_signing_key(spec.output.signing_key)
        self._ledger = Books.open(spec.ledger, create=False)
        stack.callback(self._ledger.close)
        self._publication = Publication(
            spec, self._ledger, self._output, self._work, signing_key, self._bound, self._input
        )
        if self.attempt == "once":
            self.resumed = self._ledger.find(spec.dataset, spec.name) is not None
        if self.resumed:
            self.outcome = self._publication.committed()
            if self.outcome is not None:
                return
        self._contract = kept_contract(
            self._ledger.dataset(spec.dataset).contract, spec, name=spec.dataset, event=self.plan.event
        )
        if self.fixed_key is not None and self._contract is not None:
            require_test_keys()
        refuse_tables_of_others(self._ledger, spec, self._input.source, dataset=spec.dataset)
        keep_apart(self._input.source, self._output, self._work, self._ledger)
        if signing_key is None:
            self._ledger.signing_key(spec.dataset)  # KeyUnavailable if it cannot be opened
        require_vacant(self._output)
        self._fingerprint = self._input.fingerprint
        digest_of = family_of(spec).public_tables
        self._public_tables = None if digest_of is None else digest_of(spec)
        if not self.resumed:
            self._ledger.rehearse(**self._reservation)  # a refusal here says nothing of the table's content
        self._table = self._opened_table()
        self._output.check_writable()
        self._work.make_private()
        self._work.check_writable()
        sweep_before(self._ledger, self._output, self._work)
        self._executor = self.executor or stack.enter_context(opened_executor(spec, self._table))
        if self._executor.dashboard:
            self.announce(f"dashboard  {self._executor.dashboard}")

    def _opened_table(self) -> Opened:
        """The table.

        Where the spec says which line of a CSV file is looked at, a refusal has read a record, and is charged. The
        first line of a file, taken for the header, the format that its first bytes show, and the columns of a Parquet
        file are public.
        """
        try:
            return self._open_by(self.spec.table)
        except DataError as error:
            is_public = self.spec.data.csv.begins_with_header or isinstance(error, DataNotFound | WrongFormat)
            if is_public or self._contract is not None or self.plan.event is None:
                raise
            if not self.resumed:
                self._ledger.mark_drawing(self._ledger.reserve(**self._reservation))
            raise type(error)(f"{error}\n{CHARGE_STAYS}") from None

    def _open_by(self, schema: Schema) -> Opened:
        """The table as read by a schema of some or all attributes of the spec."""
        spec, checked = self.spec, self._contract is not None or schema is not self.spec.table
        return self._input.open(schema, partitions=spec.cluster.partitions, checked=checked, beside=spec.column_beside)

    def _log(self, message: str, level: int = logging.INFO, **fields: str) -> None:
        """A line of the structured log."""
        log.log(level, message, extra={**self._logged, **fields})

    def _log_error(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is None:
            return
        self._log("run ended early", logging.ERROR, error=kind.__name__)
        if error is not None:
            self._lineage.ended(error)
        if isinstance(error, Exception) and not isinstance(error, DpdistError) and hasattr(self, "_shared"):
            # Write an unforeseen error into the attempt's folder: confidential, and there after a pod has gone
            with suppress(DpdistError):  # it may be the storage that failed
                self._shared.work.write_bytes(ERROR_FILE, "".join(traceback.format_exception(error)).encode())
                error.report = self._shared.work.address(ERROR_FILE)  # type: ignore[attr-defined]

    @property
    def _bound(self) -> str:
        """What binds an attempt, apart from its input, public tables and their store: the spec, and whether its key
        is a test key.
        """
        if self.fixed_key is None:
            return self.spec.fingerprint
        return f"{self.spec.fingerprint}{WITH_TEST_KEY}{hashlib.sha256(self.fixed_key.encode()).hexdigest()}"

    @property
    def _wholly_bound(self) -> str:
        """What binds an attempt, apart from its input.

        Noise that is drawn again for other public tables would be that of other statistics, too. So would noise for
        a table that another store serves, whose word alone says that it is the same one.
        """
        public = [self._public_tables, self.spec.data.storage.options]
        if not any(public):
            return self._bound
        digest = hashlib.sha256(json.dumps(public, sort_keys=True).encode()).hexdigest()
        return f"{self._bound}{PUBLIC_INPUT}{digest[:32]}"

    @property
    def _reservation(self) -> dict[str, Any]:
        """The arguments of the reservation."""
        return {
            "dataset": self.spec.dataset,
            "release": self.spec.name,
            "event": self.plan.event,
            "guarantee": self.plan.kind,
            "new_attempt": self.attempt == "replace",
            "attempt": self._identity,  # a repeated call reserves the same attempt
            "spec_hash": self._wholly_bound,
            "input_fingerprint": self._fingerprint,
            "contract": self._contract,
        }

    def _charge(self) -> None:
        """Reserve the charge, or resume the attempt that was interrupted."""
        spec, ledger = self.spec, self._ledger
        if self.resumed:
            attempt = ledger.resume(
                dataset=spec.dataset,
                release=spec.name,
                spec_hash=self._wholly_bound,
                input_fingerprint=self._fingerprint,
            )
            if not covers(event_json(attempt.event), event_json(self.plan.event)):
                raise ReleaseConflict(
                    f"release {spec.name!r} was charged for a plan that costs less, or is another one, most likely by "
                    "another version of dpdist: "
                    "resume it with that version, or start a new attempt (--new-attempt, in Python attempt='replace')"
                )
        else:
            attempt = ledger.reserve(**self._reservation)
        self._reserved = attempt
        try:
            self._publication.claim(attempt)
        except OutputExists:
            self._give_back()
            raise
        self._logged["attempt"] = attempt.id
        if self.spec.cluster.partitions is not None:  # else their number follows from that of the records
            self._logged["partitions"] = self.spec.cluster.partitions
        self._log("attempt resumed" if self.resumed else "attempt reserved")
        self._lineage.begun(attempt.id, self._contract)
        self._executor.attempt = attempt.id
        self.announce(f"attempt    {attempt.id}")
        work = self._work / attempt.id
        work.make_private()
        key = work.address(KEY_FILE)
        self._shared = Attempt(
            spec=spec,
            plan=self.plan,
            table=self._table,
            executor=self._executor,
            key=KeyRef.fixed(self.fixed_key) if self.fixed_key else ledger.share_key(attempt, key),
            id=attempt.id,
            work=work,
            output=self._output,
            progress=self.progress,
            before_noise=partial(ledger.mark_drawing, attempt),
            contract=self._contract,
            public_tables=self._public_tables,
            open=self._open_by,
        )

    def _give_back(self) -> None:
        """Give the charge back, unless a record may have been read; a key file may be left."""
        with suppress(LedgerError, ResourceError):
            self._ledger.void(self._reserved)

    def _stage(self, stage: Stage[Any, Any]) -> None:
        """Run a stage of the family; give the charge back if it ends before a record was read."""
        try:
            self._shared.run(stage)
        except MemoryError:
            raise OutOfMemory(
                "the process of the run itself ran out of memory: give it more; the release can be resumed"
            ) from None
        except DpdistError as error:
            if isinstance(error, ResourceError):
                raise
            with suppress(DpdistError):  # a storage that refused the step may refuse the record, too
                if self._ledger.attempt(self._reserved).manifest_sha256 is None:  # else another run has written it
                    # only the operator may see by how much a check failed
                    write_record(self._shared, self._reserved, refused=type(error).__name__)
            self._publication.give_free(self._reserved)
            self._give_back()
            if isinstance(error, DataError) and self.plan.event is not None:
                raise type(error)(f"{error}\n{CHARGE_STAYS}") from None
            raise

    def _publish(self) -> None:
        """Publish; when repeated after a failure of the storage, find what the ledger committed."""
        self.progress("publishing", 0, 1)
        try:
            self.outcome = self._publication.publish(self._shared, self._reserved)
        except ReleaseConflict:
            self._publication.give_free(self._reserved)
            raise
        self._lineage.released(self.outcome)
        self.progress("publishing", 1, 1)


def run_release(spec: ReleaseSpec, **options: Any) -> Outcome:
    """Run a release from its spec to its manifest; options as for `Run`. Raises DpdistError: nothing is published, the
    ledger is consistent, and unless the message says otherwise the attempt can be resumed.
    """
    with Run(spec, **options) as run:
        return run.finish()
