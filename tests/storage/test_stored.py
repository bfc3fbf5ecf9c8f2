"""Results of stages are read back as they were written, however their arrays are annotated."""

from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy as np
import pytest
from numpy.typing import NDArray
from typing_extensions import TypeAliasType

from dpdist.errors import UnreadableFile
from dpdist.storage.stored import Stored

ScalarT = TypeVar("ScalarT", bound=np.generic)
Aliased = TypeAliasType(
    "Aliased", np.ndarray[Any, np.dtype[ScalarT]], type_params=(ScalarT,)
)  # as NDArray of NumPy 2.5


@dataclass(frozen=True, eq=False)
class Result(Stored):
    FILE: ClassVar[str] = "result.npz"

    plain: NDArray[np.int64]
    aliased: Aliased[np.int64]
    several: tuple[Aliased[np.float64], ...]
    missing: NDArray[np.int64] | None
    named: dict[str, bytes]
    numbered: dict[int, float]
    loose: dict[str, Any]


RESULT = Result(
    np.arange(3), np.arange(4), (np.ones(2), np.zeros(1)), None, {"a": b"\x00\xff"}, {1: 0.5}, {"a": [1, {"b": None}]}
)


def test_what_is_written_is_read_back() -> None:
    found = Result.from_bytes(RESULT.to_bytes())
    assert found.to_bytes() == RESULT.to_bytes()
    np.testing.assert_equal(
        (found.plain, found.aliased, *found.several), (RESULT.plain, RESULT.aliased, *RESULT.several)
    )
    assert (found.missing, found.named, found.numbered) == (None, {"a": b"\x00\xff"}, {1: 0.5})
    assert found.loose == {"a": [1, {"b": None}]}


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b'{"type": "Other", "value": {}}', b'{"type": "Result", "value": []}', RESULT.to_bytes()[:-40]],
)
def test_what_is_damaged_or_of_another_type_is_refused(content: bytes) -> None:
    with pytest.raises(UnreadableFile, match=r"result\.npz is damaged or of another version"):
        Result.from_bytes(content)
