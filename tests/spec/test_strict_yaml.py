"""What a reviewer reads is what runs: YAML that two readers take for different things is refused, with line and key."""

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from dpdist.errors import SpecError
from dpdist.spec.contract import Contract
from dpdist.spec.reader import load
from dpdist.spec.schema import Schema
from dpdist.spec.strict_yaml import load_yaml, parse_yaml, write_yaml
from dpdist.spec.validation import parse_overrides

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "deploy" / "releases").rglob("*.yaml"))


def nested(depth: int) -> str:
    return "".join(f"{' ' * level}a:\n" for level in range(depth))


def bomb(line: str) -> str:
    levels = [f"a{level}: &a{level} {line.format(*[f'*a{level - 1}'] * 9)}" for level in range(1, 12)]
    return "\n".join(["a0: &a0 {k: 1}", *levels])


REFUSED = {
    "a key twice": ("a: 1\nb: 2\na: 3", r"line 3: the key 'a' stands here for the second time"),
    "a key twice, inside": ("x:\n  a: 1\n  'a': 3", r"line 3: the key 'a'"),
    "a key twice, in braces": ("{a: 1, a: 2}", r"line 1: the key 'a'"),
    "a number as key twice": ("1: 1\n+1: 3", r"line 2: the key '\+1'"),
    "two merges": ("a: &a {x: 1}\nb:\n  <<: *a\n  <<: *a", r"line 4: the key '<<'"),
    "sexagesimal": ("a:\n  timeout: 10:00", r"line 2: timeout: '10:00' is read as the number 600"),
    "sexagesimal float": ("timeout: 1:30.5", r"line 1: timeout: '1:30.5' is read as the number 90.5"),
    "octal": ("k: 010", r"line 1: k: '010' is read as the number 8"),
    "binary": ("k: 0b10", r"line 1: k: '0b10' is read as the number 2"),
    "odd groups": ("k: 1_0", r"line 1: k: '1_0' is read as the number 10"),
    "yes": ("values: [yes, no]", r"line 1: values: 'yes' is read as true or false by some"),
    "off": ("strip: off", r"line 1: strip: 'off' is read as true or false by some"),
    "a date": ("name: 2024-01-01", r"line 1: name: '2024-01-01' is read as a date"),
    "a tag": ("k: !!int '5'", r"line 1: tags"),
    "an object": ("k: !!python/object/apply:os.system ['id']", r"line 1: tags"),
    "a long number": (f"a: 1\nk: {'9' * 5000}", r"line 2: k: '9{40}…' is a number of 5,000 characters"),
    "a long fraction": (f"k: 0.{'9' * 5000}", r"line 1: k: '0\.9{38}…' is a number of 5,002 characters"),
    "nested sections": (nested(5_000), r"line 6[0-9]: .* nested more than 64 deep"),
    "nested lists": ("k: " + "[" * 5_000, r"line 1: .* nested more than 64 deep"),
    "aliases of aliases": (bomb("[{}, {}, {}, {}, {}, {}, {}, {}, {}]"), r"line 6: aliases repeat more than 100,000"),
    "merges of merges": (bomb("{{<<: [{}, {}, {}, {}, {}, {}, {}, {}, {}]}}"), r"line 6: aliases repeat more than"),
    "an alias of itself": ("a: &a [1, *a]", r"line 1: an alias stands inside of what it repeats"),
    "a list as key": ("? [1, 2]\n: 3", r"line 1: a key is a name or a number"),
    "two documents": ("a: 1\n---\nb: 2", r"line 2: not valid YAML"),
    "not closed": ("a: 1\nb: [1", r"line 2: not valid YAML"),
    "a control character": ("a: \x07", r"line 1(, [a-z]+)?: the character U\+0007 "),
    "a line separator": (
        "a: 1 # harmless\u2028privacy: {epsilon: 9}",
        r"line 1(, [a-z]+)?: the character U\+2028 \(LINE SEPARATOR\)",
    ),
    "a paragraph separator": ("a: 1\nb: 2 # x\u2029c: 3", r"line 2(, [a-z]+)?: the character U\+2029"),
    "a next line": ("a: 1\r\nb: 2 # x\x85c: 3", r"line 2(, [a-z]+)?: the character U\+0085"),
    "a lone carriage return": ("a: 1\nb: 2 # x\rc: 3", r"line 2(, [a-z]+)?: the character U\+000D"),
    "a carriage return at the end": ("a: 1\r", r"line 1(, [a-z]+)?: the character U\+000D"),
    "a C1 control": ("a: 'x\x9b'", r"line 1(, [a-z]+)?: the character U\+009B"),
    "text from right to left": ("a: 'x\u202e'", r"line 1(, [a-z]+)?: the character U\+202E"),
    "an isolate": ("# \u2066\na: 1", r"line 1(, [a-z]+)?: the character U\+2066"),
    "a mark of direction": ("a: x\u200f", r"line 1(, [a-z]+)?: the character U\+200F"),
    "a zero width space": ("k\u200b: 1", r"line 1(, [a-z]+)?: the character U\+200B \(ZERO WIDTH SPACE\)"),
    "a soft hyphen": ("k: a\xadb", r"line 1(, [a-z]+)?: the character U\+00AD"),
    "a byte order mark inside": ("k: 1\nl: a\ufeffb", r"line 2(, [a-z]+)?: the character U\+FEFF"),
    "an escape sequence in a comment": ("k: 1 # \x1b[8m", r"line 1(, [a-z]+)?: the character U\+001B"),
    "delete": ("k: a\x7f", r"line 1(, [a-z]+)?: the character U\+007F"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_with_its_line(name: str, tmp_path: Path) -> None:
    text, message = REFUSED[name]
    began = time.process_time()
    with pytest.raises(SpecError, match=message):
        parse_yaml(text)
    file = tmp_path / "spec.yaml"
    file.write_text(text)
    with pytest.raises(SpecError, match=rf"spec\.yaml.*({message})"):
        load(file)
    assert time.process_time() - began < 5


PLAIN: dict[str, Any] = {
    "a: 1\nb: {c: [1, -2, 2.5, .5]}": {"a": 1, "b": {"c": [1, -2, 2.5, 0.5]}},
    "k: 30_000": {"k": 30_000},
    "k: '10:00'": {"k": "10:00"},
    "k: [true, False, ~]": {"k": [True, False, None]},
    "k: ['yes', '010', 2024-01]": {"k": ["yes", "010", "2024-01"]},
    "k: 1e-9": {"k": "1e-9"},
    "k: [1.0e-9, .inf]": {"k": [1e-9, float("inf")]},
    "a: &a {x: 1, y: 2}\nb: {<<: *a, x: 3}": {"a": {"x": 1, "y": 2}, "b": {"x": 3, "y": 2}},
    "z: {q: &b {<<: &a {x: 1}, x: 2}}\nc: {<<: *b}": {"z": {"q": {"x": 2}}, "c": {"x": 2}},
    "a: {k: 1}\nb: {k: 2}": {"a": {"k": 1}, "b": {"k": 2}},
    "": None,
}


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_plain_is_read_as_before(text: str) -> None:
    assert parse_yaml(text) == yaml.safe_load(text) == PLAIN[text]


def test_lines_of_other_systems_and_letters_of_other_scripts_are_read(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes('\ufeffa: |\r\n  é\r\n  漢字\tx\r\nb: "\\u2028"\r\n'.encode())
    assert load_yaml(path) == {"a": "é\n漢字\tx\n", "b": "\u2028"}


def test_what_is_hidden_is_refused_wherever_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "schema.yaml"
    path.write_text("attributes: # \u2028  - {name: a, kind: integer, bounds: [0, 9]}")
    for read in (Schema.from_yaml, Contract.from_yaml, load):
        with pytest.raises(SpecError, match=r"schema\.yaml, line 1, attributes: the character U\+2028"):
            read(path)
    for setting in ("a.b=1 # \u2028c: 2", "a.b\u200b=1", "a\r.b=1"):
        with pytest.raises(SpecError, match=r"--set.*the character U\+") as refused:
            parse_overrides([setting])
        assert str(refused.value).isascii()
        assert str(refused.value).isprintable()


@pytest.mark.parametrize("sign", ["\u00a0", "\u2009", "\u3000", "\ufe0f", "\U000e0101", "\u034f", "\u3164", "\u2800"])
def test_blanks_of_other_kinds_and_signs_without_a_shape_are_refused(sign: str) -> None:
    """In a key they make another key, in a value another value, and nobody sees it."""
    for text, key in (
        (f"a: 1\nname{sign}: x", ""),
        (f"a: 1\n- name: x{sign}y", ", name"),
        (f"a: 1\nb: '{sign}'", ", b"),
    ):
        with pytest.raises(SpecError, match=rf"^line 2{key}: the character U\+{ord(sign):04X}"):
            parse_yaml(text)
    assert parse_yaml(f'b: "\\U{ord(sign):08X}"') == {"b": sign}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_what_is_shipped_is_read_as_before(path: Path) -> None:
    assert load_yaml(path) == yaml.load(path.read_text(), yaml.CSafeLoader)


def test_what_programs_write_is_read() -> None:
    shared = {"values": ["yes", "10:00", "2024-01-01", "010", 5, 1e-9, None, True]}
    tree = {"a": shared, "b": [shared, shared]}
    assert parse_yaml(yaml.safe_dump(tree)) == tree


def demo(**changes: Any) -> Any:
    tree = load_yaml(ROOT / "deploy" / "releases" / "demo-seeds.yaml")
    tree["model"] = {"structure": "independent"}
    tree["synthesis"]["omega"] = "all"
    tree["schema"] = {"attributes": [{"name": "age", "kind": "integer", "bounds": [0, 9]}]}
    for path, value in changes.items():
        *parents, last = path.split("__")
        node = tree
        for name in parents:
            node = node.setdefault(int(name) if name.isdigit() else name, {}) if isinstance(node, dict) else node[0]
        node[last] = value
    return tree


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("synthesis__records", True),
        ("data__minimum_records", True),
        ("privacy__model__epsilon", True),
        ("privacy__limit", False),
        ("cluster__timeout", True),
        ("cluster__partitions", True),
        ("split__seeds", True),
        ("synthesis__omega", [True, 2]),
        ("name", True),
        ("schema__attributes__0__bounds", [False, 9]),
        ("schema__attributes__0__buckets", {"width": True}),
        ("schema__attributes__0__buckets", [True] * 10),
        ("schema__attributes__0__values", [True, False]),
        ("schema__attributes__0__aliases", {"x": True}),
    ],
)
def test_true_is_no_number_and_no_text(path: str, value: Any) -> None:
    name = path.rpartition("__")[2]
    with pytest.raises(SpecError, match=rf"({name}|width).*: true or false"):
        load(demo(**{path: value}))


@pytest.mark.parametrize("value", [1, 0, 1.0, "true", "yes"])
def test_only_true_and_false_are_truth_values(value: Any) -> None:
    with pytest.raises(SpecError, match=r"data\.csv: strip: expected true or false"):
        load(demo(data__csv={"strip": value}))


def test_one_setting_is_given_once() -> None:
    with pytest.raises(SpecError, match=r"--set privacy\.epsilon: given twice"):
        parse_overrides(["privacy.epsilon=1", "name=x", "privacy.epsilon=9"])
    for both in (("split={seeds: 1}", "split.records=all"), ("split.records=all", "name=x", "split={seeds: 1}")):
        with pytest.raises(SpecError, match=r"--set split.*--set split"):
            parse_overrides(both)
    assert parse_overrides(["a.b=1", "a.bc=2", "ab=3"]) == {"a.b": 1, "a.bc": 2, "ab": 3}


def test_true_stays_a_truth_value() -> None:
    assert load(demo(data__csv={"header": True, "strip": False})).data.csv.strip is False


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("cluster__partitions", 1_000_000),
        ("cluster__workers", 1_000_000),
        ("cluster__timeout", float("inf")),
        ("data__minimum_records", 10**30),
        ("data__csv", {"skip_rows": 10**30}),
        ("output__rows_per_part", 10**12),
        ("synthesis__records", 10**30),
        ("split__seeds", "1e999999999"),
        ("split__seeds", "9" * 5_000),
        ("kind", ["synthesis"]),
        ("kind", {"a": 1}),
    ],
)
def test_absurd_settings_are_refused(path: str, value: Any) -> None:
    began = time.process_time()
    with pytest.raises(SpecError, match=path.rpartition("__")[2] if "csv" not in path else "skip_rows"):
        load(demo(**{path: value}))
    assert time.process_time() - began < 1


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20) | st.from_regex(
    r"[-+]?[0-9oxb_:.eE~]{1,6}|yes|No|on|null|~|<<|=|[*&!%@`|>#-] ?a?", fullmatch=True
)


@given(texts=st.lists(TEXTS, min_size=1, max_size=5), flow=st.booleans())
@example(texts=["08", "09", "0180", "13", "0o7", "+08", "1e5", "2024-01-01", "a\rb", "\u200b", "a\u2028b"], flow=True)
def test_any_text_that_is_written_is_read_back(texts: list[str], flow: bool) -> None:
    tree = {"values": texts, "aliases": dict.fromkeys(texts, "08")}
    assert parse_yaml(write_yaml(tree, flow=flow)) == tree


@pytest.mark.parametrize("text", ["\0", "\ud800"])
def test_texts_that_no_file_holds_are_not_written(text: str) -> None:
    with pytest.raises(SpecError, match="NUL or half a character"):
        write_yaml([text])
