"""The pipeline as a FlinkDeployment: one cluster for one job."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from forebay.connectors.kafka.settings import KafkaSource
from forebay.deploy.kubernetes.deployment import FLINK_METRICS_PORT, PIPELINE, Deployment, Job
from forebay.deploy.kubernetes.manifest import Manifest
from forebay.deploy.kubernetes.pods import (
    CONFIG_PATH,
    ENDPOINTS,
    Rule,
    config_files,
    config_hash,
    environment,
    mounted,
    placement,
    pod_spec,
    role,
    scratch,
)
from forebay.fleet.config import PLACES
from forebay.flink.thread_mode import FEW_RECORDS
from forebay.yaml_document import to_yaml as document_yaml

FLINK_VERSION = "v2_3"
QUEUE = "queue"
TASKS = "pipeline-tasks"
QUEUE_PORT = 8082
"""Where the job manager reports what waits in topics."""
JOB_MANAGER = {"component": "jobmanager"}
DRIVER = "org.apache.flink.client.python.PythonDriver"
MODULE = "forebay.pipeline.application"
FILE = "pipeline.yaml"
MAIN_CONTAINER = "flink-main-container"
PROGRAM_MEMORY = {"jobmanager.memory.jvm-overhead.min": "320m"}
"""If the job's program stays running: Flink's minimum plus 128 MiB for its process."""
STOP_S = 60
WHERE = (*PLACES, "prefill", "inference_gateway")
"""Keys of `engine` that the deployment replaces."""
MIB = 1 << 20
UNITS: dict[str, int | Fraction] = {
    "": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
    "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "m": Fraction(1, 1000),
}  # fmt: skip


def quantity(text: str) -> Fraction:
    number = text.rstrip("".join(UNITS))
    return Fraction(number) * Fraction(UNITS[text[len(number) :]])


def pipeline_manifests(deployment: Deployment) -> Iterator[Manifest]:
    job = deployment.job
    if job is None:
        return
    roles = job.pods.service_account_annotations
    yield deployment.manifest(PIPELINE, "ServiceAccount", {}, annotations=roles)
    why = (
        "Flink's job manager starts its task managers (pods), keeps its leader and the newest checkpoint in "
        "ConfigMaps, and makes its own Deployment the owner of both. The API server cannot limit the "
        "names of pods and ConfigMaps that are created. The router watches replicas (endpointslices)."
    )
    yield from role(deployment, PIPELINE, _rules(deployment, job), why)
    name = deployment.name(TASKS)
    yield deployment.manifest(PIPELINE, "ServiceAccount", {}, name=name, annotations=roles)
    why = "Task managers run the model's input and start nothing; they watch who leads."
    yield from role(deployment, PIPELINE, _task_rules(deployment, job), why, account=TASKS)
    yield deployment.manifest(PIPELINE, "ConfigMap", {"data": _files(deployment, job)})
    if _counts_topics(deployment, job):
        yield _queue_service(deployment)
    yield _flink_deployment(deployment, job)


def _files(deployment: Deployment, job: Job) -> dict[str, str]:
    return {FILE: document_yaml(job_document(deployment, job))}


def job_document(deployment: Deployment, job: Job) -> dict[str, Any]:
    document = dict(job.document)
    settings = deployment.settings
    if settings.engine is None or not job.spec.asks_model:
        return document
    given = document.get("engine")
    kept = {key: value for key, value in given.items() if key not in WHERE} if isinstance(given, dict) else {}
    pool = settings.inference_pool
    if pool is None:
        places: dict[str, Any] = {**deployment.engine_place}
        if deployment.prefill_service is not None:
            places["prefill"] = {"kubernetes": deployment.prefill_service}
        document["engine"] = {**places, **kept, "model": deployment.served_model}
        return document
    fields = {"objectives": dict(pool.objectives), "fairness_id": deployment.instance}
    place = {"url": pool.url, "inference_gateway": fields}
    kept.pop("kv_events", None)
    document["engine"] = {**place, **kept, "model": deployment.served_model}
    # Nothing to route or scale: the job sees no replicas.
    return {key: value for key, value in document.items() if key not in ("routing", "scaling")}


def _rules(deployment: Deployment, job: Job) -> list[Rule]:
    # Flink's Deployment is named after the FlinkDeployment.
    own = [deployment.name(PIPELINE)]
    rules: list[Rule] = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete", "get", "list", "watch"]},
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
        },
        {
            "apiGroups": ["apps"],
            "resources": ["deployments"],
            "resourceNames": own,
            "verbs": ["delete", "get"],
        },
        {
            "apiGroups": ["apps"],
            "resources": ["deployments/finalizers"],
            "resourceNames": own,
            "verbs": ["update"],
        },
    ]
    return rules + _endpoints(deployment, job)


def _task_rules(deployment: Deployment, job: Job) -> list[Rule]:
    leaders = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}
    return [leaders, *_endpoints(deployment, job)]


def _endpoints(deployment: Deployment, job: Job) -> list[Rule]:
    return [ENDPOINTS] if _watches_endpoints(job_document(deployment, job).get("engine")) else []


def _watches_endpoints(engine: Any) -> bool:
    return isinstance(engine, dict) and ("kubernetes" in engine or _watches_endpoints(engine.get("prefill")))


def _counts_topics(deployment: Deployment, job: Job) -> bool:
    from_topics = isinstance(job.spec.source, KafkaSource)
    return from_topics and job_document(deployment, job).get("scaling") is not None


def _queue_service(deployment: Deployment) -> Manifest:
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {**deployment.selector(PIPELINE), **JOB_MANAGER},
        "ports": [{"name": QUEUE, "port": QUEUE_PORT}],
    }
    return deployment.manifest(
        PIPELINE,
        "Service",
        {"spec": spec},
        name=deployment.name(QUEUE),
        notes={
            "spec/selector": "The job manager, by the label that Flink gives it: it counts what waits in "
            "the topics. Task managers ask it, and scale by that."
        },
    )


def flink_configuration(deployment: Deployment, job: Job) -> dict[str, str]:
    spec = job.pods
    state = spec.state.rstrip("/")
    return {
        "taskmanager.numberOfTaskSlots": str(spec.slots),
        "execution.checkpointing.dir": f"{state}/checkpoints",
        "execution.checkpointing.savepoint-dir": f"{state}/savepoints",
        "high-availability.type": "kubernetes",
        "high-availability.storageDir": f"{state}/ha",
        "python.executable": spec.python,
        "python.client.executable": spec.python,
        "metrics.reporters": "prometheus",
        "metrics.reporter.prometheus.factory.class": (
            "org.apache.flink.metrics.prometheus.PrometheusReporterFactory"
        ),
        "metrics.reporter.prometheus.port": str(FLINK_METRICS_PORT),
        "metrics.reporter.prometheus.filterLabelValueCharacters": "false",
        **FEW_RECORDS,
        **(PROGRAM_MEMORY if _counts_topics(deployment, job) else {}),
        "web.submit.enable": "false",
        "web.cancel.enable": "false",
        "kubernetes.taskmanager.service-account": deployment.name(TASKS),
        "kubernetes.operator.job.autoscaler.enabled": "false",
        "kubernetes.operator.deployment.rollback.enabled": "false",
    }


def _flink_deployment(deployment: Deployment, job: Job) -> Manifest:
    settings, pipeline = job.pods, job.spec
    content = {
        "spec": {
            "image": settings.image,
            "flinkVersion": FLINK_VERSION,
            "mode": "native",
            "serviceAccount": deployment.name(PIPELINE),
            "flinkConfiguration": flink_configuration(deployment, job),
            "podTemplate": _pod_template(deployment, job),
            "jobManager": {
                "replicas": 1,
                "resource": _resource(settings.job_manager_cpu, settings.job_manager_memory),
            },
            "taskManager": {"resource": _resource(settings.cpu, settings.memory)},
            "job": {
                "entryClass": DRIVER,
                "args": [
                    "-pyclientexec", settings.python,
                    "-pyexec", settings.python,
                    "-pym", MODULE,
                    f"{CONFIG_PATH}/{FILE}",
                    *_queue_arguments(deployment, job),
                    "--state-id", _state_id(settings.state),
                ],
                "parallelism": pipeline.parallelism,
                "upgradeMode": settings.upgrade,
                "state": "running",
            },
        }
    }  # fmt: skip
    options = "spec/flinkConfiguration"
    notes: dict[str, str] = {
        "spec/podTemplate/metadata/annotations": "A changed pipeline file is a new version of the job.",
        "spec/mode": "One cluster for one job: subtasks of a task manager share one Python.",
        f"{options}/high-availability.type": "A job manager that dies resumes from the newest checkpoint.",
        f"{options}/taskmanager.memory.segment-size": (
            "Few records between operators: a restore waits for them, and no count of a topic has them."
        ),
        f"{options}/jobmanager.memory.jvm-overhead.min": (
            "The pipeline's program stays in the job manager's pod to count what waits, outside of the heap."
        ),
        f"{options}/kubernetes.taskmanager.service-account": (
            "The job manager's account may start pods; task managers must not."
        ),
        f"{options}/web.submit.enable": "Flink's web page cannot add or end jobs.",
        f"{options}/kubernetes.operator.job.autoscaler.enabled": (
            "Flink's autoscaler measures how busy an operator is, and one that waits for an engine is idle."
        ),
        "spec/jobManager/resource/memory": "Flink's unit: m is MiB.",
        "spec/job/entryClass": (
            "No jarURI: flink-python lies in the image's lib/. A jar submitted with the job can be loaded "
            "once in the life of a task manager only."
        ),
        "spec/job/args": "Flink's own arguments first, then the pipeline's.",
    }
    return deployment.manifest(PIPELINE, "FlinkDeployment", content, notes=notes)


def _queue_arguments(deployment: Deployment, job: Job) -> tuple[str, ...]:
    if not _counts_topics(deployment, job):
        return ()
    return "--queue-url", f"http://{deployment.name(QUEUE)}:{QUEUE_PORT}/"


def _state_id(state: str) -> str:
    """Unique to the pipeline: it names Kafka transactions."""
    return hashlib.sha256(state.rstrip("/").encode()).hexdigest()[:12]


def _resource(cpu: str, memory: str) -> dict[str, Any]:
    return {"cpu": float(quantity(cpu)), "memory": f"{math.floor(quantity(memory) / MIB)}m"}


def _pod_template(deployment: Deployment, job: Job) -> dict[str, Any]:
    settings = job.pods
    volumes = [
        config_files(deployment.name(PIPELINE)),
        scratch("tmp", "/tmp", "20Gi"),
        scratch("log", "/opt/flink/log", "1Gi"),
        *mounted(settings),
    ]
    container = {
        "name": MAIN_CONTAINER,
        "env": environment(settings, {"HOME": "/tmp", "FOREBAY_HOME": "/tmp/forebay"}, deployment.ray_token),
        "ports": [{"name": "metrics", "containerPort": FLINK_METRICS_PORT}],
    }
    metadata = {"labels": deployment.labels(PIPELINE), "annotations": config_hash(_files(deployment, job))}
    fields = {"terminationGracePeriodSeconds": STOP_S, **placement(settings)}
    return {"metadata": metadata, "spec": pod_spec(container, volumes, fields)}
