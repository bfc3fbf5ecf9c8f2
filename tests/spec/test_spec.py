"""Specs: parsing, overrides, exact shares, fingerprints and the errors of a wrong one."""

import json
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import ValidationError

from dpdist.cli.schema import json_schema_of
from dpdist.errors import SpecError
from dpdist.families.base.registry import FAMILIES
from dpdist.families.deniability.spec import PlausibleDeniabilitySpec
from dpdist.spec import reader
from dpdist.spec.attribute import Attribute
from dpdist.spec.contract import Contract
from dpdist.spec.data import path_settings
from dpdist.spec.reader import load
from dpdist.spec.release import ReleaseSpec
from dpdist.spec.unit import UnitSpec
from dpdist.spec.validation import override, parse_overrides, validation_message

RELEASES = Path(__file__).parents[2] / "deploy" / "releases"
SPECS = sorted(path.name for path in RELEASES.glob("*.yaml"))


def loaded(*settings: str, name: str = "acs2013-paper.yaml") -> PlausibleDeniabilitySpec:
    spec = load(RELEASES / name, parse_overrides(settings))
    assert isinstance(spec, PlausibleDeniabilitySpec)
    return spec


json_schema = cache(reader.json_schema)


@cache
def validator() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    return jsonschema.Draft202012Validator(json_schema())


@pytest.mark.parametrize("name", SPECS)
def test_shipped_specs_load_and_fit_the_json_schema(name: str) -> None:
    spec = load(RELEASES / name)
    validator().validate(yaml.load((RELEASES / name).read_text(), yaml.CSafeLoader))
    validator().validate(spec.model_dump(mode="json", by_alias=True))
    for none, unset in ((False, False), (True, False), (False, True)):
        tree = spec.model_dump(mode="json", by_alias=True, exclude_none=none, exclude_unset=unset)
        assert load(json.loads(json.dumps(tree))).fingerprint == spec.fingerprint


def test_json_schema_follows_the_code() -> None:
    schema = json_schema()
    assert json.loads(json.dumps(schema)) == schema
    for kind, spec in ((kind, family.spec_class) for kind, family in FAMILIES.items()):
        of_kind = schema["$defs"][spec.__name__]
        assert of_kind["additionalProperties"] is False
        assert of_kind["properties"]["kind"]["const"] == kind
        assert set(of_kind["properties"]) == {f.alias or n for n, f in spec.model_fields.items()} | {"date"}
        assert {"type": "string"} in of_kind["properties"]["schema"]["anyOf"]


def test_json_schema_rejects_what_the_code_rejects() -> None:
    tree = yaml.safe_load((RELEASES / "acs2013-paper.yaml").read_text())
    for wrong in ({"kind": "nope"}, {"colour": "red"}, {"name": 7}):
        with pytest.raises(jsonschema.ValidationError):
            validator().validate(tree | wrong)


def test_each_setting_is_described_where_it_is_declared() -> None:
    described = json_schema()["$defs"]
    assert described["CsvSpec"]["properties"]["strip"]["description"] == "Whether blanks around fields are removed."
    paths = {described[name]["properties"]["path"]["description"] for name in ("DataSpec", "MixingDataSpec")}
    assert len(paths) == 2  # that of the class which declares it last
    for name, model in described.items():
        for setting, tree in model.get("properties", {}).items():
            assert "description" in tree or "$ref" in tree or setting == "kind", (name, setting)


def test_overrides_reach_every_depth_and_keep_types() -> None:
    spec = loaded("synthesis.records=7", "privacy.model.delta=1e-8", "output.values=labels", "synthesis.omega=[1, 11]")
    assert spec.synthesis.records == 7
    assert spec.privacy.model.delta == 1e-8
    assert spec.output.values == "labels"
    assert spec.omegas == (1, 11)
    assert spec.uses_seeds


def test_a_password_in_the_address_of_a_ledger_is_not_shown() -> None:
    assert "sesame" not in repr(loaded("ledger=postgresql://me:sesame@host/ledger"))
    with pytest.raises(SpecError, match=r"^--set: expected") as refused:
        parse_overrides(["ledger:postgresql://me:sesame@host/ledger"])
    assert "sesame" not in str(refused.value)


