"""Checks the manifests without a cluster: that Kustomize builds the overlays, that every object fits the schemas of
Kubernetes, of the two operators and of the Gateway API, and what schemas cannot see. Then it alters the objects, one
mistake at a time, and fails unless each is noticed.

    check.py                     needs the packages of requirements.txt
    check.py --crd FILE...       also compares operators.yaml and the operators' resources with their definitions
    check.py --write-rules       writes the alert rules of lab/observe into the component `monitoring`, and checks nothing
"""

import base64
import copy
import importlib.resources
import json
import pathlib
import re
import subprocess
import sys

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry, Resource

HERE = pathlib.Path(__file__).parent
KUBECTL = pathlib.Path(sys.executable).parent / "kubectl"
# `sleep` as preStop needs the first; the second is the newest that the package has.
KUBERNETES = ["v1.30.0", "v1.37.0"]
# The supervisor's limit (shared/service/src/supervisor.rs).
STOP_SECONDS = 9
PREFIXES = ("ORDERS_", "INVENTORY_", "BILLING_")
QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
OPERATORS = yaml.safe_load((HERE / "operators.yaml").read_text())
ALERTS = (HERE / "../../lab/observe/alerts.yaml").read_text()


class Schemas:
    """The schemas of one version of Kubernetes, which refuse unknown fields."""

    def __init__(self, version):
        package = importlib.resources.files("kubernetes_validate")
        self.folder = package / "kubernetes-json-schema" / f"{version}-local-strict"
        definitions = self.read("_definitions.json")
        # The package accepts any text for an amount, also "64Mb".
        definitions["$defs"]["io.k8s.apimachinery.pkg.api.resource.Quantity"] = {
            "anyOf": [{"type": "integer"}, {"type": "string", "pattern": QUANTITY}]
        }
        self.registry = Resource.from_contents(definitions) @ Registry()

    def read(self, name):
        return json.loads((self.folder / name).read_text())

    def errors(self, thing, schema=None):
        if schema is None:
            group, _, version = thing["apiVersion"].rpartition("/")
            words = [thing["kind"].lower(), *([group.split(".")[0]] if group else []), version]
            file = "-".join(words) + ".json"
            if not (self.folder / file).is_file():
                yield f"Kubernetes {self.folder.name} has no {thing['apiVersion']} {thing['kind']}"
                return
            schema = self.read(file)
        for error in Draft202012Validator(schema, registry=self.registry).iter_errors(thing):
            yield f"{error.json_path}: {error.message[:200]}"


def closed(fields):
    """The schema of an entry of operators.yaml."""
    if isinstance(fields, list) and isinstance(fields[0], dict):
        return {"type": "array", "items": closed(fields[0])}
    if isinstance(fields, list):
        return {"enum": fields}
    if isinstance(fields, dict) and "*" in fields:
        return {"type": "object", "additionalProperties": closed(fields["*"])}
    if isinstance(fields, dict):
        properties = {name: closed(value) for name, value in fields.items()}
        return {"type": "object", "properties": properties, "additionalProperties": False}
    if "." in fields:
        return {"$ref": f"https://kubernetes.io/api/_definitions.json#/$defs/io.k8s.{fields}"}
    return {"type": fields}


def build(overlay):
    command = [KUBECTL, "kustomize", HERE / "overlays" / overlay]
    built = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if built.returncode != 0:
        sys.exit(f"failed to build overlays/{overlay}: {built.stderr}")
    return list(yaml.safe_load_all(built.stdout))


def walk(value):
    """Every mapping inside a value."""
    if isinstance(value, dict):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    for each in inner:
        yield from walk(each)


def settings():
    """The variables of each service, and whether it needs them. One that is not listed ends its start."""
    page = (HERE / "../../docs/settings.md").read_text()
    rows = re.findall(r"^\| `(…|[A-Z]+_)_?([A-Z_]+)` \| (\S+) ", page, re.MULTILINE)
    words = [(prefix + word, default) for owner, word, default in rows for prefix in PREFIXES if owner in ("…", prefix)]
    return {variable: default == "**required**" for variable, default in words}


