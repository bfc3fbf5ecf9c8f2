"""Variables of Stata and SPSS files: their labels, missing values and formats. No record is read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpdist.errors import SpecError
from dpdist.spec.ddi import MOST_INVALID
from dpdist.spec.described import Described, words

SUFFIXES = (".dta", ".sav", ".zsav")

_WHOLE_FORMAT = re.compile(r"F\d+(\.0)?|%\d+\.0f")
_DATE = re.compile(r"[AES]?DATE\d+|%td.*")
_DATETIME = re.compile(r"(YMDHMS|DATETIME)\d+.*|%t[cC].*")


def variables(path: Path) -> Iterator[Described]:
    """The variables of a file. Raises SpecError: pyreadstat is not installed, or cannot read the file."""
    try:
        import pyreadstat  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise SpecError(f"{path}: Stata and SPSS files need pyreadstat: pip install 'dpdist[readers]'") from None
    is_stata = path.suffix.lower() == ".dta"
    try:
        read = pyreadstat.read_dta if is_stata else pyreadstat.read_sav
        _, about = read(str(path), metadataonly=True, user_missing=True)
    except (pyreadstat.ReadstatError, OSError):
        raise SpecError(f"{path} is no Stata or SPSS file, or is damaged: write or copy it again") from None
    for name, label in zip(about.column_names, about.column_labels, strict=True):
        yield _variable(name, label, about)


def _variable(name: str, label: str | None, about: Any) -> Described:
    kind, form = about.readstat_variable_types[name], str(about.original_variable_types[name])
    is_text, labels = kind == "string", about.variable_value_labels.get(name, {})
    absent, notes = [_code(value) for value in about.missing_user_values.get(name, ())], []
    for ends in about.missing_ranges.get(name, ()):
        low, high = ends["lo"], ends["hi"]
        if low == high:
            absent.append(_code(low))
        elif not is_text and float(low).is_integer() and float(high).is_integer() and high - low < MOST_INVALID:
            absent += map(str, range(int(low), int(high) + 1))
        else:
            notes.append(f"TODO: values from {low} to {high} mean missing: name them")
    lettered = [key for key in labels if not is_text and isinstance(key, str)]  # the missing values .a to .z of Stata
    items = {_code(key): str(text) for key, text in labels.items() if key not in lettered}
    kept = {code: text for code, text in items.items() if code not in absent}
    if kept and about.variable_measure.get(name) == "scale":
        notes.append("TODO: values with labels, on a scale: list those that mean missing under `missing_values`")
        notes.append(", ".join(f"{code} = {text}" for code, text in kept.items()))
        kept = {}
    return Described(
        name,
        words(label, *notes),
        kept or None,
        integers=kind.startswith("int") or _WHOLE_FORMAT.fullmatch(form) is not None,
        texts=is_text,
        ordered=about.variable_measure.get(name) == "ordinal",
        dated="date" if _DATE.fullmatch(form) else "datetime" if _DATETIME.fullmatch(form) else None,
        absent=tuple(dict.fromkeys(absent)),
        nullable=True,
    )


def _code(value: Any) -> str:
    """A value as text; whole numbers without a fraction."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
