"""The chart: linted, rendered in every mode, valid for Kubernetes, closed to what it does not know."""

import json
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from charts import CHART, EXAMPLES, ROOT, TOOLS, example, lint, merge, need_tools, pod_specs, render
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

KUBERNETES = ("1.29", "1.37")
OPERATOR = TOOLS / "dask_kubernetes/operator/deployment/helm/dask-kubernetes-operator/crds"


@pytest.fixture(autouse=True)
def _tools() -> None:
    need_tools()


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_mode_is_clean(name: str) -> None:
    assert lint(example(name)) == []
    assert render(example(name)).manifests


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_renders_alone(name: str) -> None:
    values = yaml.load((CHART / "examples" / f"{name}.yaml").read_text(), yaml.CSafeLoader)
    assert lint(values) == []
    assert render(values).manifests


def test_the_examples_cover_every_mode() -> None:
    default = (CHART / "values.yaml").read_text()
    values = [merge(yaml.load(default, yaml.CSafeLoader), example(name)) for name in EXAMPLES]
    assert {v["mode"] for v in values} == {"job", "cronJob", "prefect", "workers"}
    assert {v["dask"]["mode"] for v in values} == {"deployment", "operator", "external"}
    assert any(v["dask"]["groups"] for v in values)


@pytest.mark.parametrize("mode", ["job", "cronJob", "prefect"])
@pytest.mark.parametrize("dask", ["deployment", "operator", "external"])
def test_all_modes_go_together(mode: str, dask: str) -> None:
    changes: dict[str, Any] = {"mode": mode, "dask": {"mode": dask}}
    if mode == "prefect":
        changes["prefect"] = {"apiUrl": "https://prefect.example/api"}
    if dask == "external":
        changes["dask"]["address"] = "tls://dask.example:8786"
    rendered = render(example("job", changes))
    assert list(check(rendered.manifests, "1.37")) == []


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_kubernetes_takes_it(name: str, version: str) -> None:
    assert list(check(render(example(name)).manifests, version)) == []


def check(manifests: list[dict[str, Any]], version: str) -> Iterator[str]:
    """What a Kubernetes of this version would refuse or pass over; custom resources against their own schema."""
    import jsonschema
    from kubernetes_validate import utils

    utils.schema_contents = remembered
    for manifest in manifests:
        try:
            if manifest["apiVersion"] == "kubernetes.dask.org/v1":
                custom_resource(manifest["kind"]).validate({"spec": manifest["spec"]})
            else:
                assert utils.validate(manifest, version, strict=True) == version
        except jsonschema.ValidationError as error:
            yield f"{manifest['kind']} {manifest['metadata']['name']}: {error.json_path}: {error.message[:300]}"


@cache
def remembered(name: str, version: str) -> Any:
    """As kubernetes-validate reads its schemas, once each."""
    return json.loads((TOOLS / "kubernetes_validate" / name).read_text())


@cache
def custom_resource(kind: str) -> Any:
    """The schema that the Dask operator brings for a kind, made strict."""
    import jsonschema

    crd = yaml.load((OPERATOR / f"{kind.lower()}.yaml").read_text(), yaml.CSafeLoader)
    (found,) = [v["schema"]["openAPIV3Schema"] for v in crd["spec"]["versions"] if v["name"] == "v1"]
    return jsonschema.Draft202012Validator(strict(found))


def strict(schema: Any) -> Any:
    """The schema of a custom resource without fields it does not name (Kubernetes would drop them in silence)."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and "type" in schema:
        open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("additionalProperties")
        if not open_ended and schema["properties"]:
            out["additionalProperties"] = False
    return out


def test_the_validation_has_teeth() -> None:
    """A misspelt field is found, in Kubernetes' own kinds and in a custom resource."""
    for name, kind in (("job", "Job"), ("operator", "DaskCluster")):
        manifest = render(example(name)).one(kind)
        pods = [t["spec"] for _, t in pod_specs(render(example(name)))]
        assert pods
        spec = manifest["spec"]["template"]["spec"] if kind == "Job" else manifest["spec"]["worker"]["spec"]
        spec["hostNetwrok"] = True
        assert any("hostNetwrok" in problem for problem in check([manifest], "1.37"))
    cluster = render(example("operator")).one("DaskCluster")
    del cluster["spec"]["scheduler"]["service"]
    assert any("'service' is a required property" in problem for problem in check([cluster], "1.37"))


