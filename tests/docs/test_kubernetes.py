"""The manifests in deploy/kubernetes: valid for the API, and what waterspout is given there."""

from __future__ import annotations

import re
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from waterspout import Config
from waterspout.cli import main
from waterspout.cli.loading import load_topology

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
MANIFESTS = sorted(FOLDER.glob("*.yaml"))
API = "1.33"


@pytest.fixture(params=MANIFESTS, ids=lambda path: path.stem)
def documents(request):
    return list(yaml.safe_load_all(request.param.read_text()))


def of_kind(documents, *kinds):
    return [document for document in documents if document["kind"] in kinds]


def workload(documents):
    (found,) = of_kind(documents, "StatefulSet", "Deployment")
    return found["spec"]


def driver(documents):
    (found,) = workload(documents)["template"]["spec"]["containers"]
    return found


def test_there_are_manifests():
    assert [path.name for path in MANIFESTS] == ["executors.yaml", "one-pod.yaml"]


def test_every_document_is_valid_for_the_api(documents):
    for document in documents:
        kubernetes_validate.validate(document, API, strict=True)


def test_what_refers_to_something_finds_it(documents):
    spec = workload(documents)
    pod, labels = spec["template"]["spec"], spec["template"]["metadata"]["labels"]
    assert spec["replicas"] == 1
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    services = {s["metadata"]["name"]: s["spec"] for s in of_kind(documents, "Service")}
    assert all(s["selector"].items() <= labels.items() for s in services.values())
    assert spec.get("serviceName") in {None, *services}
    claims = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])]
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {m["name"] for m in driver(documents)["volumeMounts"]} == volumes | set(claims)
    configs = {c["metadata"]["name"] for c in of_kind(documents, "ConfigMap")}
    assert {v["configMap"]["name"] for v in pod["volumes"] if "configMap" in v} == configs
    accounts = {a["metadata"]["name"] for a in of_kind(documents, "ServiceAccount")}
    assert {pod["serviceAccountName"]} == accounts if accounts else True


def test_waterspout_takes_the_options_and_the_command(documents, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WATERSPOUT_TOKEN", "a-token-of-some-length")
    (config,) = of_kind(documents, "ConfigMap")
    (text,) = config["data"].values()
    Config(**yaml.safe_load(text))
    program, command, file, *options = driver(documents)["args"]
    assert (program, command, file) == ("waterspout", "run", "counts.py")
    main(["run", "--help"])
    known = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
    assert {word for word in options if word.startswith("--")} <= known


def test_every_variable_that_is_used_is_given(documents):
    given = {entry["name"] for entry in driver(documents)["env"]}
    (config,) = of_kind(documents, "ConfigMap")
    used = {*re.findall(r"\$\{(\w+)\}", str(config["data"]) + (FOLDER / "counts.py").read_text())}
    assert used <= given
    submit = next((e["value"] for e in driver(documents)["env"] if e["name"].endswith("ARGS")), "")
    assert {*re.findall(r"\$\((\w+)\)", submit)} <= given


def test_the_topology_is_one():
    assert load_topology(str(FOLDER / "counts.py")).name == "counts"