def test_shares_are_exact_rationals() -> None:
    spec = loaded("split.structure=1/3", "split.parameters=1/3", "split.seeds=1/3")
    assert spec.split.shares == (Fraction(1, 3),) * 3
    spec = loaded("split.structure=0.1", "split.parameters=0.2", "split.seeds=0.7")
    assert spec.split.shares == (Fraction(1, 10), Fraction(1, 5), Fraction(7, 10))


def test_a_spec_survives_its_own_serialisation() -> None:
    spec = loaded("split.structure=1/3", "split.parameters=1/3", "split.seeds=1/3")
    again = load(spec.model_dump(mode="json", by_alias=True))
    assert again.fingerprint == spec.fingerprint


def test_the_fingerprint_ignores_where_it_runs_and_nothing_else() -> None:
    base = loaded().fingerprint
    assert loaded("cluster.workers=7", "ledger=sqlite:///x.db", "work=w", "output.path=o").fingerprint == base
    for other in ("synthesis.records=1", "data.minimum_records=5", "privacy.deniability.k=7", "output.values=codes"):
        assert loaded(other).fingerprint != base


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ("kind=nope", "`kind` is 'nope'"),
        ("split.seeds=0.4", "must be exactly 1"),
        ("split.seeds=many", "expected a number"),
        ("privacy.model.epsilon=0", "privacy.model.epsilon: expected 0.000001 or more"),
        ("privacy.model.epsilon=-1", "expected 0.000001 or more"),
        ("privacy.model.epsilon=.inf", "privacy.model.epsilon"),
        ("privacy.model.epsilon=.nan", "privacy.model.epsilon"),
        ("privacy.model.delta=1", "privacy.model.delta"),
        ("privacy.deniability.gamma=1", "gamma"),
        ("privacy.deniability.k=0", "privacy.deniability.k"),
        ("synthesis.omega=0", "between 1 and 11"),
        ("synthesis.omega=12", "between 1 and 11"),
        ("synthesis.omega=[9, 9]", "listed twice"),
        ("synthesis.omega=[]", "between 1 and 11"),
        ("synthesis.records=0", "synthesis.records"),
        ("synthesis.colour=red", "synthesis.colour: there is no such setting here"),
        ("synthesis.record=5", "synthesis.record: there is no such setting here; did you mean 'records'?"),
        ("data.minimum_record=5", "did you mean 'minimum_records'?"),
        ("cluster.mode=address", "`address` (or `scheduler_file`) goes with"),
        ("cluster={mode: address, address: nowhere}", "a scheduler's"),
        ("cluster.memory_limit=20MiB", "too small"),
        ("cluster.memory_limit=lots", "a size such as 3GiB"),
        ("schema=../acs2013.yaml", "without `..`"),
        ("schema=/etc/passwd", "without `..`"),
        ("schema=schemas/none.yaml", "cannot read"),
        ("name=../up", "name"),
        ("data.csv={header: false}", "needs `columns`"),
        ("data.path=[]", "data.path: expected at least 1 item(s)"),
        ("data.path=", "data.path: "),
    ],
)
def test_a_wrong_setting_is_named(setting: str, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        loaded(setting)
    assert text in str(caught.value)


def test_seeds_need_a_share() -> None:
    with pytest.raises(SpecError, match=r"split\.seeds: must be above 0"):
        loaded("split.seeds=0", "split.parameters=0.9")
    assert not loaded("split.seeds=0", "split.parameters=0.9", "synthesis.omega=all").uses_seeds


def test_structure_needs_a_share_if_it_is_learned() -> None:
    with pytest.raises(SpecError, match=r"split\.structure: must be above 0"):
        loaded("split.structure=0", "split.parameters=0.7", "split.seeds=0.3")
    loaded("split.structure=0", "split.parameters=0.7", "split.seeds=0.3", "model.structure=independent")


@pytest.mark.parametrize("text", ["records", "=1", "a..b=1", "a=[1"])
def test_a_wrong_override_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--set"):
        parse_overrides([text])


def test_settings_below_a_name_with_a_comparison_in_it() -> None:
    settings = ["mixing.classes.<=50K.minimum=9", "mixing.classes.>50K.minimum=8", "output.path=a=b"]
    assert list(parse_overrides(settings).values()) == [9, 8, "a=b"]
    assert "mixing.classes.<=50K.minimum" in parse_overrides(settings)


def test_a_setting_below_a_value_that_is_a_number() -> None:
    tree = {"classes": {3: {"minimum": 1, "records": 5}}}
    assert override(tree, {"classes.3.minimum": 2}) == {"classes": {3: {"minimum": 2, "records": 5}}}


def test_an_override_into_a_value_is_refused() -> None:
    with pytest.raises(SpecError, match="`name` is not a section"):
        loaded("name.first=x")


def test_files_that_are_no_specs(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    with pytest.raises(SpecError, match="cannot read"):
        load(path)
    path.write_text("- 1")
    with pytest.raises(SpecError, match="expected a mapping"):
        load(path)
    path.write_text("a: [")
    with pytest.raises(SpecError, match="not valid YAML"):
        load(path)


def test_without_seeds_no_share_need_be_set_to_zero() -> None:
    """`omega: all` uses no seeds: shares that are not set are those of the model."""
    spec = loaded(name="adult-paper.yaml")
    assert (spec.split.structure, spec.split.parameters, spec.split.seeds) == (Fraction(1, 5), Fraction(4, 5), 0)
    assert loaded("split={structure: 0.3, parameters: 0.7}", name="adult-paper.yaml").split.seeds == 0
    assert loaded("split.seeds=0.5", "split.parameters=0.4", name="adult-paper.yaml").split.structure == Fraction(1, 10)
    assert loaded("synthesis.omega=4", name="adult-paper.yaml").split.seeds == Fraction(1, 2)
    explicit = "split={structure: 0.2, parameters: 0.8, seeds: 0}"
    assert loaded(explicit, name="adult-paper.yaml").fingerprint == spec.fingerprint


def test_json_schemas_have_a_title_and_an_id() -> None:
    for kind in ("spec", "schema", "contract"):
        found = json_schema_of(kind)
        assert found["title"] == f"dpdist {kind}"
        assert found["$id"].endswith(f"/{kind}.json")
        jsonschema.Draft202012Validator.check_schema(found)


# --- What a unit of protection is called where nobody names it


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("patient_id", "patient"),
        ("patientId", "patient"),
        ("Person No", "Person"),
        ("hh_id", "hh"),
        ("household", "household"),
        ("hid", "hid"),  # no unit is called h
        ("pid", "pid"),
        ("id", "unit"),
        ("größe_id", "unit"),
    ],
)
def test_a_unit_is_called_after_its_column(column: str, name: str) -> None:
    assert UnitSpec(by=column, at_most=1).name == name


