"""What is one number or text is one id; which records of a unit are used depends on the unit's own records alone."""

from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from dpdist.data.keyed_ids import UnitHashes, canonical, check_type_beside, ids_of
from dpdist.errors import ColumnMismatch
from dpdist.lifecycle.conformity import Conformity, check_input
from dpdist.privacy.noise import Noise
from dpdist.spec.contract import Contract

HASHES = UnitHashes.of(Noise(bytes(range(32))))


def texts(values: pa.Array) -> pa.Array:
    return ids_of(pa.record_batch([values], ["id"]), "id")


def reference(text: str) -> bytes:
    """CBC-MAC of the text, its length in the first block."""
    content = text.encode()
    message = content[:12].ljust(12, b"\0") + len(content).to_bytes(4, "little") + content[12:]
    message += b"\0" * (-len(message) % 16)
    key = Noise(bytes(range(32))).words("units/ids", 4).tobytes()
    return Cipher(algorithms.AES(key), modes.CBC(bytes(16))).encryptor().update(message)[-16:]


@given(st.lists(st.one_of(st.none(), st.text(max_size=40)), min_size=1, max_size=20), st.integers(0, 3))
def test_hashes_are_those_of_texts_wherever_they_lie(ids: list[str | None], skipped: int) -> None:
    array = pa.array(ids, pa.string()).slice(min(skipped, len(ids) - 1))
    hashes, known = HASHES.of_ids(texts(array))
    assert (known is None) == (None not in array.to_pylist())
    for row, text in enumerate(canonical(texts(array)).to_pylist()):
        assert known is None or known[row] == (text is not None)
        assert hashes[row].astype("<u8").tobytes() == reference(text or "")


LENGTHS = st.integers(0, 19).map(lambda digits: 10**digits)


@given(
    st.lists(
        st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), LENGTHS.map(lambda n: min(n, 2**63) - 1)), max_size=20
    )
)
def test_integers_are_hashed_as_their_texts(ids: list[int | None]) -> None:
    """Of every number of digits; in one batch with longer ones and with negative ones, too."""
    few = [n for n in ids if n is None or 0 <= n < 10**16]
    for some in (ids, few):
        hashes, known = HASHES.of_ids(texts(pa.array(some, pa.int64())))
        as_texts, same = HASHES.of_ids(texts(pa.array([n if n is None else str(n) for n in some], pa.string())))
        np.testing.assert_array_equal(known, same)
        there = np.array([n is not None for n in some], bool)
        np.testing.assert_array_equal(hashes[there], as_texts[there])


@pytest.mark.parametrize("kind", [pa.int16(), pa.uint64(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())])
def test_an_id_is_the_same_in_every_type(kind: pa.DataType) -> None:
    values = ["7", None, "12345"]
    given = pa.array([v and int(v) for v in values], kind) if pa.types.is_integer(kind) else pa.array(values)
    if pa.types.is_dictionary(kind):
        given = given.dictionary_encode()
    check_type_beside("file", "id", kind)
    assert [v and str(v) for v in texts(given).to_pylist()] == values


def test_csv_ids_are_stripped_and_empty_ones_are_missing() -> None:
    batch = pa.record_batch([pa.array([" 7 ", "", "  ", "x"])], ["id"])
    assert ids_of(batch, "id", strip=True, empty_is_missing=True).to_pylist() == ["7", None, None, "x"]
    assert ids_of(batch, None) is None


ONE = {
    "7": [pa.array([7]), pa.array([7], pa.uint64()), pa.array([7.0]), "7", "7.0", "7.", "007", "+7"],
    "8": [pa.array([8], pa.float32()), "8"],
    "0": [pa.array([0]), pa.array([-0.0]), "0", "-0", "-0.0", "000"],
    "-3": [pa.array([-3]), pa.array([-3.0]), "-3", "-03", "-3.000"],
    "100000": [pa.array([100_000]), pa.array([1e5]), "100000", "1e+05", "1.0E+5"],
    str(2**53 - 1): [pa.array([2**53 - 1]), pa.array([2.0**53 - 1]), str(2**53 - 1), f"{2**53 - 1}.0"],
    str(2**53 + 1): [pa.array([2**53 + 1]), pa.array([2**53 + 1], pa.uint64()), str(2**53 + 1), f"0{2**53 + 1}"],
    str(10**30): [str(10**30), f"+{10**30}"],
    "Zo\u00eb": ["Zo\u00eb", "Zoe\u0308"],
    "12e4": ["12e4"],
    "1.10": ["1.10"],
    "1.1": ["1.1"],
}  # fmt: skip
NONE = ["9007199254740992.0", "1e+16", "1.5e-03", None]
NONE += [pa.array([value]) for value in (2.0**53, 0.5, float("nan"), float("inf"), -float("inf"))]
NONE += [pa.array([2.0**24], pa.float32()), pa.array([None], pa.float64())]


def hashed(spelling: pa.Array | str | None) -> bytes | None:
    hashes, known = HASHES.of_ids(
        texts(spelling if isinstance(spelling, pa.Array) else pa.array([spelling], pa.string()))
    )
    return None if known is not None and not known[0] else hashes[0].astype("<u8").tobytes()


def test_one_number_and_one_text_is_one_id() -> None:
    found = {form: {hashed(spelling) for spelling in spellings} for form, spellings in ONE.items()}
    assert found == {form: {reference(form)} for form in ONE}


