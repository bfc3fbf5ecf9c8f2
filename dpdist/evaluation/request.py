"""What an evaluation is asked for: one record for the command line, Python, flows and files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeAlias

from dpdist.errors import SpecError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from dpdist.cluster.executor import Executor
    from dpdist.data.inputs import Input
    from dpdist.spec.release import ReleaseSpec

    Table: TypeAlias = tuple[str, ...] | Input
    Spec: TypeAlias = ReleaseSpec | None
    Key: TypeAlias = Ed25519PublicKey | None
    Where: TypeAlias = Executor | None
else:  # files and the command line say where these are
    Table = tuple[str, ...]
    Spec = Key = Where = Any

LEAST_SAMPLE = 50  # records that models are trained or tested on, at least
_TABLES = {"against", "holdout", "parents", "holdout_parents"}
_NO_SETTINGS = {"storage_options", "executor"}


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to evaluate, and against what; a table is files, or from Python any `dpdist.data.inputs.Input`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    # each with the help of its option
    release: Annotated[str, "Folder or s3:// prefix of a release; or a YAML file that says all of this."]
    against: Annotated[
        Table, "The real table: files, a folder or a glob, local or s3://; may be repeated; default: --spec's."
    ] = ()
    holdout: Annotated[Table, "Records like its own that the release was NOT made from; may be repeated."] = ()
    parents: Annotated[
        tuple[str, ...], "Of linked tables: that of the parents, where --against has none; default: --spec's."
    ] = ()
    holdout_parents: Annotated[tuple[str, ...], "The same of the hold-out; default: --parents."] = ()
    spec: Annotated[Spec, "Spec of the release: how its table is read (CSV, storage)."] = None
    output: Annotated[
        str | Path | None,
        "Folder of the page and the figures, or s3://… with --confidential; default: evaluation-NAME.",
    ] = None
    confidential: Annotated[bool, "Only readers of the real table can read the bucket of --output."] = False
    target: Annotated[
        str | None,
        "Attribute that models predict; default: the model.target or mixing.class of the release, else the last of the "
        "schema with two to ten values.",
    ] = None
    train: Annotated[int, "Records of each table to train models on, at most."] = 30_000
    test: Annotated[int, "Real records to test models on, at most."] = 15_000
    seed: Annotated[int, "Of every sample and model."] = 0
    attacks: Annotated[bool, "Run the attacks as well."] = True
    cluster: Annotated[str, "auto, threads, embedded or a scheduler's address: who reads and counts."] = "auto"
    public_key: Annotated[Key, "PEM file of the Ed25519 public key; the signature is then required."] = None
    publish: Annotated[
        float | None, "Also write noisy scores that may be published: their epsilon, charged to the ledger."
    ] = None
    ledger: Annotated[str | None, "URL of this ledger; default: DPDIST_LEDGER, else that of --spec."] = None
    # of object storage, unless the spec says
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    executor: Where = None  # where tables are read, instead of `cluster`; it stays open

    def __post_init__(self) -> None:
        if min(self.train, self.test) < LEAST_SAMPLE or self.seed < 0:
            raise SpecError(f"train, test: expected {LEAST_SAMPLE} records or more; seed: expected no negative number")

    @classmethod
    def of(cls, given: Mapping[str, Any], *, source: str = "evaluate", **more: Any) -> Request:
        """The request of a caller: settings by name, and `more` fields. Raises SpecError: a setting is not valid."""
        from pydantic import TypeAdapter, ValidationError

        from dpdist.ledger.signing import load_public_key
        from dpdist.spec.reader import load
        from dpdist.spec.validation import validation_message

        tree = {
            name: (value,) if name in _TABLES and isinstance(value, str) else value for name, value in given.items()
        }
        objects = {name: tree.pop(name) for name in _TABLES if hasattr(tree.get(name), "fingerprint")}
        if closed := sorted(_NO_SETTINGS & tree.keys()):
            raise SpecError(f"{source}: {', '.join(closed)}: no setting")
        try:
            made = TypeAdapter(cls).validate_python(tree)
        except ValidationError as error:
            raise SpecError(f"{source}: {validation_message(error, dict.fromkeys(cls.settings(), ''))}") from None
        found = {name: getattr(made, name) for name in cls.settings()} | objects
        if isinstance(made.spec, str | Path):
            found["spec"] = load(made.spec)
        if isinstance(made.public_key, str | Path):
            found["public_key"] = load_public_key(Path(made.public_key))
        return cls(**found | more)

    @classmethod
    def read(cls, path: Path, given: Mapping[str, Any], **more: Any) -> Request:
        """The request in a YAML file, whose paths are from its folder, and what is given replaces what it says.

        Raises SpecError: the file cannot be read, or a setting is unknown or not valid.
        """
        from dpdist.spec.data import led
        from dpdist.spec.strict_yaml import load_yaml

        tree = load_yaml(path)
        if not isinstance(tree, dict):
            raise SpecError(f"{path}: expected a mapping with `release`, `against`, ...")
        for name in _TABLES | {"release", "spec", "output", "public_key"}:
            value = tree.get(name)
            if isinstance(value, str):
                tree[name] = led(value, path.parent)
            elif isinstance(value, list) and all(isinstance(one, str) for one in value):
                tree[name] = [led(one, path.parent) for one in value]
        return cls.of({**tree, **given}, source=str(path), **more)

    @classmethod
    def settings(cls) -> tuple[str, ...]:
        """Names of what a file or a command line can set."""
        return tuple(one.name for one in fields(cls) if one.name not in _NO_SETTINGS)