# --- What is said of a setting that is wrong, where several forms are admitted


BUCKETS = "{width: n}, {edges: [...]}, {groups: [[...], ...]}, {every: month} or a list"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bins": {"count": 0}}, "bins.count: expected 1 or more"),
        ({"bins": {"edges": [0, 5, 5]}}, "bins: edges must be strictly increasing"),
        ({"bins": {"width": 3}}, "bins: expected {count: n}, {edges: [...]} or {every: month}"),
        ({"bins": 5}, "bins: expected {count: n}, {edges: [...]} or {every: month}"),
        ({"missing": "ignore"}, "missing: expected 'refuse' or 'drop' or {category: NAME}"),
        ({"missing": {"category": ""}}, "missing.category: expected a text of 1 character(s) or more"),
        ({"buckets": {"width": 0}}, "buckets.width: expected 1 or more"),
        ({"buckets": [1, "x"]}, "buckets.1: expected an integer"),
        ({"buckets": "x"}, f"buckets: expected {BUCKETS}"),
        ({"levels": [{"prefx": 1}]}, f"levels.0: expected {{prefix: n}}, {BUCKETS}"),
        ({"bounds": ["a", 3]}, "bounds.0: expected an integer or a number, such as 0.25"),
    ],
)
def test_a_value_of_several_forms_is_told_what_it_is_meant_to_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Attribute.model_validate({"name": "b", "kind": "integer", "bounds": [0, 9], **settings})
    assert validation_message(refused.value) == message


# --- Relative paths of a spec or a contract are from the folder of its file; those that a call sets are not


