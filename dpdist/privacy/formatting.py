"""Numbers in sentences and rounded in the safe direction; facts for people, as text in 80 columns or as a table."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from html import escape
from typing import Any

from dpdist.errors import printable

GUESS = 0.01
"""The chance of a guess that sentences speak of."""

LABEL = 12
"""Columns of a title where facts are lines of text."""

WIDTH = 80
"""Columns of text; words are never cut, so paths may be longer."""

_LABEL = re.compile(r"\S+(?: \S+)*? {2,}|\s*")
_TABLE = re.compile(r"\S {2,}\S.* {2,}\S")
_STYLE = "text-align:left;vertical-align:top;padding:2px 12px 2px 0"


@dataclass(frozen=True)
class Fact:
    """One thing that a plan or an account says."""

    title: str
    sentence: str  # without its full stop, or several sentences
    numbers: Mapping[str, Any] = field(default_factory=dict)  # those in the sentence, by name
    detail: bool = False  # how it is done, rather than what people ask first

    def to_json(self) -> dict[str, Any]:
        """The fact as a JSON object; a number that is not finite is null."""
        numbers = {n: None if isinstance(v, float) and not math.isfinite(v) else v for n, v in self.numbers.items()}
        return {"title": self.title, "sentence": self.sentence, "numbers": numbers, "detail": self.detail}


def lines_of(facts: Iterable[Fact]) -> list[str]:
    """Facts as lines of text: a title of `LABEL` columns, which consecutive facts share, and the sentence."""
    lines, last = [], ""
    for fact in facts:
        title = "" if fact.title == last else f"{fact.title}  "
        lines.append(f"{title:<{LABEL}}{fact.sentence}")
        last = fact.title
    return lines


def html_table(facts: Iterable[Fact], *, title: str = "") -> str:
    """An HTML table of facts; all text is escaped."""
    rows = [
        f'<tr><th style="{_STYLE}">{escape(fact.title)}</th>'
        f'<td style="{_STYLE};white-space:pre-wrap">{_unbroken(escape(fact.sentence))}</td></tr>'
        for fact in facts
    ]
    caption = f'<caption style="text-align:left;font-weight:bold">{escape(title)}</caption>' if title else ""
    return f"<table>{caption}{''.join(rows)}</table>"


def folded(text: str) -> str:
    """Lines cut at spaces to `WIDTH` columns, what follows a label below its beginning; tables and options stay."""
    return "\n".join(map(_folded, text.split("\n")))


def _folded(line: str) -> str:
    if len(line) <= WIDTH or line.startswith("--") or _TABLE.search(line):
        return line
    label = _LABEL.match(line)
    return cut(line, " " * (label.end() if label else 0))


def cut(line: str, indent: str) -> str:
    """A line in `WIDTH` columns, cut at spaces."""
    whole = _unbroken(line)
    filled = textwrap.fill(whole, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return filled.replace("\u00a0%", " %")


def _unbroken(text: str) -> str:
    """Text in which no line begins with a percent sign."""
    return text.replace(" %", "\u00a0%")


class Displayed:
    """Something that shows its facts: lines of text, in a notebook a table."""

    def _facts(self) -> list[Fact]:
        """What is shown."""
        raise NotImplementedError

    @property
    def _heading(self) -> str:
        """What it is, before its facts."""
        return type(self).__name__

    def __repr__(self) -> str:
        return printable(folded("\n".join([self._heading, *lines_of(self._facts())]).lstrip("\n")))

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        facts = [replace(fact, sentence=printable(fact.sentence)) for fact in self._facts()]
        return html_table(facts, title=printable(self._heading))


def number_of(count: int, what: str) -> str:
    """How many of something, in words: ``1 charge``, ``2,000 charges``."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def mebibytes(count: float) -> str:
    """A number of bytes in MiB."""
    return f"{count / 2**20:,.0f} MiB"


def upwards(value: Fraction | float) -> str:
    """What is spent or guaranteed: six digits, rounded upwards. A float stands for the decimal it prints as."""
    return _digits(value, ROUND_CEILING)


def downwards(value: Fraction | float) -> str:
    """What remains: six digits, rounded downwards."""
    return _digits(value, ROUND_FLOOR)


def _digits(value: Fraction | float, rounding: str) -> str:
    context = Context(prec=6, rounding=rounding)
    if isinstance(value, Fraction):
        number = context.divide(Decimal(value.numerator), Decimal(value.denominator))
    else:
        number = context.create_decimal(repr(float(value)))
    if not number.is_finite():
        return "inf"
    number = number.normalize(context)
    return f"{number:f}" if not number or Decimal("1e-4") <= number < Decimal("1e6") else f"{number:e}"


def shown(value: float) -> float:
    """A number of a guarantee as it is stated: rounded upwards to six significant digits.

    >>> shown(0.12345612), shown(2.0)
    (0.123457, 2.0)
    """
    return value if math.isinf(value) else float(Context(prec=6, rounding=ROUND_CEILING).create_decimal(Decimal(value)))


def rounded_up(value: Fraction | float) -> Fraction:
    """The value with twelve significant digits, rounded upwards."""
    return _rounded(value, ROUND_CEILING)


def rounded_down(value: Fraction | float) -> Fraction:
    """The value with twelve significant digits, rounded downwards."""
    return _rounded(value, ROUND_FLOOR)


def _rounded(value: Fraction | float, rounding: str) -> Fraction:
    exact, context = Fraction(value), Context(prec=12, rounding=rounding)
    return Fraction(context.divide(Decimal(exact.numerator), Decimal(exact.denominator)))


def float_below(value: Fraction) -> float:
    """The largest float not above the value."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else math.nextafter(nearest, 0.0)


def percent(value: float) -> str:
    """A probability in percent, three digits, rounded upwards."""
    digits = max(2 - math.floor(math.log10(max(100 * value, 1e-9))), 1)
    return f"{math.ceil(100 * value * 10**digits - 1e-9) / 10**digits:.{digits}f}".rstrip("0").rstrip(".") + " %"


def risk_sentence(right: float, *, guess: float = GUESS, unit: str = "record") -> str:
    """What the numbers mean, without a full stop."""
    return (
        f"Whoever could guess something about one {unit} with a chance of {percent(guess)} is right with "
        f"{percent(right)} at most, whatever else they know"
    )
