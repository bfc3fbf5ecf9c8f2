"""Released records as codes: the way back from what a reader finds in the parts of a release."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpdist.data.records import BATCH_ROWS, EncodedBatch, Partitions
from dpdist.data.report import RowReport
from dpdist.errors import VerificationFailed
from dpdist.privacy.arrays import Codes
from dpdist.publish.columns import Column, columns
from dpdist.publish.manifest import Manifest
from dpdist.publish.part_format import PartFormat, PartRecord
from dpdist.publish.verify import part_batches
from dpdist.spec.attribute import Attribute
from dpdist.spec.schema import Schema

if TYPE_CHECKING:
    from dpdist.storage.store import Store


@dataclass(frozen=True, eq=False)
class Decoder:
    """From the values of one released column to the codes of its attribute.

    Two codes that are written alike (two values with one label) cannot be distinguished: both become the first of them,
    in released and, by `merged`, in real records.
    """

    column: Column
    attribute: Attribute

    @cached_property
    def _known(self) -> dict[str, int]:
        """The first code of each text."""
        return {text: code for code, text in reversed(list(enumerate(self.column.texts or ())))}

    def merged(self, codes: np.ndarray) -> np.ndarray:
        """Codes of real records, those that are written alike merged."""
        texts = self.column.texts or ()
        return (
            codes if len(self._known) == len(texts) else np.array([self._known[t] for t in texts], codes.dtype)[codes]
        )

    def codes(self, values: pa.Array) -> np.ndarray:
        """Codes of released values. Raises VerificationFailed: a value is not of the declared domain."""
        column = self.column
        if pa.types.is_floating(values.type):
            if self.attribute.is_continuous:
                return np.asarray(values.to_numpy(zero_copy_only=False), np.float64)
            codes = self._of_numbers(values)
        elif column.texts is not None:
            dictionary = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
            table = np.array([self._known.get(text, -1) for text in dictionary.dictionary.to_pylist()], np.int64)
            codes = table[dictionary.indices.to_numpy(zero_copy_only=False)] if len(values) else table[:0]
            self._check(bool((codes < 0).any()))
        elif column.integers is None:
            codes = values.to_numpy(zero_copy_only=False)
            self._check(bool(codes.size and codes.max() >= column.cardinality))
        else:
            codes = self._of_integers(column.as_integers(values))
        return np.asarray(codes, self.attribute.dtype)

    def _of_numbers(self, values: pa.Array) -> NDArray[np.int64]:
        """The bins of numbers."""
        edges = np.asarray(self.column.edges)
        absent, numbers = self._filled(values, edges[0])
        self._check(not bool(((edges[0] <= numbers) & (numbers <= edges[-1])).all()))
        codes = np.minimum(np.searchsorted(edges, numbers, side="right") - 1, len(edges) - 2)
        return np.where(absent, -1 if self.column.missing is None else self.column.missing, codes)

    def _of_integers(self, values: pa.Array) -> NDArray[np.int64]:
        """The codes of integers, or the bins that hold them."""
        column = self.column
        lows = np.asarray(column.integers)[: column.cardinality - (column.missing is not None)]
        absent, numbers = self._filled(values, int(lows[0]))
        order = np.argsort(lows, kind="stable")
        place = np.searchsorted(lows[order], numbers, side="right") - 1
        codes = np.asarray(order[np.maximum(place, 0)], np.int64)
        high = lows[codes] if column.widths is None else lows[codes] + column.widths[codes].astype(np.int64) - 1
        self._check(bool(((place < 0) | (numbers > high)).any()))
        return codes if column.missing is None else np.where(absent, column.missing, codes)

    def _filled(self, values: pa.Array, number: float) -> tuple[NDArray[np.bool_], np.ndarray]:
        """Where there is no value, and the values with a number there."""
        absent = values.is_null().to_numpy(zero_copy_only=False)
        self._check(self.column.missing is None and bool(absent.any()))
        return absent, values.fill_null(number).to_numpy(zero_copy_only=False)

    def _check(self, wrong: bool) -> None:
        if wrong:
            raise VerificationFailed(
                f"column {self.attribute.name!r} of the release holds values outside its declared domain: "
                "copy the release again from its publisher"
            )


@dataclass(frozen=True, eq=False)
class ReleaseDecoder:
    """From record batches of a release to codes, in schema order."""

    columns: tuple[Decoder, ...]

    @classmethod
    def of(cls, schema: Schema, form: PartFormat) -> ReleaseDecoder:
        """The decoder of a release."""
        pairs = zip(columns(schema, form), schema.attributes, strict=True)
        return cls(tuple(Decoder(column, attribute) for column, attribute in pairs))

    def codes(self, batch: pa.RecordBatch) -> Codes:
        """The codes of a batch."""
        return [decoder.codes(values) for decoder, values in zip(self.columns, batch.columns, strict=True)]

    def merged(self, codes: Codes) -> Codes:
        """Codes of real records as far as released ones can tell them apart."""
        return [decoder.merged(column) for decoder, column in zip(self.columns, codes, strict=True)]


@dataclass(frozen=True, eq=False, repr=False)
class ReleasedTable(Partitions):
    """The records of a release as a pass reads them (`dpdist.data.records.Records`); a partition is a part."""

    store: Store
    manifest: Manifest

    @property
    def schema(self) -> Schema:
        """The attributes of the released records."""
        return self.manifest.table

    @property
    def partitions(self) -> Sequence[PartRecord]:
        """The parts."""
        return self.manifest.parts

    @property
    def rows(self) -> int:
        """Number of released records."""
        return self.manifest.records

    @property
    def fingerprint(self) -> str:
        """The attempt that made the release."""
        return self.manifest.attempt

    @cached_property
    def decoder(self) -> ReleaseDecoder:
        """From the released values to codes."""
        return ReleaseDecoder.of(self.schema, self.manifest.format)

    def batches(self, partition: int, *, batch_rows: int = BATCH_ROWS) -> Iterator[EncodedBatch]:
        """The records of a part, `batch_rows` at a time. A worker also holds the bytes of one part. Raises
        VerificationFailed: the part is not what the manifest says.
        """
        start = 0
        for batch in part_batches(self.store, self.manifest, partition, batch_rows=batch_rows):
            report = RowReport.empty(self.schema, batch.num_rows)
            yield EncodedBatch(partition, start, self.decoder.codes(batch), None, report)
            start += batch.num_rows