@pytest.mark.parametrize("value", NONE)
def test_what_may_have_been_another_number_is_no_id(value: pa.Array | str | None) -> None:
    assert hashed(value) is None


SCHEMA = {"attributes": [{"name": "sex", "kind": "categorical", "values": [1, 2]}]}


def checked(folder: Path, *ids: pa.Array) -> Conformity:
    """What `contract check` finds in a table with two records of each id, a file for each array."""
    files = []
    for number, column in enumerate(ids):
        table = pa.table({"id": pa.concat_arrays([column, column]), "sex": [1, 2] * len(column)})
        files.append(str(folder / f"{number}.{'csv' if pa.types.is_binary(column.type) else 'parquet'}"))
        if pa.types.is_binary(column.type):
            lines = [f"{key.as_py().decode()},{sex}" for key, sex in zip(table["id"], table["sex"], strict=True)]
            Path(files[-1]).write_text("\n".join(["id,sex", *lines]) + "\n")
        else:
            pq.write_table(table, files[-1])
    tree = {"schema": SCHEMA, "unit": {"by": "id", "at_most": 2}, "minimum_records": 1}
    tree |= {"data": {"path": files}, "epsilon": 1, "delta": "1e-6"}
    return check_input(Contract.model_validate(tree))


@pytest.mark.parametrize(
    "ids",
    [
        (pa.array([b"7"]), pa.array([b"7.0"])),  # of CSV files
        (pa.array([7]), pa.array([7.0])),
        (pa.array([7]), pa.array(["007"])),
        (pa.array(["Zo\u00eb"]), pa.array(["Zoe\u0308"])),
    ],
)
def test_a_person_of_two_spellings_is_bounded_once(ids: tuple[pa.Array, ...], tmp_path: Path) -> None:
    found = checked(tmp_path, *ids)
    assert not found.problems
    assert (found.counts["rows_kept"], found.counts["rows_beyond_bound"]) == (2, 2)


def test_bytes_that_are_no_text_are_no_id(tmp_path: Path) -> None:
    found = checked(tmp_path, pa.array([b"\xff", b"Zoe"]).view(pa.string()))
    assert (found.counts["rows_without_id"], found.counts["rows_kept"]) == (2, 2)
    assert "column 'id': rows without an id" in found.problems[0]


def test_a_check_names_the_column_of_ids_that_were_rounded(tmp_path: Path) -> None:
    found = checked(tmp_path, pa.array([2**53 + 1]), pa.array([2.0**53]))
    assert "column 'id': rows without an id" in found.problems[0]
    assert "a float with a fraction, or so large that it may have been rounded, is no id" in found.problems[0]
    assert found.counts["rows_without_id"] == 2


@pytest.mark.parametrize("kind", [pa.bool_(), pa.timestamp("s"), pa.list_(pa.int8())])
def test_other_types_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(ColumnMismatch, match=r"unit.by.*integers or texts"):
        check_type_beside("file", "id", kind)


Record = tuple[int, int, int]  # unit and two attributes


def used(records: list[Record], at_most: int) -> Counter[Record]:
    """The records that are used, as a multiset."""
    columns = np.array(records, np.uint8).reshape(-1, 3)
    units, _ = HASHES.of_ids(texts(pa.array(columns[:, 0])))
    kept = HASHES.kept(units, np.ascontiguousarray(columns[:, 1:]), at_most=at_most)
    assert len(set(kept.tolist())) == len(kept)
    return Counter(records[row] for row in kept.tolist())


RECORDS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 1)), max_size=30)


@given(RECORDS, st.integers(1, 6), st.randoms(use_true_random=False))
def test_the_choice_is_a_unit_s_own_in_any_order(records: list[Record], at_most: int, random: object) -> None:
    found = used(records, at_most)
    shuffled = list(records)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert used(shuffled, at_most) == found
    for unit in range(4):
        own = [record for record in records if record[0] == unit]
        mine = used(own, at_most)
        assert mine == Counter({r: n for r, n in found.items() if r[0] == unit})
        assert mine.total() == min(len(own), at_most)
        assert mine <= Counter(own)


def test_every_record_of_a_unit_is_as_likely_to_be_used() -> None:
    """Equal records count one by one: of three equal ones and one other, two are used."""
    times = Counter[Record]()
    for unit in range(250):
        for record, number in used([(unit, 0, 0)] * 3 + [(unit, 1, 0)], 2).items():
            times[0, *record[1:]] += number
    assert times.total() == 500
    assert 85 < times[0, 1, 0] < 165  # 125 expected, deviation 8


def test_hashes_that_begin_alike_are_told_apart() -> None:
    units = np.array(list(product([5, 9], [1, 2, 3])) * 3, np.uint64)
    kept = HASHES.kept(units, np.arange(len(units), dtype=np.uint8)[:, None], at_most=2)
    assert Counter(map(tuple, units[kept].tolist())) == {unit: 2 for unit in product([5, 9], [1, 2, 3])}


def test_floats_of_16_bits_that_may_have_been_rounded_are_no_ids() -> None:
    column = pa.array(np.array([7, 2047, 2049, 2051], np.float16))
    batch = pa.record_batch({"id": column})
    assert canonical(ids_of(batch, "id")).to_pylist() == [7, 2047, None, None]