SCHEMA = {"attributes": [{"name": "age", "kind": "integer", "bounds": [0, 9]}]}


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a table, a folder of specs with a schema, and a working folder beside them."""
    for name in ("data", "specs", "elsewhere"):
        (tmp_path / name).mkdir()
    (tmp_path / "data" / "people.csv").write_text("age\n1\n")
    (tmp_path / "specs" / "schema.yaml").write_text(yaml.safe_dump(SCHEMA))
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def written(folder: Path, name: str = "spec.yaml", **changes: object) -> Path:
    tree = {
        "kind": "synthesis",
        "name": "people",
        "dataset": "people",
        "schema": "schema.yaml",
        "data": {"path": "../data/people.csv", "minimum_records": 1},
        "output": {"path": "out", "signing_key": "../keys/me.pem"},
        "privacy": {"epsilon": 1, "delta": 1e-9},
        "synthesis": {"records": 10},
        "cluster": {
            "mode": "address",
            "address": "tls://here:1",
            "security": dict.fromkeys(("ca", "cert", "key"), "a.pem"),
        },
    }
    path = folder / "specs" / name
    path.write_text(yaml.safe_dump({**tree, **changes}))
    return path


def test_all_paths_are_from_the_folder_of_the_spec(house: Path) -> None:
    spec = load(written(house))
    assert spec.data.path == str(house / "data" / "people.csv")
    assert spec.output.path == str(house / "specs" / "out")
    assert spec.work == str(house / "specs" / ".dpdist")
    assert spec.output.signing_key == str(house / "keys" / "me.pem")
    assert spec.cluster.security is not None
    assert spec.cluster.security.ca == str(house / "specs" / "a.pem")


def test_paths_below_the_working_folder_are_short(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(house)
    monkeypatch.chdir(house)
    for given in (path, path.relative_to(house)):
        spec = load(given)
        assert (spec.data.path, spec.output.path, spec.work) == ("data/people.csv", "specs/out", "specs/.dpdist")


def test_addresses_absolute_paths_and_lists(house: Path) -> None:
    paths = ["../data/*.csv", "s3://bucket/people", "/data/people.csv", "~/people.csv"]
    spec = load(written(house, data={"path": paths, "minimum_records": 1}, output={"path": "s3://bucket/out"}))
    assert spec.data.paths == (str(house / "data" / "*.csv"), *paths[1:])
    assert spec.output.path == "s3://bucket/out"


def test_what_a_call_sets_is_from_the_working_folder(house: Path) -> None:
    spec = load(written(house), {"data.path": "here.csv", "output": {"path": "there"}, "cluster.security.ca": "b.pem"})
    assert (spec.data.path, spec.output.path) == ("here.csv", "there")
    assert spec.cluster.security is not None
    assert (spec.cluster.security.ca, spec.cluster.security.key) == ("b.pem", str(house / "specs" / "a.pem"))


def test_a_folder_of_the_same_name_as_the_output_is_no_mistake(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(house)
    (house / "out").mkdir()
    (house / ".dpdist").mkdir()
    monkeypatch.chdir(house)
    assert load(path).output.path == "specs/out"


def test_a_linked_folder_of_specs_is_the_folder_it_links_to(house: Path) -> None:
    written(house)
    (house / "elsewhere" / "linked").symlink_to(house / "specs")
    assert load("linked/spec.yaml").data.path == str(house / "data" / "people.csv")


def test_the_fingerprint_does_not_depend_on_where_files_are(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(house)
    from_elsewhere = load(path).fingerprint
    monkeypatch.chdir(house)
    assert load(path).fingerprint == from_elsewhere
    assert load(path, {"data.path": "s3://bucket/people", "output.signing_key": "k.pem"}).fingerprint == from_elsewhere
    assert load(path, {"data.minimum_records": 2}).fingerprint != from_elsewhere


def test_paths_of_a_contract(house: Path) -> None:
    tree = {
        "schema": "schema.yaml",
        "data": {"path": "../data/people.csv", "later": ["../data/2*.csv"]},
        "minimum_records": 1,
        "epsilon": 1,
        "delta": 1e-9,
        "public_tables": ["../public.csv"],
    }
    (house / "specs" / "contract.yaml").write_text(yaml.safe_dump(tree))
    contract = Contract.from_yaml(house / "specs" / "contract.yaml")
    assert contract.data.paths == (str(house / "data" / "people.csv"),)
    assert contract.data.later == (str(house / "data" / "2*.csv"),)
    assert contract.public_tables == (str(house / "public.csv"),)


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_every_family_knows_its_paths(kind: str) -> None:
    spec_class: type[ReleaseSpec] = FAMILIES[kind].spec_class
    names = {".".join(setting) for setting, _ in path_settings(spec_class)}
    assert {
        "data.path",
        "data.parent.path",
        "output.path",
        "output.signing_key",
        "work",
        "cluster.scheduler_file",
    } <= names
    assert ("model.prior.path" in names) is (kind == "synthesis")