def mistakes(objects, schemas, known_settings):
    """What is wrong with the objects of an overlay, one line each."""
    for thing in objects:
        fields = OPERATORS.get(f"{thing['apiVersion']}/{thing['kind']}")
        for version in schemas:
            found = version.errors(thing) if fields is None else version.errors(thing["spec"], closed(fields))
            yield from (f"{name(thing)}: {error}" for error in found)

    def kind(wanted):
        return [thing for thing in objects if thing["kind"] == wanted]

    # What a pod may refer to: the keys of secrets, and hosts. The operators make some of them.
    secrets = {thing["metadata"]["name"]: set(thing["data"]) for thing in kind("Secret")}
    hosts = {thing["metadata"]["name"] for thing in kind("Service") + kind("RabbitmqCluster")}
    for cluster in kind("Cluster"):
        secrets[f"{cluster['metadata']['name']}-superuser"] = {"username", "password"}
        hosts.add(f"{cluster['metadata']['name']}-rw")
    templates = [
        (thing, inner["template"])
        for thing in objects
        for inner in walk(thing)
        if "containers" in inner.get("template", {}).get("spec", {})
    ]
    for thing, template in templates:
        yield from (f"{name(thing)}: {text}" for text in absent_secrets(template["spec"], secrets))
        # The operator completes the others.
        if thing["kind"] != "RabbitmqCluster":
            yield from (f"{name(thing)}: {text}" for text in pod_mistakes(template["spec"], hosts, known_settings))
    of_operators = {cluster["metadata"]["name"] for cluster in kind("RabbitmqCluster")}
    for thing in kind("Service") + kind("PodDisruptionBudget"):
        selector = thing["spec"]["selector"].get("matchLabels", thing["spec"]["selector"])
        labelled = [(template.get("metadata", {}).get("labels", {}), template["spec"]) for _, template in templates]
        chosen = [pod for labels, pod in labelled if selector.items() <= labels.items()]
        if not chosen and not of_operators & set(selector.values()):
            yield f"{name(thing)}: selects no pod"
        for port in thing["spec"].get("ports", []):
            if any(port["targetPort"] not in ports(pod["containers"][0]) for pod in chosen):
                yield f"{name(thing)}: its pods have no port {port['targetPort']}"
    for thing in kind("Deployment"):
        if thing["spec"]["replicas"] != 1:
            yield from (f"{name(thing)}: {text}" for text in unprotected(thing, kind("PodDisruptionBudget")))
    services = {(thing["metadata"]["name"], port["port"]) for thing in kind("Service") for port in thing["spec"]["ports"]}
    for route in kind("HTTPRoute"):
        yield from (f"{name(route)}: {text}" for text in route_mistakes(route, services))
    yield from disk_mistakes(kind)
    yield from different_passwords(kind("Secret"))
    for rule in kind("PrometheusRule"):
        if rule["spec"] != yaml.safe_load(ALERTS):
            yield f"{name(rule)}: differs from lab/observe/alerts.yaml: run check.py --write-rules"
    pods = {labels.get("app.kubernetes.io/name") for labels in pod_labels(templates)} | of_operators
    for monitor in kind("PodMonitor"):
        [expression] = monitor["spec"]["selector"]["matchExpressions"]
        yield from (f"{name(monitor)}: selects no pod {value}" for value in set(expression["values"]) - pods)
        relabelings = monitor["spec"]["podMetricsEndpoints"][0]["relabelings"]
        if not any((each.get("regex"), each.get("replacement")) == ("relay", "orders") for each in relabelings):
            yield f"{name(monitor)}: relays are not in the job orders"


def pod_labels(templates):
    return [template.get("metadata", {}).get("labels", {}) for _, template in templates]


def name(thing):
    return f"{thing['kind']}/{thing['metadata']['name']}"


def ports(container):
    return {port["name"] for port in container.get("ports", [])}


def absent_secrets(pod, secrets):
    for place in walk(pod):
        key = place.get("secretKeyRef")
        if key and key["key"] not in secrets.get(key["name"], ()):
            yield f"no secret has the key {key}"
        for secret in [place.get("secretRef", {}).get("name"), place.get("secretName")]:
            if secret and secret not in secrets:
                yield f"no secret is named {secret}"


