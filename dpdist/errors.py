"""The errors that dpdist raises on purpose.

A message names the column or the setting, what was expected and what to do about it. It never contains a
private value or a private count; the operator's confidential run record has those.

::

    DpdistError
    ├── SpecError                 the spec or the schema is not valid
    ├── DataError                 the table cannot be used
    │   ├── DataNotFound          no file at the path, or no access to it
    │   ├── UnreadableFile        a file is damaged or not of the declared format
    │   │   └── WrongFormat       its first bytes are those of another format
    │   ├── EmptyTable            the table has no rows
    │   ├── ColumnMismatch        a column is missing, unknown or of the wrong type
    │   └── OutOfDomain           values outside the declared domain under the policy `refuse`
    ├── PrivacyError              the budget, the policy or a check does not allow the release
    │   ├── BudgetExceeded        the data set's budget does not admit the charge
    │   ├── ContractBroken        the contract does not admit the release, or its input
    │   ├── GuaranteeRefused      the data set's policy does not allow this kind of guarantee
    │   ├── AccountingError       no finite or valid guarantee at these parameters
    │   └── CheckFailed           a declared public lower bound was not confirmed; nothing is published
    ├── LedgerError               the ledger cannot be used or refuses the transition
    │   ├── DatasetUnknown        no such data set in the ledger
    │   ├── DatasetExists         the data set is in the ledger already
    │   ├── ReleaseConflict       the release name is taken, by another spec, input or attempt
    │   ├── KeyUnavailable        the attempt's key or the key-encryption key cannot be read
    │   └── LedgerUnavailable     its database does not answer for now; also a ResourceError
    ├── PublicationError          the release cannot be written or read
    │   ├── OutputExists          the output already holds a release
    │   ├── OutputUnwritable      the output cannot be written
    │   ├── VerificationFailed    the release differs from what its manifest says
    │   └── RoundFailed           a client's part of a federated round is missing or wrong; nothing is published
    └── ResourceError             the machine, the cluster or the storage failed; the run can be resumed
        ├── ClusterUnreachable    no scheduler at the address, or no worker
        ├── OutOfMemory           a task needs more memory than its worker has
        ├── OutOfDisk             no space left on the device
        └── StorageUnavailable    the storage does not answer, or refuses for now
"""

from __future__ import annotations

import re
from collections.abc import Collection
from difflib import get_close_matches

_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return a text with escapes in place of what a terminal obeys: controls but tabs and ends of lines, directions."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def meant(written: str, known: Collection[str], *, cutoff: float = 0.6, otherwise: str | None = None) -> str:
    """Return what to add to an error about a name that is not known: one that begins so or is near, else all."""
    longer = [name for name in sorted(known) if len(written) > 2 and name.startswith(written)]
    near = longer or get_close_matches(written, known, 1, cutoff)
    if near and near[0] != written:
        return f"; did you mean {near[0]!r}?"
    return f"; there are {', '.join([*known][:20])}" if otherwise is None else otherwise


class DpdistError(Exception):
    """Base of all errors that dpdist raises on purpose.

    Attributes
    ----------
    exit_code : int
        What the command line exits with.
    """

    exit_code = 1

    def __init__(self, *args: object) -> None:
        super().__init__(*(printable(one) if isinstance(one, str) else one for one in args))


class SpecError(DpdistError):
    """The spec or the schema is not valid."""

    exit_code = 2


class DataError(DpdistError):
    """The table cannot be used."""

    exit_code = 3


class DataNotFound(DataError):
    """No file at the path, or no access to it."""


class UnreadableFile(DataError):
    """A file is damaged or not of the declared format."""


class WrongFormat(UnreadableFile):
    """The first bytes of a file are those of another format: a public fact, whatever its records are."""


class EmptyTable(DataError):
    """The table has no rows."""


class ColumnMismatch(DataError):
    """A column is missing, unknown or of the wrong type."""


class OutOfDomain(DataError):
    """Values outside the declared domain under the policy ``refuse``."""


class PrivacyError(DpdistError):
    """The budget, the policy or a check does not allow the release."""

    exit_code = 4


class BudgetExceeded(PrivacyError):
    """The data set's budget does not admit the charge."""


class GuaranteeRefused(PrivacyError):
    """The data set's policy does not allow this kind of guarantee."""


class ContractBroken(PrivacyError):
    """The contract of the data set does not admit the release, or its input."""


class AccountingError(PrivacyError):
    """No finite or valid guarantee at these parameters."""


class CheckFailed(PrivacyError):
    """A declared public lower bound was not confirmed; nothing is published."""


class LedgerError(DpdistError):
    """The ledger cannot be used, or refuses the transition."""

    exit_code = 5


class DatasetUnknown(LedgerError):
    """No such data set in the ledger."""


class DatasetExists(LedgerError):
    """The data set is in the ledger already."""


class ReleaseConflict(LedgerError):
    """The release name is taken, by another spec, input or attempt."""


class KeyUnavailable(LedgerError):
    """The attempt's key or the key-encryption key cannot be read."""


class PublicationError(DpdistError):
    """The release cannot be written or read."""

    exit_code = 6


class OutputExists(PublicationError):
    """The output already holds a release."""


class OutputUnwritable(PublicationError):
    """The output cannot be written."""


class VerificationFailed(PublicationError):
    """The release differs from what its manifest says."""


class RoundFailed(PublicationError):
    """A client's part of a federated round is missing or wrong; nothing is published."""


class ResourceError(DpdistError):
    """The machine, the cluster or the storage failed; the run can be resumed."""

    exit_code = 7


class ClusterUnreachable(ResourceError):
    """No scheduler at the address, or no worker behind it."""


class OutOfMemory(ResourceError):
    """A task needs more memory than its worker has."""


class OutOfDisk(ResourceError):
    """No space left on the device."""


class StorageUnavailable(ResourceError):
    """The storage does not answer, or refuses for now."""


class LedgerUnavailable(LedgerError, ResourceError):
    """The ledger's database does not answer for now, or refuses the login; the run can be resumed."""

    exit_code = 7