def test_the_command_of_kubernetes_validate_agrees(tmp_path: Any) -> None:
    import subprocess
    import sys

    path = tmp_path / "job.yaml"
    path.write_text(render(example("job")).text)
    command = [sys.executable, "-m", "kubernetes_validate", "--strict", "-k", "1.37", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(TOOLS)})
    assert done.returncode == 0, done.stdout + done.stderr
    path.write_text(path.read_text().replace("backoffLimit", "backofLimit"))
    assert subprocess.run(command, capture_output=True, env={"PYTHONPATH": str(TOOLS)}).returncode != 0


# Values


def sections(schema: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """All objects of a JSON schema."""
    if isinstance(schema, dict):
        if schema.get("type") == "object" or "properties" in schema:
            yield path, schema
        conditions = ("anyOf", "dependencies") if schema.get("type") == "object" else ()  # of keys that are declared
        for key, value in schema.items():
            if key not in conditions:
                yield from sections(value, f"{path}/{key}")
    elif isinstance(schema, list):
        for number, value in enumerate(schema):
            yield from sections(value, f"{path}/{number}")


def test_the_schema_is_closed_at_every_level() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    for path, section in sections(schema):
        assert "additionalProperties" in section, path
        if section["additionalProperties"] is not False:  # a mapping: its keys and its values are declared
            assert "propertyNames" in section, path
            assert section["additionalProperties"] not in (True, {}), path


def test_every_value_has_a_comment_and_is_in_the_schema() -> None:
    text = (CHART / "values.yaml").read_text()
    documented = re.compile(r"^( *)# -- ", re.M)
    assert len(documented.findall(text)) > 60
    schema = json.loads((CHART / "values.schema.json").read_text())

    def known(values: dict[str, Any], section: dict[str, Any], path: str) -> None:
        while "$ref" in section or "allOf" in section:
            section = (
                section["allOf"][0] if "allOf" in section else schema["definitions"][section["$ref"].split("/")[-1]]
            )
        for key, value in values.items():
            if "properties" in section:
                assert key in section["properties"], f"{path}.{key}"
                if isinstance(value, dict):
                    known(value, section["properties"][key], f"{path}.{key}")

    known(yaml.safe_load(text), schema, "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dask": {"worker": {}}}, "worker"),
        ({"dask": {"workers": {"replica": 3}}}, "replica"),
        ({"dask": {"workers": {"memory": "4GB"}}}, "pattern"),
        ({"dask": {"workers": {"spill": {"size": "16Gi", "class": "fast"}}}}, "class"),
        ({"dask": {"mode": "local"}}, "mode"),
        ({"dask": {"address": "tcp://scheduler:8786"}}, "address"),
        ({"mode": "once"}, "mode"),
        ({"secrets": {"ledger": {"url": "postgresql://u:p@h/d"}}}, "url"),
        ({"secrets": {"storage": {"accessKeyId": "AKIA"}}}, "accessKeyId"),
        ({"secrets": {"kek": {"existingSecret": ""}}}, "existingSecret"),
        ({"storage": {"endpointUrl": "https://user:password@s3.example"}}, "endpointUrl"),
        ({"prefect": {"apiUrl": "https://user:password@prefect.example/api"}}, "apiUrl"),
        ({"cronJob": {"schedule": "every night"}}, "schedule"),
        ({"image": {"digest": "sha256:abc"}}, "digest"),
        ({"proxy": {"url": "http://user:password@proxy.example:3128"}}, "proxy"),
        ({"networkPolicy": {"storage": {"to": [{"everyone": True}]}}}, "everyone"),
        ({"networkPolicy": {"storage": {"to": [{}]}}}, "to"),
        ({"release": {"settings": {"Work": "s3://b"}}}, "Work"),
        # what Kubernetes itself would refuse, when the half of it is installed
        ({"cronJob": {"schedule": "0 24 * * *"}}, "schedule"),
        ({"networkPolicy": {"ledger": {"to": [{"ipBlock": {"cidr": "10.0.0.0/33"}}]}}}, "cidr"),
        (
            {"networkPolicy": {"dns": {"to": [{"ipBlock": {"cidr": "::/0"}, "podSelector": {"matchLabels": {}}}]}}},
            "maxProperties",
        ),
        ({"driver": {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]}}, "tolerations"),
        ({"driver": {"tolerations": [{"effect": "NoSchedule"}]}}, "tolerations"),
        (
            {"driver": {"tolerations": [{"operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 3}]}},
            "effect",
        ),
        ({"driver": {"serviceAccountAnnotations": {"role": 3}}}, "role"),
        ({"commonLabels": {"team": "a b"}}, "team"),
        ({"podAnnotations": {"team": 3}}, "team"),
        ({"extraEnv": [{"name": "DPDIST_PINNED", "value": "{}"}]}, "extraEnv"),
        ({"extraEnv": [{"name": "AWS_ENDPOINT_URL", "value": "http://elsewhere"}]}, "extraEnv"),
        ({"extraEnv": [{"name": "TZ", "value": 1}]}, "extraEnv"),
        ({"commonLabels": {"x" * 64: "a"}}, "xxx"),
        ({"image": {"repository": "registry.example/a//b"}}, "repository"),
        ({"secrets": {"kek": {"existingSecret": "a..b"}}}, "existingSecret"),
        ({"driver": {"cpu": "0.0"}}, "cpu"),
        ({"dask": {"groups": [{"name": "north", "replicas": 1, "resources": {}}]}}, "resources"),
        ({"dask": {"groups": [{"name": "North", "replicas": 1, "resources": {"a": 1}}]}}, "name"),
    ],
)
def test_unknown_and_malformed_values_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        render(example("job", changes))


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"image": {"repository": ""}}, "--set image.repository="),
        ({"image": {"tag": "1", "digest": "sha256:" + "0" * 64}}, "drop the tag"),
        ({"release": {"spec": "", "schema": ""}}, "--set-file release.spec=FILE"),
        ({"release": {"spec": "deploy/releases/acs2024.yaml"}}, "--set instead of --set-file"),
        ({"release": {"existingConfigMap": "mine"}}, "not both"),
        ({"release": {"schema": ""}}, "--set-file release.schema=FILE"),
        ({"release": {"settings": {"ledger": "postgresql://h/d"}}}, "secrets.ledger.existingSecret"),
        ({"release": {"settings": {"cluster": {"address": "tls://other:1"}}}}, "dask.address"),
        ({"release": {"settings": {"output": {"signing_key": "/tmp/key"}}}}, "secrets.signing"),
        ({"release": {"settings": {"work": "/tmp/work"}}}, "release.settings.work=s3://"),
        ({"release": {"settings": {"data": {"path": ["s3://b/a", "b.parquet"]}}}}, "release.settings.data.path="),
        ({"secrets": {"storage": {"existingSecret": ""}}}, "serviceAccountAnnotations"),
        ({"storage": {"endpointUrl": "https://s3.example:9000"}}, "networkPolicy.storage.ports={9000}"),
        ({"storage": {"endpointUrl": "http://s3.example"}}, "networkPolicy.storage.ports={80}"),
        (
            {"release": {"settings": {"output": {"storage": {"endpoint_url": "https://s3.example:9000"}}}}},
            "output.storage.endpoint_url is on port 9000",
        ),
        ({"mode": "prefect"}, "prefect.apiUrl is empty"),
        ({"prefect": {"apiUrl": "https://prefect.example/api"}}, "set mode=prefect"),
        (
            {"mode": "prefect", "prefect": {"apiUrl": "http://prefect/api", "apiKey": {"existingSecret": "key"}}},
            "in the clear",
        ),
        ({"dask": {"mode": "external"}}, "dask.address is empty"),
        ({"dask": {"mode": "external", "address": "tls://dask:9999"}}, "networkPolicy.dask.ports={9999}"),
        ({"dask": {"address": "tls://dask:8786"}}, "dask.mode=external"),
        ({"dask": {"workers": {"replicas": 0}}}, "there are no workers"),
        (
            {"dask": {"mode": "operator", "workers": {"autoscaling": {"enabled": True}}}},
            "without TLS, which it refuses",
        ),
        (
            {"dask": {"workers": {"autoscaling": {"enabled": True, "minimum": 9, "maximum": 3}}}},
            "minimum=9 exceeds maximum=3",
        ),
        ({"mode": "workers"}, "drop release.*"),
        ({"mode": "workers"}, "set dask.mode=external"),
        ({"mode": "workers"}, "networkPolicy.members names no pods"),
        ({"dask": {"joining": 2}}, "networkPolicy.members does not admit"),
        ({"dask": {"mode": "external", "joining": 2}}, "set it where the scheduler is"),
        ({"dask": {"groups": [{"name": "north", "replicas": 1, "resources": {"a": 1}}]}}, "credentials of its own"),
        (
            {"dask": {"groups": [{"name": "north", "replicas": 1, "resources": {"a": 1}}]}},
            "key-encryption key of its own",
        ),
        ({"dask": {"workers": {"memory": "256Mi"}}}, "512Mi or more"),
        ({"secrets": {"tls": {"worker": "dpdist-tls-client"}}}, "a secret each"),
        (
            {"commonLabels": {"app.kubernetes.io/instance": "b"}},
            "commonLabels.app.kubernetes.io/instance would replace",
        ),
        ({"commonLabels": {"dpdist/group": "b"}}, "commonLabels.dpdist/group would replace"),
        ({"mode": "prefect", "prefect": {"apiUrl": "http://prefect:8080/api"}}, "networkPolicy.prefect.ports={8080}"),
        ({"prefect": {"memory": "64Mi"}}, "prefect.memory=64Mi"),
        ({"proxy": {"url": "http://proxy.example:3128"}}, "networkPolicy.storage.ports={3128}"),
        ({"proxy": {"except": ["example.org"]}}, "set proxy.url"),
        (
            {
                "mode": "prefect",
                "prefect": {"apiUrl": "https://prefect.example/api"},
                "proxy": {"url": "http://proxy.example:3128"},
                "networkPolicy": {"storage": {"ports": [3128]}},
            },
            "reached through proxy.url, which is on port 3128, which networkPolicy.prefect.ports",
        ),
        (
            {
                "storage": {"endpointUrl": "https://s3.bank.example:9000"},
                "proxy": {"url": "http://proxy.example:3128", "except": [".bank.example"]},
                "networkPolicy": {"storage": {"ports": [3128]}},
            },
            "storage.endpointUrl is on port 9000",
        ),
    ],
)
def test_values_that_contradict_each_other_fail_with_advice(changes: dict[str, Any], advice: str) -> None:
    with pytest.raises(RuntimeError, match=re.escape(advice)):
        render(example("job", changes))


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"memory": "64Mi"}, "north.memory=64Mi"),
        (
            {"secrets": {"kek": {"existingSecret": "dpdist-kek"}}},
            '"dpdist-kek" of the common workers as its secrets.kek',
        ),
        ({"secrets": {"storage": {"existingSecret": "south-storage"}}}, "give it one of its own"),
        ({"secrets": {"identity": {"existingSecret": "south-identity", "key": "k"}}}, "give it one of its own"),
        ({"secrets": {"ledger": {"existingSecret": "dpdist-ledger"}}}, '"dpdist-ledger" of the driver'),
        ({"secrets": {"identity": {"existingSecret": "dpdist-tls-client"}}}, '"dpdist-tls-client" of the driver'),
    ],
)
def test_a_group_has_what_is_its_own(changes: dict[str, Any], advice: str) -> None:
    groups = example("federated")["dask"]["groups"]
    assert groups[0]["name"] == "north"
    merge(groups[0], changes)
    with pytest.raises(RuntimeError, match=re.escape(advice)):
        render(example("federated", {"dask": {"groups": groups}}))


