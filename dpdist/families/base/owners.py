"""Whose files a release reads: those of a data set with a contract are read under its name, and as nothing else."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dpdist.data.inputs import source_of
from dpdist.data.source import FoundFile, TableSource, find_files, is_input, would_find
from dpdist.errors import ContractBroken, DataNotFound, ResourceError
from dpdist.ledger import Books
from dpdist.spec.contract import Contract
from dpdist.spec.release import ReleaseSpec
from dpdist.storage.files import is_local


def refuse_tables_of_others(ledger: Books, spec: ReleaseSpec, source: TableSource | None, *, dataset: str) -> None:
    """Refuse files that a contract in the ledger names, unless it is that of the data set.

    As `model.prior` they are refused whoever has the contract: such a table is read without a charge. Copies are not
    recognised. `source` has the files that the release reads, `dataset` is charged. Raises ContractBroken; DataError:
    the files cannot be found.
    """
    public = None
    if spec.public_tables:
        public = TableSource(spec.public_tables, storage_options=spec.data.storage.options)
    for owner in ledger.datasets():
        text = ledger.dataset(owner).contract
        contract = None if text is None else Contract.from_text(text)
        if contract is None or contract.data.clients:
            continue
        own = source_of(contract.data, paths=(*contract.data.paths, *contract.data.later))
        if source is not None and owner != dataset and (path := shared_file(source, own)):
            raise ContractBroken(
                f"dataset: {path} belongs to data set {owner!r}, which has a contract and caps for it, and the spec "
                f"names {dataset!r}: write `dataset: {owner}`"
            )
        if public is not None and (path := shared_file(public, own)):
            raise ContractBroken(
                f"model.prior: {path} belongs to data set {owner!r}, which has a contract and caps for it: give a "
                "table that is public"
            )


def shared_file(source: TableSource, other: TableSource) -> str | None:
    """The first file of a table that is one of another table as well: by its address, as a hard link, or in a store as
    an object with the same content (ETag and size). None if none is. Raises DataError: the files of the first cannot be
    found.
    """
    identities: set[object] = set()
    for path in other.paths:
        with suppress(DataNotFound, ResourceError):  # a later file that is not there yet
            identities.update(*map(identities_of, find_files(replace(other, paths=(path,)))))
    for file in find_files(source):
        with suppress(DataNotFound, ResourceError):
            if not identities.isdisjoint(identities_of(file)):
                return file.path
            if is_input(other, Path(file.path)) if is_local(file.path) else would_find(other, file.path):
                return file.path
    return None


def identities_of(file: FoundFile) -> set[object]:
    """What all names of a file have in common."""
    if is_local(file.path):
        found = os.stat(file.path)
        return {(found.st_dev, found.st_ino)}
    return {file.path, (file.size, file.stamp)}
