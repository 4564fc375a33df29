"""Validates docs/operate/kubernetes/ against Kubernetes' own schemas, and compares it with the worker.

manifests.py FOLDER FACTS SETTINGS: FACTS is JSON that the test makes of the worker's constants and answers; the settings of each
ConfigMap are written to SETTINGS/FILE.toml, for the worker to read.
"""

import json
import re
import sys
from pathlib import Path

import kubernetes_validate
import yaml

VERSION = "1.37"

# Extensions, whose schemas are not Kubernetes' own.
EXTENSIONS = {
    ("inference.networking.k8s.io/v1", "InferencePool"),
    ("llm-d.ai/v1alpha2", "InferenceObjective"),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"),
}

NAME = {"app.kubernetes.io/name": "worker-orcd"}


def load(folder):
    """Every document of every file, by kind and name; the settings of two files have the same name."""
    documents = {}
    for path in sorted(folder.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text()):
            if (document["apiVersion"], document["kind"]) not in EXTENSIONS:
                kubernetes_validate.validate(document, VERSION, strict=True)
            documents[path.stem, document["kind"], document["metadata"]["name"]] = document
    return documents


def check_labels(documents):
    """Everything that selects workers selects those of the Deployment."""
    deployment = documents["worker", "Deployment", "worker-orcd"]["spec"]
    assert deployment["template"]["metadata"]["labels"] == NAME
    assert deployment["selector"]["matchLabels"] == NAME
    assert documents["worker", "Service", "worker-orcd"]["spec"]["selector"] == NAME
    assert documents["worker", "PodDisruptionBudget", "worker-orcd"]["spec"]["selector"]["matchLabels"] == NAME
    policy = documents["gateway", "NetworkPolicy", "worker-orcd"]["spec"]
    assert policy["podSelector"]["matchLabels"] == NAME
    pool = documents["gateway", "InferencePool", "worker-orcd"]["spec"]
    assert pool["selector"]["matchLabels"] == NAME
    route = documents["gateway", "HTTPRoute", "worker-orcd"]["spec"]["rules"][0]["backendRefs"][0]
    objective = documents["gateway", "InferenceObjective", "worker-orcd"]["spec"]["poolRef"]
    reference = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "worker-orcd"}
    assert route == reference and objective == reference, (route, objective)


def check_ports(documents, container, port):
    assert container["ports"] == [{"name": "http", "containerPort": port}], container["ports"]
    service = documents["worker", "Service", "worker-orcd"]["spec"]["ports"]
    policy = documents["gateway", "NetworkPolicy", "worker-orcd"]["spec"]["ingress"][0]["ports"]
    assert [it["targetPort"] for it in service] == ["http"] == [it["port"] for it in policy]
    pool = documents["gateway", "InferencePool", "worker-orcd"]["spec"]
    assert pool["targetPorts"] == [{"number": port}], pool["targetPorts"]


def check_probes(container, facts):
    probes = {kind: container[f"{kind}Probe"] for kind in ("startup", "readiness", "liveness")}
    paths = {kind: probe["httpGet"]["path"] for kind, probe in probes.items()}
    assert paths == {"startup": "/livez", "readiness": "/readyz", "liveness": "/livez"}, paths
    for kind, probe in probes.items():
        assert probe["httpGet"]["port"] == "http", kind
        assert probe["httpGet"]["path"] in facts["open_paths"], kind
    # A supervisor is given the time that systemd's watchdog gives it.
    liveness = probes["liveness"]
    patience = liveness["periodSeconds"] * liveness["failureThreshold"]
    assert patience == facts["watchdog_s"], patience


def check_times(spec, container, settings, facts):
    drain = int(re.search(r'^drain-timeout = "(\d+)s"$', settings, re.MULTILINE)[1])
    before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    # It has to have been seen twice before new work is refused.
    readiness = container["readinessProbe"]
    assert before >= readiness["periodSeconds"] * readiness["failureThreshold"]
    needed = before + drain + facts["child_end_s"] + facts["longest_end_s"]
    grace = spec["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > needed, (grace, needed)
    assert spec["progressDeadlineSeconds"] > facts["first_child_s"]


def check_confinement(pod, container):
    assert pod["automountServiceAccountToken"] is False
    context = pod["securityContext"]
    assert context["runAsNonRoot"] and context["runAsUser"] > 0, context
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}, context
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    limits, requests = (container["resources"][it] for it in ("limits", "requests"))
    assert limits["nvidia.com/gpu"] == requests["nvidia.com/gpu"] == 1


def check_folders(pod, container, settings):
    """What the settings and variables name is mounted, and nothing else can be written."""
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert {mount["name"] for mount in mounts.values()} == set(volumes)
    writable = {path for path, mount in mounts.items() if not mount.get("readOnly")}
    variables = {it["name"]: it["value"] for it in container["env"]}
    crashes = re.search(r'^crash-dir = "(.*)/crashes"$', settings, re.MULTILINE)[1]
    assert writable == {variables["TMPDIR"], crashes}, writable
    assert all("emptyDir" in volumes[mounts[path]["name"]] for path in writable)
    keys = mounts[variables["CREDENTIALS_DIRECTORY"]]["name"]
    assert volumes[keys]["secret"]["defaultMode"] == 0o400, volumes[keys]
    for option, path in re.findall(r'^(model|api-key-file) = "(.*)/', settings, re.MULTILINE):
        assert path in mounts, (option, path)
    config = container["args"][container["args"].index("--config") + 1]
    assert mounts[str(Path(config).parent)]["name"] == "settings"


def check_picker(documents, families):
    """The picker asks for what /metrics really has."""
    config = yaml.safe_load(documents["gateway", "ConfigMap", "worker-orcd-epp"]["data"]["config.yaml"])
    plugins = {plugin["type"]: plugin.get("parameters", {}) for plugin in config["plugins"]}
    used = [it["pluginRef"] for profile in config["schedulingProfiles"] for it in profile["plugins"]]
    for source in config["dataLayer"]["sources"]:
        used += [source["pluginRef"], *(it["pluginRef"] for it in source["extractors"])]
    assert set(used) == set(plugins), (used, plugins)
    assert plugins["metrics-data-source"]["path"] == "/metrics"
    extractor = plugins["core-metrics-extractor"]
    engines = {engine.pop("name"): engine for engine in extractor["engineConfigs"]}
    engine = engines[extractor["defaultEngine"]]
    assert set(engine) == {"queuedRequestsSpec", "runningRequestsSpec", "kvUsageSpec"}, engine
    for spec, family in engine.items():
        assert families.get(family) == "gauge", (spec, family)


def main():
    folder, facts, out = Path(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3])
    documents = load(folder)
    assert len(documents) >= 10, documents.keys()
    spec = documents["worker", "Deployment", "worker-orcd"]["spec"]
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    check_labels(documents)
    check_ports(documents, container, facts["port"])
    check_probes(container, facts)
    check_confinement(pod, container)
    check_picker(documents, facts["families"])
    for file in ("keys", "gateway"):
        settings = documents[file, "ConfigMap", "worker-orcd"]["data"]["settings.toml"]
        check_times(spec, container, settings, facts)
        check_folders(pod, container, settings)
        (out / f"{file}.toml").write_text(settings)
    print(f"{len(documents)} documents are what Kubernetes {VERSION} and the worker take")


main()