def pod_mistakes(pod, hosts, known_settings):
    if pod.get("enableServiceLinks", True):
        yield "enableServiceLinks is not false: variables of Services look like settings"
    for container in pod.get("initContainers", []) + pod["containers"]:
        defined = set()
        for variable in container.get("env", []):
            own, text = variable["name"], variable.get("value", "")
            for used in set(re.findall(r"\$\((\w+)\)", text)) - defined:
                yield f"{own} uses {used}, which is not set before it"
            if own.startswith(PREFIXES) and own not in known_settings:
                yield f"{own} is not a setting (docs/settings.md)"
            for host in re.findall(r"://(?:[^@/]*@)?([a-z][\w.-]*)", text):
                if host not in hosts:
                    yield f"{own} names the host {host}, which no Service has"
            if own == "PGHOST" and text not in hosts:
                yield f"PGHOST is {text}, which no Service has"
            defined.add(own)
        if container["name"] == "service":
            yield from waits_for_its_login(pod, container)
            prefix = container["command"][0].upper() + "_"
            required = {variable for variable, needed in known_settings.items() if needed and variable.startswith(prefix)}
            yield from (f"{variable} is not set" for variable in required - defined)
            wait = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
            if pod.get("terminationGracePeriodSeconds", 30) <= wait + STOP_SECONDS:
                yield "is killed before it has stopped"
        for place in walk([container.get("livenessProbe"), container.get("readinessProbe")]):
            if "port" in place and place["port"] not in ports(container):
                yield f"a probe names the port {place['port']}, which the container does not"


def waits_for_its_login(pod, service):
    """A service with another login than its init container would exit until the first job has run."""
    waiting = {variable["name"]: variable for each in pod.get("initContainers", []) for variable in each["env"]}
    own = {variable["name"]: variable for variable in service["env"]}
    login = waiting.get("PGUSER", {}).get("value")
    if not any(f"postgres://{login}:" in variable.get("value", "") for variable in own.values()):
        yield f"waits for the login {login}, and uses another"
    if waiting.get("PGPASSWORD", {}).get("valueFrom") != own.get("DB_PASSWORD", {}).get("valueFrom"):
        yield "waits with another password than the service has"


def unprotected(deployment, budgets):
    """What a Deployment of several instances needs, so that one node, zone or drain does not take all of them."""
    template = deployment["spec"]["template"]
    labels = template["metadata"]["labels"]
    if not any(budget["spec"]["selector"]["matchLabels"].items() <= labels.items() for budget in budgets):
        yield "no PodDisruptionBudget has its pods"
    spread = {each["topologyKey"] for each in template["spec"].get("topologySpreadConstraints", [])}
    if spread != {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}:
        yield f"its pods are spread over {sorted(spread)}"


def amount(text):
    """The bytes of an amount: Kubernetes' `1Gi`, PostgreSQL's and RabbitMQ's `1GB`."""
    number, unit = re.fullmatch(r"([0-9]+)\s*([kKMG]i?)B?", text).groups()
    return int(number) * (1024 if unit.endswith("i") else 1000) ** ("KMG".index(unit[0].upper()) + 1)


def too_large(limit, volume, what):
    """A limit that is above its volume never applies: the disk is full before."""
    if limit is None or amount(limit) > amount(volume) * 0.8:
        yield f"{what} is {limit} on a volume of {volume}"


