"""What the rendered objects allow: no root, no token, no secret in the clear, no open port, no second try."""

import json
import re
from typing import Any

import pytest
import yaml
from charts import EXAMPLES, ROOT, Rendered, example, merge, need_tools, pod_specs, render

COMPONENT = "dpdist/component"


@pytest.fixture(autouse=True)
def _tools() -> None:
    need_tools()


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_pod_is_hardened(name: str) -> None:
    """As Pod Security's level "restricted" asks, and more."""
    pods = pod_specs(render(example(name)))
    assert pods
    for where, template in pods:
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"], where
        assert pod["securityContext"]["runAsUser"] >= 10_000, where
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, where
        assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & set(pod), where
        assert pod["enableServiceLinks"] is False, where
        assert {kind for v in pod["volumes"] for kind in v if kind != "name"} <= {
            "configMap",
            "emptyDir",
            "ephemeral",
            "persistentVolumeClaim",
            "projected",
        }, where
        for container in pod["containers"] + pod.get("initContainers", []):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, where
            assert context["readOnlyRootFilesystem"] is True, where
            assert context["capabilities"] == {"drop": ["ALL"]}, where
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}, where
            assert "privileged" not in context, where
            assert container["resources"]["limits"]["memory"] == container["resources"]["requests"]["memory"], where
            assert container["resources"]["requests"]["cpu"], where
            folders = [v["emptyDir"]["sizeLimit"] for v in pod["volumes"] if "emptyDir" in v]
            disk = container["resources"]["limits"]["ephemeral-storage"]
            assert mebibytes(disk) == 1024 + sum(map(mebibytes, folders)), where  # what they hold, and logs
            writable = [m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")]
            assert set(writable) <= {"/tmp", "/spill", "/data"}, where


def mebibytes(size: str) -> int:
    """A size of Kubernetes."""
    return int(size[:-2]) * {"Mi": 1, "Gi": 1024}[size[-2:]]


@pytest.mark.parametrize("name", EXAMPLES)
def test_only_the_prefect_worker_has_rights_in_the_cluster(name: str) -> None:
    rendered = render(example(name))
    accounts = {m["metadata"]["name"] for m in rendered.all("ServiceAccount")}
    assert not any(m["automountServiceAccountToken"] for m in rendered.all("ServiceAccount"))
    for where, template in pod_specs(rendered):
        assert template["spec"]["serviceAccountName"] in accounts, where
        assert template["spec"]["automountServiceAccountToken"] is where.startswith("Deployment acs-dpdist-prefect"), (
            where
        )
    assert not rendered.all("ClusterRole") + rendered.all("ClusterRoleBinding")
    if name != "prefect":
        assert not rendered.all("Role")
        return
    role = rendered.one("Role")
    rights = {(r, verb) for rule in role["rules"] for r in rule["resources"] for verb in rule["verbs"]}
    assert ("jobs", "create") in rights
    assert {r for r, _ in rights} == {"jobs", "pods", "pods/log"}
    assert not {verb for _, verb in rights} & {"*", "patch", "update", "impersonate", "escalate", "bind"}
    (subject,) = rendered.one("RoleBinding")["subjects"]
    assert subject["name"] == "acs-dpdist-prefect"


def secret_names(template: dict[str, Any]) -> set[str]:
    """Secrets that a pod can read."""
    pod = template["spec"]
    names = {
        source["secret"]["name"]
        for volume in pod["volumes"]
        for source in volume.get("projected", {}).get("sources", [])
    }
    for container in pod["containers"] + pod.get("initContainers", []):
        assert "envFrom" not in container
        for variable in container["env"]:
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference:
                names.add(reference["name"])
    return names


def test_each_pod_has_its_own_secrets_and_no_other() -> None:
    """What a pod that is taken over can read."""
    rendered = render(example("federated", {"secrets": {"signing": {"existingSecret": "dpdist-signing"}}}))
    held = {where: secret_names(template) for where, template in pod_specs(rendered)}
    release = next(where for where in held if where.startswith("Job"))
    assert held[release] == {"dpdist-ledger", "dpdist-kek", "dpdist-storage", "dpdist-tls-client", "dpdist-signing"}
    assert held["Deployment acs-dpdist-scheduler"] == {"dpdist-tls-scheduler"}
    assert held["Deployment acs-dpdist-workers"] == {"dpdist-tls-worker", "dpdist-kek", "dpdist-storage"}
    for site in ("north", "south"):
        own = {f"{site}-{name}" for name in ("kek", "storage", "ledger", "identity")}
        assert held[f"Deployment acs-dpdist-{site}"] == {"dpdist-tls-worker"} | own


def test_the_prefect_worker_holds_no_secret_of_a_release() -> None:
    rendered = render(example("prefect"))
    held = {where: secret_names(template) for where, template in pod_specs(rendered)}
    assert held["Deployment acs-dpdist-prefect"] == {"dpdist-prefect"}
    assert held["work pool acs-dpdist-prefect"] == {
        "dpdist-ledger",
        "dpdist-kek",
        "dpdist-storage",
        "dpdist-tls-client",
        "dpdist-prefect",
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_credential_is_written_down(name: str) -> None:
    rendered = render(example(name))
    assert not rendered.all("Secret")
    for where, template in pod_specs(rendered):
        for container in template["spec"]["containers"]:
            for variable in container["env"]:
                if re.search("KEY|SECRET|PASSWORD|TOKEN|LEDGER", variable["name"]) or variable["name"] == "DPDIST_KEK":
                    assert "valueFrom" in variable, (where, variable["name"])
            for volume in template["spec"]["volumes"]:
                if "projected" in volume:
                    assert volume["projected"]["defaultMode"] == 0o440, where


def test_the_files_are_where_the_settings_say() -> None:
    job = render(example("job", {"secrets": {"signing": {"existingSecret": "s"}}})).one("Job")
    pod = job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    (volume,) = [v for v in pod["volumes"] if v["name"] == "secrets"]
    files = {
        f"/run/secrets/dpdist/{item['path']}" for s in volume["projected"]["sources"] for item in s["secret"]["items"]
    }
    named = set(
        re.findall(
            r"/run/secrets/dpdist/[\w.-]+", " ".join(container["args"] + [v.get("value", "") for v in container["env"]])
        )
    )
    assert named == files


# Network


def allowed(rendered: Any, direction: str, component: str) -> list[dict[str, Any]]:
    """Rules for the pods of a component, of all policies together."""
    labels = {"dpdist/instance": "acs-dpdist", "dpdist/component": component}
    return [
        rule
        for policy in rendered.all("NetworkPolicy")
        if policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
        for rule in policy["spec"].get(direction) or []
    ]


def components(rules: list[dict[str, Any]], side: str) -> set[tuple[str, int]]:
    """(component, port) of the rules that name pods of the release."""
    return {
        (peer["podSelector"]["matchLabels"]["dpdist/component"], port["port"])
        for rule in rules
        for peer in rule[side]
        if "dpdist/component" in peer.get("podSelector", {}).get("matchLabels", {})
        for port in rule["ports"]
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_all_is_denied_but_what_is_named(name: str) -> None:
    rendered = render(example(name))
    deny = rendered.one("NetworkPolicy", "-deny")["spec"]
    assert deny["policyTypes"] == ["Ingress", "Egress"]
    assert deny["ingress"] == deny["egress"] == []
    for where, template in pod_specs(rendered):
        assert deny["podSelector"]["matchLabels"].items() <= template["metadata"]["labels"].items(), where
    for policy in rendered.all("NetworkPolicy"):
        for direction, side in (("ingress", "from"), ("egress", "to")):
            for rule in policy["spec"].get(direction) or []:
                assert rule[side], policy["metadata"]["name"]  # an empty one would mean everyone
                assert rule["ports"], policy["metadata"]["name"]
                assert all(rule[side]), policy["metadata"]["name"]


def test_who_may_speak_to_whom() -> None:
    rendered = render(example("job"))
    assert components(allowed(rendered, "ingress", "scheduler"), "from") == {("worker", 8786), ("release", 8786)}
    assert components(allowed(rendered, "ingress", "worker"), "from") == {
        (component, port) for component in ("scheduler", "worker") for port in (8788, 8789)
    }
    assert allowed(rendered, "ingress", "release") == []
    assert components(allowed(rendered, "egress", "worker"), "to") == {("scheduler", 8786), ("worker", 8788)}
    ports = {port["port"] for rule in allowed(rendered, "egress", "worker") for port in rule["ports"]}
    assert ports == {53, 443, 8786, 8788}  # the ledger's database is not one of them
    assert 5432 in {port["port"] for rule in allowed(rendered, "egress", "release") for port in rule["ports"]}
    scheduler = {port["port"] for rule in allowed(rendered, "egress", "scheduler") for port in rule["ports"]}
    assert scheduler == {53, 8788, 8789}  # nor does the scheduler reach the store


def test_both_sides_of_every_connection_are_allowed() -> None:
    rendered = render(example("job"))
    for source in ("scheduler", "worker", "release"):
        for target, port in components(allowed(rendered, "egress", source), "to"):
            assert (source, port) in components(allowed(rendered, "ingress", target), "from"), (source, target, port)


def test_workers_of_another_namespace_join_and_reach_the_cluster_only() -> None:
    """What one namespace sends, the other lets in: clients' workers with the scheduler and the common workers."""
    place = "kubernetes.io/metadata.name"
    clients = [
        {"namespaceSelector": {"matchLabels": {place: "north"}}, "podSelector": {"matchLabels": {COMPONENT: "worker"}}}
    ]
    central = example("job", {"dask": {"joining": 1}, "networkPolicy": {"members": clients}})
    there, here = render(central, namespace="census"), render(example("client"), namespace="north")

    def across(rendered: Rendered, direction: str, side: str, component: str, other: str) -> set[tuple[str, int]]:
        rules = allowed(rendered, direction, component)
        peers = [(peer, rule["ports"]) for rule in rules for peer in rule[side]]
        return {
            (peer["podSelector"]["matchLabels"][COMPONENT], port["port"])
            for peer, ports in peers
            if peer.get("namespaceSelector", {}).get("matchLabels", {}).get(place) == other
            for port in ports
        }

    for target in ("scheduler", "worker"):
        sent = {port for to, port in across(here, "egress", "to", "worker", "census") if to == target}
        let_in = {port for _, port in across(there, "ingress", "from", target, "north")}
        assert {8786 if target == "scheduler" else 8788} <= sent & let_in
        back = {port for _, port in across(there, "egress", "to", target, "north")}
        into = {port for who, port in across(here, "ingress", "from", "worker", "census") if who == target}
        assert {8788} <= back <= into, target
    for component in ("release", "prefect"):
        assert not across(there, "egress", "to", component, "north")
        assert not across(there, "ingress", "from", component, "north")
    command = there.one("Job")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "cluster.workers=5" in command  # four of its own, one that joins
    assert {manifest["kind"] for manifest in here.manifests} == {
        "Deployment", "NetworkPolicy", "PodDisruptionBudget", "ServiceAccount"
    }  # fmt: skip


def test_the_metadata_service_of_a_cloud_is_out_of_reach() -> None:
    for rule in allowed(render(example("job")), "egress", "worker"):
        for peer in rule["to"]:
            block = peer.get("ipBlock", {})
            if block.get("cidr") == "0.0.0.0/0":
                assert "169.254.0.0/16" in block["except"]
            if block.get("cidr") == "::/0":
                assert "fd00:ec2::254/128" in block["except"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_policies_and_budgets_find_pods_by_labels_that_only_the_chart_writes(name: str) -> None:
    """A Prefect worker replaces app.kubernetes.io/name of the jobs that it makes, and of their pods."""
    rendered = render(example(name))
    pods = [template["metadata"]["labels"] for _, template in pod_specs(rendered)]
    for kind, place in (("NetworkPolicy", "podSelector"), ("PodDisruptionBudget", "selector")):
        for found in rendered.all(kind):
            wanted = found["spec"][place]["matchLabels"]
            assert all(label.startswith("dpdist/") for label in wanted)
            assert any(wanted.items() <= labels.items() for labels in pods), found["metadata"]["name"]


def test_ports_of_the_containers_are_those_of_the_policies() -> None:
    rendered = render(example("job"))
    for where, template in pod_specs(rendered):
        container = template["spec"]["containers"][0]
        opened = {port["containerPort"] for port in container.get("ports", [])}
        component = template["metadata"]["labels"]["app.kubernetes.io/component"]
        assert opened == {port["port"] for rule in allowed(rendered, "ingress", component) for port in rule["ports"]}, (
            where
        )
        if component != "release":
            assert "127.0.0.1:" in container["args"][container["args"].index("--dashboard-address") + 1], where


def test_dask_speaks_tls_only() -> None:
    for name in ("job", "operator", "external", "federated"):
        rendered = render(example(name))
        assert "tcp://" not in rendered.text, name
        for where, template in pod_specs(rendered):
            container = template["spec"]["containers"][0]
            text = " ".join(container["args"])
            assert "tls://" in text or "--protocol tls" in text, where
            assert "/run/secrets/dpdist/key.pem" in text, where


# Once


@pytest.mark.parametrize("name", ["job", "cronjob", "prefect"])
def test_kubernetes_repeats_nothing(name: str) -> None:
    rendered = render(example(name))
    if name == "prefect":
        template = json.loads(rendered.one("ConfigMap", "-prefect")["data"]["base-job-template.json"])
        spec = template["job_configuration"]["job_manifest"]["spec"]
    elif name == "cronjob":
        cron = rendered.one("CronJob")["spec"]
        assert cron["concurrencyPolicy"] == "Forbid"
        spec = cron["jobTemplate"]["spec"]
    else:
        spec = rendered.one("Job")["spec"]
    assert spec["backoffLimit"] == 0
    assert (spec["completions"], spec["parallelism"]) == (1, 1)
    assert spec["activeDeadlineSeconds"] == 172_800  # or what hangs holds its data set's turn for ever
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert "podFailurePolicy" not in spec
    if name != "prefect":
        assert spec["template"]["spec"]["containers"][0]["command"][-1] == "--once"


def test_another_spec_is_another_job_and_the_same_is_the_same() -> None:
    name = render(example("job")).one("Job")["metadata"]["name"]
    assert render(example("job")).one("Job")["metadata"]["name"] == name
    spec = example("job")["release"]["spec"]
    for changes in (
        {"release": {"spec": spec + "\n# another\n"}},
        {"release": {"settings": {"synthesis": {"records": 5}}}},
        {"job": {"run": 2}},
        {"image": {"tag": "2"}},
        {"secrets": {"generation": 2}},
        {"job": {"activeDeadlineSeconds": 100}},
    ):
        assert render(example("job", changes)).one("Job")["metadata"]["name"] != name, changes


def test_what_changes_starts_the_pods_again() -> None:
    def annotations(changes: dict[str, Any]) -> dict[str, dict[str, str]]:
        return {
            where.split()[0]: t["metadata"]["annotations"]
            for where, t in pod_specs(render(example("cronjob", changes)))
        }

    before = annotations({})
    spec = annotations({"release": {"spec": example("cronjob")["release"]["spec"] + "\n# another\n"}})
    assert spec["CronJob"]["checksum/spec"] != before["CronJob"]["checksum/spec"]
    assert spec["Deployment"] == before["Deployment"]  # workers do not read it
    rotated = annotations({"secrets": {"generation": 2}})
    assert all(rotated[kind] != before[kind] for kind in before)


def test_the_operator_gets_another_cluster_for_other_pods() -> None:
    """It changes nothing of a cluster that runs, but adds workers."""

    def cluster(changes: dict[str, Any]) -> str:
        rendered = render(example("operator", changes), release="a" * 53)
        name = str(rendered.one("DaskCluster")["metadata"]["name"])
        assert rendered.one("DaskCluster")["spec"]["scheduler"]["service"]["selector"]["dask.org/cluster-name"] == name
        arguments = rendered.one("Job")["spec"]["template"]["spec"]["containers"][0]["args"]
        assert f'cluster.address="tls://{name}-scheduler:8786"' in arguments
        assert f"deployment/{name}-scheduler" in rendered.notes
        assert len(f"{name}-scheduler") <= 63  # or the operator refuses it
        return name

    before = cluster({})
    assert before == cluster({"release": {"settings": {"synthesis": {"records": 5}}}})
    for changes in (
        {"image": {"tag": "2"}},
        {"secrets": {"generation": 2}},
        {"dask": {"workers": {"memory": "8Gi"}}},
        {"dask": {"workers": {"replicas": 2}}},
        {"dask": {"scheduler": {"memory": "8Gi"}}},
        {"storage": {"region": "eu-central-1"}},
        {"commonLabels": {"team": "b"}},
        {"priorityClassName": "batch"},
    ):
        assert cluster(changes) != before, changes


def test_addresses_of_both_families() -> None:
    """What Dask makes of the address of a pod."""
    from distributed.comm.addressing import uri_from_host_port

    for where, template in pod_specs(render(example("job"))):
        arguments = template["spec"]["containers"][0]["args"]
        if "--host" in arguments:
            host = arguments[arguments.index("--host") + 1]
            for address, uri in (("10.1.2.3", "tcp://10.1.2.3:8786"), ("fd00::7", "tcp://[fd00::7]:8786")):
                assert uri_from_host_port(host.replace("$(POD_IP)", address), "8786", 0) == uri, where


def test_the_user_is_the_image_s_or_the_platform_s() -> None:
    for _, template in pod_specs(render(example("prefect", {"openshift": True}))):
        context = template["spec"]["securityContext"]
        assert context["runAsNonRoot"]
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(context)


def test_rules_of_the_house() -> None:
    """Authorities and a proxy for all that speak to a store, a ledger or Prefect; a priority for all pods."""
    house = {
        "trust": {"existingConfigMap": "bank"},
        "proxy": {"url": "http://proxy.example:3128", "except": [".bank.example"]},
        "networkPolicy": {"storage": {"ports": [3128]}, "prefect": {"ports": [3128]}},
        "priorityClassName": "batch",
    }
    names = {"AWS_CA_BUNDLE", "PGSSLROOTCERT", "SSL_CERT_FILE", "PREFECT_API_SSL_CERT_FILE"}
    for example_name in ("federated", "prefect"):
        for where, template in pod_specs(render(example(example_name, house))):
            pod = template["spec"]
            assert pod["priorityClassName"] == "batch", where
            for container in pod["containers"] + pod.get("initContainers", []):
                entries = {v["name"]: v.get("value") for v in container["env"]}
                assert len(entries) == len(container["env"]), where
                if container["name"] == "scheduler":
                    assert "HTTPS_PROXY" not in entries
                    continue
                assert entries["PGSSLMODE"] == "verify-full", where  # or the authority would be asked for nothing
                assert entries["HTTPS_PROXY"] == "http://proxy.example:3128", where
                direct = set(entries["NO_PROXY"].split(","))
                assert {"127.0.0.1", ".svc", "$(KUBERNETES_SERVICE_HOST)", ".bank.example"} <= direct, where
                assert {entries[name] for name in names} == {"/etc/dpdist/trust/ca.pem"}, where
                (mount,) = [m for m in container["volumeMounts"] if m["mountPath"] == "/etc/dpdist/trust"]
                (volume,) = [v for v in pod["volumes"] if v["name"] == mount["name"]]
                assert volume["configMap"] == {"name": "bank", "items": [{"key": "ca.crt", "path": "ca.pem"}]}, where
    assert not re.search("AWS_CA_BUNDLE|PGSSL|PROXY|priorityClass", render(example("prefect")).text)


def test_a_client_s_workers_do_not_see_the_common_volume() -> None:
    groups = example("federated")["dask"]["groups"]
    groups[0]["existingClaim"] = "north-data"
    values = example("federated", {"dask": {"groups": groups}, "storage": {"existingClaim": "census"}})
    claims = {
        where.split("-")[-1]: [
            v["persistentVolumeClaim"]["claimName"]
            for v in template["spec"]["volumes"]
            if len(v) > 1 and "persistentVolumeClaim" in v
        ]
        for where, template in pod_specs(render(values))
    }
    assert claims["workers"] == ["census"]
    assert claims["north"] == ["north-data"]
    assert claims["south"] == claims["scheduler"] == []


# Prefect


def flow_environment(values: dict[str, Any]) -> dict[str, str]:
    """What a flow run finds in its environment, secrets left out."""
    found = {where: template for where, template in pod_specs(render(values))}
    (container,) = found["work pool acs-dpdist-prefect"]["spec"]["containers"]
    return {v["name"]: v["value"] for v in container["env"] if "value" in v}


def test_a_flow_run_cannot_choose_what_is_read_charged_and_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    from dpdist.errors import SpecError
    from flows.release import read_spec

    signed = {"secrets": {"signing": {"existingSecret": "dpdist-signing"}}}
    region = {"release": {"settings": {"output": {"storage": {"region": "eu-central-1"}}}}}
    values = example("prefect", signed | region | {"prefect": {"pinned": {"synthesis": {"records": 1_000}}}})
    monkeypatch.setenv("DPDIST_PINNED", flow_environment(values)["DPDIST_PINNED"])
    monkeypatch.setenv("DPDIST_SPECS", str(ROOT / "deploy" / "releases"))
    deployment = yaml.safe_load(render(values).one("ConfigMap", "-prefect")["data"]["prefect.yaml"])["deployments"][0]
    given = deployment["parameters"]["settings"]
    assert given.pop("schema") == "schema.yaml"
    assert set(given) == {"output.path"}
    spec = read_spec("acs2024-whole.yaml", given)
    assert spec.cluster.address == "tls://acs-dpdist-scheduler:8786"
    assert spec.cluster.security is not None
    assert spec.work == "s3://census-confidential/work"
    assert str(spec.output.path) == "s3://census-public/acs2024-whole"
    assert (spec.dataset, spec.data.path) == ("acs", "s3://census/acs2024_workers.parquet")
    assert str(spec.output.signing_key) == "/run/secrets/dpdist/signing.pem"
    for name, value in {
        "cluster.address": "tls://elsewhere:8786",
        "cluster": {"mode": "threads"},
        "work": "s3://elsewhere/work",
        "output.signing_key": "/run/secrets/dpdist/key.pem",
        "dataset": "another",
        "data.path": "s3://census/another.parquet",
        "output.storage.endpoint_url": "https://elsewhere",  # where the work folder is, too
        "data.storage": {"profile": "other"},
        "synthesis.records": 10**6,
    }.items():
        with pytest.raises(SpecError, match="cannot be set for a run"):
            read_spec("acs2024-whole.yaml", given | {name: value})
    assert read_spec("acs2024-whole.yaml", given | {"cluster.partitions": 7}).cluster.partitions == 7
    whole = yaml.safe_load(values["release"]["spec"]) | {"schema": yaml.safe_load(values["release"]["schema"])}
    whole["output"] |= {"storage": {"endpoint_url": "https://elsewhere", "profile": "other"}}
    inline = read_spec(whole, {})
    assert (inline.output.storage.endpoint_url, inline.output.storage.profile) == (None, None)
    assert inline.output.storage.region == "eu-central-1"


def test_the_work_folder_of_a_spec_is_pinned_too() -> None:
    spec = yaml.safe_load(example("prefect")["release"]["spec"]) | {"work": "s3://b/work-$(DPDIST_LEDGER)"}
    values = example("prefect", {"release": {"spec": yaml.safe_dump(spec)}})
    del values["release"]["settings"]["work"]
    assert json.loads(flow_environment(values)["DPDIST_PINNED"])["work"] == "s3://b/work-$$(DPDIST_LEDGER)"


def test_releases_share_no_work_pool_and_no_deployment() -> None:
    """The pool's template names image and secrets: those of another release would be used."""
    values = example("prefect", {"prefect": {"workPool": "", "deployment": ""}})
    seen = set()
    for release, namespace in (("a", "x"), ("b", "x"), ("a", "y")):
        rendered = render(values, release=release, namespace=namespace)
        arguments = rendered.one("Deployment", "-prefect")["spec"]["template"]["spec"]["containers"][0]["args"]
        pool = arguments[arguments.index("--pool") + 1]
        (made,) = yaml.safe_load(rendered.one("ConfigMap", "-prefect")["data"]["prefect.yaml"])["deployments"]
        assert made["work_pool"]["name"] == pool
        assert f"release/{made['name']}" in rendered.notes
        seen |= {pool, made["name"]}
    assert seen == {"x-a-dpdist", "x-b-dpdist", "y-a-dpdist"}
    # the same release in another Kubernetes cluster, with a pool of its own: it does not end the runs of this one
    uids = [
        re.findall(r"CLUSTER_UID\n +value: (\S+)", render(merge(values, {"prefect": {"workPool": pool}})).text)
        for pool in ("one", "other")
    ]
    assert uids[0] != uids[1]
    assert [len(found) for found in uids] == [1, 1]


def test_a_federated_release_has_its_own_flow() -> None:
    address = {"mode": "prefect", "prefect": {"apiUrl": "https://prefect.example/api"}}
    for name, flow in (("prefect", "release"), ("federated", "federated")):
        rendered = render(example(name, address))
        (made,) = yaml.safe_load(rendered.one("ConfigMap", "-prefect")["data"]["prefect.yaml"])["deployments"]
        file, function = made["entrypoint"].split(":")
        assert f"def {function}(" in (ROOT / file).read_text()
        assert f"prefect deployment run {flow}/{made['name']}" in rendered.notes


def test_a_worker_that_computes_is_not_taken_for_dead() -> None:
    for name in ("job", "operator", "federated"):
        for where, template in pod_specs(render(example(name))):
            container = template["spec"]["containers"][0]
            if container["name"] == "worker":
                assert "livenessProbe" not in container, where
                assert {"startupProbe", "readinessProbe"} <= set(container), where
                limit = container["args"][container["args"].index("--memory-limit") + 1]
                room = mebibytes(container["resources"]["limits"]["memory"]) - int(limit.removesuffix("MiB"))
                assert room == 128, where  # for its nanny
            if container["name"] == "scheduler":
                assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container), where


def test_disruption_and_scaling() -> None:
    rendered = render(example("cronjob"))
    assert {m["metadata"]["name"] for m in rendered.all("PodDisruptionBudget")} == {
        "acs-dpdist-release",
        "acs-dpdist-scheduler",
        "acs-dpdist-workers",
    }
    assert rendered.one("PodDisruptionBudget", "-release")["spec"]["minAvailable"] == 1
    flows = render(example("prefect", {"prefect": {"limit": 5}})).one("PodDisruptionBudget", "-release")
    assert flows["spec"]["minAvailable"] == 5  # of two runs none is evicted because the other is there
    scaler = rendered.one("HorizontalPodAutoscaler")["spec"]
    workers = rendered.one("Deployment", "-workers")
    assert scaler["scaleTargetRef"]["name"] == workers["metadata"]["name"]
    assert "replicas" not in workers["spec"]  # or each upgrade would undo what was scaled
    assert render(example("job")).one("Deployment", "-workers")["spec"]["replicas"] == 4
    spill = next(v for v in workers["spec"]["template"]["spec"]["volumes"] if v["name"] == "spill")
    assert spill["ephemeral"]["volumeClaimTemplate"]["spec"]["storageClassName"] == "fast-local"


def test_groups_of_clients() -> None:
    rendered = render(example("federated"))
    north, south = (rendered.one("Deployment", f"-{name}")["spec"]["template"]["spec"] for name in ("north", "south"))
    assert north["nodeSelector"] == {"example.org/site": "north"}
    assert "client-north=1" in north["containers"][0]["args"]
    assert "client-south=1" in south["containers"][0]["args"]
    assert north["containers"][0]["resources"]["limits"]["memory"] == "8Gi"
    assert south["containers"][0]["resources"]["limits"]["memory"] == "4Gi"
    workers = rendered.one("Deployment", "-workers")["spec"]["template"]["spec"]
    assert "--resources" not in workers["containers"][0]["args"]
    operator = render(example("federated", {"dask": {"mode": "operator"}}))
    cluster = operator.one("DaskCluster")["metadata"]["name"]
    assert {m["metadata"]["name"] for m in operator.all("DaskWorkerGroup")} == {f"{cluster}-north", f"{cluster}-south"}
    assert {m["spec"]["cluster"] for m in operator.all("DaskWorkerGroup")} == {cluster}
    job = rendered.one("Job")["spec"]["template"]["spec"]["containers"][0]
    assert "cluster.workers=3" in job["args"]  # it waits for all of them
    ledgers = [m for m in rendered.all("NetworkPolicy") if m["metadata"]["name"].endswith("-ledger")]
    assert {m["spec"]["podSelector"]["matchLabels"]["dpdist/group"] for m in ledgers} == {"north", "south"}
    ports = {port["port"] for rule in allowed(rendered, "egress", "worker") for port in rule["ports"]}
    assert 5432 not in ports  # not the common workers


def test_the_federated_example_is_a_spec_whose_clients_have_workers() -> None:
    from dpdist.families.mixing.spec import MixingSpec
    from dpdist.spec.reader import load

    tree = yaml.safe_load(example("federated")["release"]["spec"])
    spec = load(tree, base=ROOT / "deploy" / "releases")
    assert isinstance(spec, MixingSpec)
    offered = {name for group in example("federated")["dask"]["groups"] for name in group["resources"]}
    assert set(spec.worker_resources) == offered
    groups = example("federated")["dask"]["groups"]
    with pytest.raises(RuntimeError, match='resource "client-south" of client south'):
        render(example("federated", {"dask": {"groups": groups[:1]}}))
