"""What a reviewer reads in a spec is what runs: digits of other scripts, invisible letters, halves of characters."""

from __future__ import annotations

from fractions import Fraction

import pytest

from dpdist.errors import SpecError
from dpdist.spec.overrides import parse_overrides
from dpdist.spec.strict import Exact, Section
from dpdist.spec.strict_yaml import parse_yaml


class _Budget(Section):
    epsilon: Exact


@pytest.mark.parametrize("digits", ["\u09ea", "\u0665", "\uff11", "1/\u0663"])  # the first, a 4, looks like an 8
def test_digits_of_other_scripts_are_no_number(digits: str) -> None:
    tree = parse_yaml(f"epsilon: {digits}")
    with pytest.raises(ValueError, match="expected a number"):
        _Budget.model_validate(tree)
    assert parse_overrides([f"privacy.epsilon={digits}"]) == {"privacy.epsilon": digits}


@pytest.mark.parametrize("hidden", ["\u3164", "\u2800", "\u034f", "\ufe0f", "\uffa0", "\U000e0100"])
def test_letters_without_a_shape_are_refused(hidden: str) -> None:
    with pytest.raises(SpecError, match=r"line 2, b: the character U\+"):
        parse_yaml(f"a: 1\nb: text{hidden}")


@pytest.mark.parametrize("escape", ["\\ud800", "\\0"])
def test_escapes_that_are_no_text_are_refused_before_anything_is_charged(escape: str) -> None:
    with pytest.raises(SpecError, match=r"line 2: an escape stands for U\+"):
        parse_yaml(f'a: 1\nvalues: ["a", "{escape}"]')
    with pytest.raises(SpecError, match=r"--set data\.path: line 1: an escape"):
        parse_overrides([f'data.path="a{escape}"'])
    assert parse_yaml('"\\U0001F600"') == "\U0001f600"


@pytest.mark.parametrize("number", ["08", "-09", "0o17"])
def test_what_only_yaml_1_2_takes_for_a_number_is_refused(number: str) -> None:
    with pytest.raises(SpecError, match=r"line 1: code: .* quote the text"):
        parse_yaml(f"code: {number}")


class _Numbers(_Budget):
    epsilon: Exact = Fraction(1)
    records: int = 1
    limit: float | None = None


@pytest.mark.parametrize("setting", ["epsilon", "records", "limit"])
def test_a_number_in_quotes_has_no_underscores(setting: str) -> None:
    """``"1_0"`` was ten."""
    with pytest.raises(ValueError, match="expected a number"):
        _Numbers.model_validate(parse_yaml(f'{setting}: "1_0"'))
    assert parse_overrides([f'{setting}="1_0"']) == {setting: "1_0"}