def disk_mistakes(kind):
    for cluster in kind("Cluster"):
        limit = cluster["spec"]["postgresql"]["parameters"].get("max_slot_wal_keep_size")
        yield from too_large(limit, cluster["spec"]["walStorage"]["size"], "max_slot_wal_keep_size")
    specs = [each["spec"] for each in kind("RabbitmqCluster")]
    brokers = [(spec["rabbitmq"]["additionalConfig"], spec["persistence"]["storage"]) for spec in specs]
    for each in kind("StatefulSet"):
        if each["metadata"]["name"] == "rabbitmq":
            [conf] = [conf["data"]["rabbitmq.conf"] for conf in kind("ConfigMap") if "rabbitmq.conf" in conf["data"]]
            brokers.append((conf, each["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]))
    for conf, volume in brokers:
        limit = re.search(r"^disk_free_limit\.absolute = (\S+)$", conf, re.MULTILINE)
        yield from too_large(limit and limit[1], volume, "disk_free_limit.absolute")


def route_mistakes(route, services):
    for rule in route["spec"]["rules"]:
        for match in rule["matches"]:
            if match["path"].get("value") not in ("/orders", "/products"):
                yield f"passes on {match['path'].get('value')}, which is not for clients"
        for backend in rule["backendRefs"]:
            if (backend["name"], backend["port"]) not in services:
                yield f"there is no Service {backend['name']} with the port {backend['port']}"


def different_passwords(secrets):
    """The broker's users have their passwords in two places."""
    data = {key: base64.b64decode(value).decode() for secret in secrets for key, value in secret["data"].items()}
    for user in json.loads(data["rabbitmq.json"])["users"]:
        if data.get(f"{user['name'].upper()}_AMQP_PASSWORD") != user["password"]:
            yield f"passwords.env and rabbitmq.json have different passwords for {user['name']}"


REMOVED = object()
POD = "spec.template.spec"
# Each is one mistake: the overlay, the object, the place, and what stands there then.
ALTERATIONS = [
    ("trial", "Deployment/orders", f"{POD}.containers.0.readinesProbe", {}),
    ("trial", "Deployment/orders", f"{POD}.containers.0.readinessProbe.httpGet.port", "https"),
    ("trial", "Deployment/orders", f"{POD}.containers.0.lifecycle.preStop.sleep.seconds", 15),
    ("trial", "Deployment/orders", f"{POD}.containers.0.env.0.name", "DB_PASS"),
    ("trial", "Deployment/billing", f"{POD}.containers.0.env.0.name", "BILLING_DB_PASSWORD"),
    ("trial", "Deployment/billing", f"{POD}.containers.0.env.0.valueFrom.secretKeyRef.key", "BILLING_PASSWORD"),
    ("trial", "Deployment/billing", f"{POD}.containers.0.env.4", REMOVED),
    ("trial", "Deployment/billing", f"{POD}.containers.0.resources.limits.memory", "512Mb"),
    ("trial", "Deployment/inventory", f"{POD}.enableServiceLinks", REMOVED),
    ("trial", "Deployment/inventory", "spec.replicas", "two"),
    ("trial", "Service/rabbitmq", "metadata.name", "broker"),
    ("trial", "Service/orders", "spec.ports.0.targetPort", "https"),
    ("trial", "PodDisruptionBudget/orders", "spec.selector.matchLabels", {"app": "orders"}),
    ("trial", "StatefulSet/rabbitmq", f"{POD}.volumes.1.secret.secretName", "rabbitmq-definitions"),
    ("trial", "Deployment/billing", f"{POD}.initContainers", REMOVED),
    ("trial", "Deployment/billing", f"{POD}.initContainers.0.env.0.value", "postgres"),
    ("trial", "Deployment/billing", f"{POD}.initContainers.0.env.3.value", "orders"),
    ("trial", "Deployment/billing", f"{POD}.initContainers.0.env.4.valueFrom.secretKeyRef.key", "ORDERS_DB_PASSWORD"),
    ("trial", "Deployment/orders", f"{POD}.topologySpreadConstraints.1", REMOVED),
    ("trial", "StatefulSet/rabbitmq", "spec.volumeClaimTemplates.0.spec.resources.requests.storage", "1Gi"),
    ("replicated", "Deployment/relay", f"{POD}.topologySpreadConstraints", REMOVED),
    ("replicated", "PodDisruptionBudget/relay", "spec.selector.matchLabels", {"app.kubernetes.io/name": "orders"}),
    ("replicated", "Cluster/postgres", "spec.postgresql.parameters.max_slot_wal_keep_size", REMOVED),
    ("replicated", "Cluster/postgres", "spec.walStorage.size", "6Gi"),
    ("replicated", "RabbitmqCluster/rabbitmq", "spec.rabbitmq.additionalConfig", "max_message_size = 131072"),
    ("gateway", "HTTPRoute/orders", "spec.rules.0.matches.1.path.value", "/"),
    ("gateway", "HTTPRoute/orders", "spec.rules.0.matches.0.path.kind", "Exact"),
    ("gateway", "HTTPRoute/orders", "spec.rules.0.backendRefs.0.name", "order"),
    ("replicated", "Cluster/postgres", "spec.postgresql.synchronous.dataDurability", "prefered"),
    ("replicated", "Cluster/postgres", "spec.postgresql.synchronous.quorum", True),
    ("replicated", "Cluster/postgres", "spec.instances", "3"),
    ("replicated", "Cluster/postgres", "spec.storage.size", 20),
    ("replicated", "Cluster/postgres", "metadata.name", "database"),
    ("replicated", "RabbitmqCluster/rabbitmq", "spec.replica", 3),
    ("replicated", "RabbitmqCluster/rabbitmq", "spec.persistence.storage", "20GB"),
    ("replicated", "RabbitmqCluster/rabbitmq", f"spec.override.statefulSet.{POD}.containers.0.volumeMount", []),
    ("replicated", "RabbitmqCluster/rabbitmq", f"spec.override.statefulSet.{POD}.volumes.0.secret.secretName", "users"),
    ("replicated", "Job/bootstrap", "apiVersion", "batch/v2"),
    ("replicated", "Deployment/relay", f"{POD}.containers.0.env.5.name", "ORDERS_ONLY_RELAY"),
    ("monitored", "PrometheusRule/outbox-shop", "spec.groups.0.rules.0.for", "5m"),
    ("monitored", "PrometheusRule/outbox-shop", "spec.rules", []),
    ("monitored", "PodMonitor/outbox-shop", "spec.selector.matchExpressions.0.values.1", "relays"),
    ("monitored", "PodMonitor/outbox-shop", "spec.podMetricsEndpoints.0.relabelings.1.replacement", "relay"),
]


def altered(objects, wanted, path, value):
    objects = copy.deepcopy(objects)
    [place] = [thing for thing in objects if name(thing) == wanted]
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in steps:
        place = place[step]
    if value is REMOVED:
        del place[last]
    else:
        place[last] = value
    return objects


def refuses_unknown(schema):
    """A custom resource's schema, which otherwise drops the fields that it does not know."""
    for inner in walk(schema):
        if "properties" in inner and not inner.get("x-kubernetes-preserve-unknown-fields"):
            inner.setdefault("additionalProperties", False)
    return schema


def differences(fields, schema, path):
    """Where an entry of operators.yaml differs from the operator's definition."""
    if isinstance(fields, list) and isinstance(fields[0], dict):
        yield from differences(fields[0], schema.get("items", {}), path)
    elif isinstance(fields, list) and schema.get("enum") != fields:
        yield f"{path}: {schema.get('enum')}, and not {fields}"
    elif isinstance(fields, dict):
        for field, value in fields.items():
            inner = schema.get("additionalProperties") if field == "*" else schema.get("properties", {}).get(field)
            yield from differences(value, inner, f"{path}.{field}") if inner else [f"{path}.{field} does not exist"]
    elif isinstance(fields, str) and "." not in fields and schema.get("type") != fields:
        yield f"{path}: {schema.get('type')}, and not {fields}"


def compare(files, objects):
    for file in files:
        for definition in yaml.safe_load_all(pathlib.Path(file).read_text()):
            if (definition or {}).get("kind") != "CustomResourceDefinition":
                continue
            kind, group = definition["spec"]["names"]["kind"], definition["spec"]["group"]
            for version in definition["spec"]["versions"]:
                resource = f"{group}/{version['name']}/{kind}"
                if resource not in OPERATORS:
                    continue
                spec = refuses_unknown(version["schema"]["openAPIV3Schema"])["properties"]["spec"]
                found = list(differences(OPERATORS[resource], spec, "spec"))
                for thing in objects:
                    if f"{thing['apiVersion']}/{thing['kind']}" == resource:
                        found += [error.message[:200] for error in Draft202012Validator(spec).iter_errors(thing["spec"])]
                yield resource, found


def write_rules():
    head = """# Written by `check.py --write-rules` from lab/observe/alerts.yaml.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: { name: outbox-shop }
spec:
"""
    lines = (f"  {line}".rstrip() + "\n" for line in ALERTS.split("\n\n", 1)[1].splitlines())
    (HERE / "components/monitoring/rules.yaml").write_text(head + "".join(lines))


def main():
    if sys.argv[1:] == ["--write-rules"]:
        return write_rules()
    schemas, known_settings = [Schemas(version) for version in KUBERNETES], settings()
    overlays = {overlay: build(overlay) for overlay in ("trial", "replicated", "gateway", "monitored")}
    wrong = []
    for overlay, objects in overlays.items():
        found = sorted(set(mistakes(objects, schemas, known_settings)))
        wrong += [f"overlays/{overlay}: {mistake}" for mistake in found]
        print(f"overlays/{overlay}: {len(objects)} objects, {len(found)} mistakes")
    for overlay, wanted, path, value in ALTERATIONS:
        if not any(mistakes(altered(overlays[overlay], wanted, path, value), schemas[-1:], known_settings)):
            wrong.append(f"not noticed: {wanted} with {path} = {value}")
    print(f"{len(ALTERATIONS)} alterations, each noticed" if not wrong else "\n".join(wrong))
    if sys.argv[1:2] == ["--crd"]:
        for resource, found in compare(sys.argv[2:], sum(overlays.values(), [])):
            print(f"{resource}: {found or 'fits its definition'}")
            wrong += found
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