def test_groups_need_names_of_their_own() -> None:
    for names in (["north", "north"], ["workers"], ["scheduler"], ["default"]):
        groups = [
            {"name": n, "replicas": 1, "resources": {"a": 1}, "secrets": {"storage": {"existingSecret": n}}}
            for n in names
        ]
        with pytest.raises(RuntimeError, match="choose another"):
            render(example("job", {"dask": {"groups": groups}}))


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(RuntimeError) as caught:
        render(example("job", {"image": {"repository": ""}, "dask": {"workers": {"replicas": 0}}, "mode": "prefect"}))
    assert all(text in str(caught.value) for text in ("image.repository", "no workers", "prefect.apiUrl"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_own_annotations_and_variables_are_on_every_pod(name: str) -> None:
    given = {
        "podAnnotations": {"example.org/team": "census", "dpdist/secrets-generation": "0"},
        "extraEnv": [{"name": "TZ", "value": "Europe/Vienna"}, {"name": "LITERAL", "value": "$(HOME)"}],
    }
    rendered = render(example(name, given))
    for _, pod in pod_specs(rendered):
        for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])):
            names = {variable["name"]: variable.get("value") for variable in container["env"]}
            assert names["TZ"] == "Europe/Vienna"
            assert names["LITERAL"] == "$$(HOME)"
            assert len(names) == len(container["env"])
    assert list(check(rendered.manifests, "1.37")) == []
    deployments = [m for m in rendered.manifests if m["kind"] == "Deployment"]
    for manifest in deployments:
        assert manifest["spec"]["template"]["metadata"]["annotations"]["example.org/team"] == "census"
    assert "example.org/team" in rendered.text
    assert 'dpdist/secrets-generation: "0"' not in rendered.text


AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["nvme"]}]}]
        }
    },
    "podAntiAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {
                "weight": 50,
                "podAffinityTerm": {
                    "labelSelector": {"matchLabels": {"noisy": "yes"}},
                    "topologyKey": "kubernetes.io/hostname",
                },
            }
        ]
    },
}
VOLUMES = [
    {"name": "codes", "mountPath": "/opt/codes", "source": {"configMap": {"name": "codes"}}},
    {"name": "hooks", "mountPath": "/srv/hooks", "source": {"persistentVolumeClaim": {"claimName": "hooks"}}},
]


@pytest.mark.parametrize("name", EXAMPLES)
def test_placement_accounts_and_volumes_of_your_own(name: str) -> None:
    placed = {"affinity": AFFINITY, "serviceAccountName": "ours"}
    changes = {
        "driver": placed,
        "dask": {"scheduler": placed, "workers": placed},
        "prefect": {"serviceAccountName": "ours"},
        "extraVolumes": VOLUMES,
    }
    rendered = render(example(name, changes))
    assert list(check(rendered.manifests, "1.37")) == []
    common = [pod for kind, pod in pod_specs(rendered) if "dpdist/group" not in pod["metadata"]["labels"]]
    common += [p for _, p in pod_specs(rendered) if p["metadata"]["labels"].get("dpdist/group") == "workers"]
    for pod in common:
        component = pod["metadata"]["labels"]["dpdist/component"]
        assert pod["spec"]["affinity"] == AFFINITY, component
        assert pod["spec"]["serviceAccountName"] == "ours", component
        mounts = {mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"] if mount.get("readOnly")}
        assert ({"/opt/codes", "/srv/hooks"} <= mounts) is (component in {"release", "worker"}), component
    made = {manifest["metadata"]["name"] for manifest in rendered.manifests if manifest["kind"] == "ServiceAccount"}
    assert not {account for account in made if account.endswith(("-release", "-scheduler", "-workers", "-prefect"))}


@pytest.mark.parametrize(
    "volume",
    [
        {"name": "codes", "mountPath": "/run/secrets/dpdist", "source": {"configMap": {"name": "codes"}}},
        {"name": "codes", "mountPath": "/tmp", "source": {"configMap": {"name": "codes"}}},
        {"name": "codes", "mountPath": "relative", "source": {"configMap": {"name": "codes"}}},
        {"name": "codes", "mountPath": "/opt/codes", "source": {"hostPath": {"path": "/etc"}}},
        {
            "name": "codes",
            "mountPath": "/opt/codes",
            "source": {"configMap": {"name": "a"}, "secret": {"secretName": "b"}},
        },
    ],
)
def test_volumes_that_the_chart_does_not_mount(volume: dict[str, Any]) -> None:
    with pytest.raises(RuntimeError, match="extraVolumes"):
        render(example("job", {"extraVolumes": [volume]}))


@pytest.mark.parametrize("name", EXAMPLES)
def test_helm_test_asks_in_each_kind_of_pod(name: str, tmp_path: Path) -> None:
    values = example(name, {"test": {"denied": ["10.1.2.3:5432"]}})
    assert not render(values).all("Pod")
    shutil.copytree(CHART, tmp_path / "dpdist")
    hook = tmp_path / "dpdist" / "templates" / "tests" / "connections.yaml"  # a hook is no manifest of the release
    hook.write_text("".join(line for line in hook.read_text().splitlines(keepends=True) if "helm.sh/hook" not in line))
    tests = render(values, path=tmp_path / "dpdist").all("Pod")
    asked = {manifest["metadata"]["labels"]["dpdist/component"]: manifest for manifest in tests}
    assert list(check(tests, "1.37")) == []
    expected = {"client": {"worker"}, "external": {"release"}}.get(name, {"release", "worker", "scheduler"})
    assert set(asked) == expected | ({"prefect"} if name == "prefect" else set())
    for component, manifest in asked.items():
        container = manifest["spec"]["containers"][0]
        wanted = json.loads(container["args"][1])
        assert wanted["10.1.2.3:5432"] == ["10.1.2.3:5432", False]
        assert wanted["the Kubernetes API"][1] is (component == "prefect")
        assert ("the ledger" in wanted) is (component == "release")
        assert any(variable["name"] == "DPDIST_LEDGER" for variable in container["env"]) is (component == "release")
        assert not any(label.startswith("app.kubernetes.io/") for label in manifest["metadata"]["labels"])
        compile(container["args"][0], "connections.py", "exec")


def test_pages_have_deployments_where_there_is_a_place_for_them() -> None:
    def of(changes: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
        rendered = render(example("prefect", changes))
        told = rendered.one("ConfigMap", "-prefect")["data"]
        job = json.loads(told["base-job-template.json"])["job_configuration"]["job_manifest"]
        variables = job["spec"]["template"]["spec"]["containers"][0]["env"]
        entries = [one["entrypoint"] for one in yaml.safe_load(told["prefect.yaml"])["deployments"]]
        return entries, {variable["name"]: variable.get("value", "") for variable in variables}

    entries, variables = of({})
    assert entries == ["flows/release.py:release"]
    assert "DPDIST_PAGES" not in variables
    entries, variables = of({"prefect": {"pages": "s3://census-confidential/pages"}})
    assert entries == ["flows/release.py:release", "flows/evaluate.py:evaluate", "flows/ledger.py:ledger"]
    assert variables["DPDIST_PAGES"] == "s3://census-confidential/pages"
    for entry in entries:
        file, function = entry.split(":")
        assert f"def {function}(" in (ROOT / file).read_text()


def test_settings_reach_the_command_line_as_they_are() -> None:
    from dpdist.spec.validation import parse_overrides

    given_settings = {
        "privacy": {"model": {"epsilon": 0.5, "delta": 1e-9}},
        "synthesis": {"records": 1_200_000},
        "model": {"order": ["sex", "age"]},
        "output": {"path": 's3://b/it\'s "quoted" & $(DPDIST_LEDGER) {{ .Values }}'},
    }
    job = render(example("job", {"release": {"settings": given_settings}})).one("Job")
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[::2] == ["--set"] * (len(arguments) // 2)
    read = parse_overrides(text.replace("$$(", "$(") for text in arguments[1::2])  # as the kubelet reads them
    assert read["privacy.model.epsilon"] == 0.5
    assert read["privacy.model.delta"] == 1e-9
    assert read["synthesis.records"] == 1_200_000
    assert isinstance(read["synthesis.records"], int)
    assert read["model.order"] == ["sex", "age"]
    assert read["output.path"] == given_settings["output"]["path"]
    assert "$$(DPDIST_LEDGER)" in "".join(arguments)  # or the kubelet would put the secret there


@pytest.mark.parametrize("name", EXAMPLES)
def test_notes_tell_what_to_do_next(name: str) -> None:
    values = example(name)
    notes = render(values).notes
    assert "kubectl" in notes
    assert "ledger create" in notes
    assert ("port-forward" in notes) == (name not in ("client", "external"))
    assert notes.count("-$(date +%s)") == notes.count("--from=cronjob") == 2 * (name == "cronjob")  # not once only
    assert ("job/NAME" in notes) == (name == "cronjob")  # the logs of one run, not of all that are kept
    assert ("the ledger's database on port 5432 only" in notes) == (name != "client")
    assert ("Workers may reach any address" in notes) == (
        name not in ("client", "federated") and "to" not in str(values.get("networkPolicy", {}).get("storage"))
    )
    assert "<no value>" not in notes
    for where, template in pod_specs(render(values)):
        for secret in re.findall(
            r"'(?:name|secretName)': '((?:dpdist|north|south)-[a-z-]+)', '(?:items|key)'", str(template)
        ):
            assert secret in notes, (where, secret)
    assert "WARNING" in render(merge(values, {"networkPolicy": {"enabled": False}})).notes


def test_notes_warn_of_what_crosses_the_network_in_the_clear() -> None:
    def notes(endpoint: str) -> str:
        storage = {"endpointUrl": endpoint}
        return render(example("job", {"storage": storage, "networkPolicy": {"storage": {"ports": [9000]}}})).notes

    assert "in the clear" in notes("http://s3.example:9000")
    assert "in the clear" not in notes("https://s3.example:9000")


def test_cores_are_numbers_or_texts() -> None:
    for cpu in (2, "2", "500m", "1.5"):
        job = render(example("job", {"driver": {"cpu": cpu}})).one("Job")
        container = job["spec"]["template"]["spec"]["containers"][0]
        assert container["resources"]["requests"]["cpu"] == str(cpu)
        assert {"name": "OPENBLAS_NUM_THREADS", "value": "1"} in container["env"]  # whatever the node has


def test_the_chart_has_the_version_of_the_package() -> None:
    import dpdist

    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == dpdist.__version__
    assert not (CHART / "charts").exists()  # no remote subchart: it lints and renders offline
    assert "dependencies" not in chart
    assert (ROOT / "helm").is_dir()


# Attacks

odd = st.sampled_from(
    [
        "123",
        "1e5",
        "true",
        "null",
        "on",
        "0x1f",
        "a\nb",
        "a: b",
        "'",
        '"',
        "{{ .Values }}",
        "-",
        "",
        "~",
        "é",
        "x" * 300,
    ]
)
number = st.sampled_from([-1, 0, 1, 2, 7, 10**6, 2**53])
leaf = st.one_of(
    odd, number, st.booleans(), st.none(), st.lists(odd, max_size=2), st.dictionaries(odd, odd, max_size=2)
)


def leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all values, sections included."""
    for key, value in tree.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))


PATHS = sorted(leaves(yaml.safe_load((CHART / "values.yaml").read_text()))) + [
    ("release", "settings", name) for name in ("work", "data", "output", "cluster", "name", "synthesis")
]


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(EXAMPLES),
    changes=st.lists(st.tuples(st.sampled_from(PATHS), leaf), min_size=1, max_size=2),
    release=st.sampled_from(["acs", "2024", "true", "a" * 53, "acs-dpdist-1"]),
)
def test_whatever_is_given_is_refused_or_valid(name: str, changes: list[Any], release: str) -> None:
    """No value passes Helm and is refused, or read as something else, by Kubernetes."""
    values = example(name)
    for path, value in changes:
        nested: Any = value
        for key in reversed(path):
            nested = {key: nested}
        values = merge(values, nested)
    refused = ""
    try:
        rendered = render(values, release=release)
    except RuntimeError as error:
        refused = str(error)
    if refused:
        assert not re.search("nil pointer|error calling|wrong type|panic|can't evaluate", refused), refused
        return
    assert list(check(rendered.manifests, "1.37")) == []
    for manifest in rendered.manifests:
        assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", manifest["metadata"]["name"])
        for value in manifest["metadata"]["labels"].values():
            assert re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", value)


@pytest.mark.parametrize("release", ["2024", "1e5"])
def test_a_release_that_begins_with_a_digit(release: str) -> None:
    with pytest.raises(RuntimeError, match="fullnameOverride=NAME"):
        render(example("job"), release=release)
    rendered = render(example("job", {"fullnameOverride": "census"}), release=release)
    assert rendered.one("Job")["metadata"]["labels"]["app.kubernetes.io/instance"] == release
    assert list(check(rendered.manifests, "1.37")) == []
