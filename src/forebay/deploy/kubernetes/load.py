"""From a pipeline file, if there is a pipeline, and a deployment file to a checked `Deployment`."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forebay.config import parse_spec, set_values
from forebay.config.spec import PipelineSpec
from forebay.connectors.stdout import StdoutSink
from forebay.deploy.kubernetes.deployment import Deployment, Job
from forebay.deploy.kubernetes.gateway import gateway_document
from forebay.deploy.kubernetes.metrics import EXTERNAL_METRIC
from forebay.deploy.kubernetes.pipeline import job_document
from forebay.deploy.kubernetes.pod_settings import PodSpec
from forebay.deploy.kubernetes.pods import CONFIG_PATH
from forebay.deploy.kubernetes.settings import DeploymentSpec
from forebay.documents import Where, check_document, known_paths, read_document
from forebay.documents.fields import secret_variables
from forebay.errors import SettingError
from forebay.fleet.places import PLACES
from forebay.gateway.spec import GatewaySpec
from forebay.secret_text import secrets_written_in

FILE = "deploy.yaml"
WHAT = "deployment"
NAMESPACE = "{namespace}"
"""What stands for the namespace in the state's place."""
REFERENCES = frozenset(("secret", "secrets", "pull_secrets", "token_secret"))
"""Keys of a deployment file that name a Secret, and hold none."""


def load_deployment(
    pipeline: Path | None = None,
    config: Path | None = None,
    settings: Sequence[str] = (),
    namespace: str | None = None,
) -> Deployment:
    """The pipeline in the file `pipeline`, if there is one, with the deployment in `config`, by default
    `deploy.yaml` in the same folder; blocks on the file system.

    `settings` are `path.to.key=value` of the deployment, which win, and so does `namespace`. Raises
    `SettingError` with one line per mistake, also where the pipeline needs what its pods would not have: a
    path of this machine, a secret, an engine.
    """
    file = None if pipeline is None else _read_pipeline(pipeline)
    chosen = _settings(Path() if pipeline is None else pipeline.parent, config, settings, namespace)
    job = _job(chosen, *file) if file is not None else None
    if job is None and chosen.pipeline is not None:
        raise SettingError(
            "PIPELINE: missing; the deployment file has 'pipeline', and no file says what it runs"
        )
    gateway, gateway_value = _gateway(chosen)
    made = Deployment(chosen, job, gateway, gateway_value)
    problems = [] if job is None else [*_problems(job, chosen), *_written_in_pipeline(job)]
    problems += [*_gateway_problems(made), *_written_secrets(chosen, gateway_value)]
    if problems:
        raise SettingError("\n".join(problems))
    # What is written into the manifests is what the job and the gateway will read.
    if job is not None:
        name = f"{pipeline} as rendered for the job"
        parse_spec(job_document(made, job), base=Path(CONFIG_PATH), name=name)
    if gateway is not None:
        check_document(GatewaySpec, gateway_document(made), what="gateway", name="gateway.config")
    return made


def _read_pipeline(path: Path) -> tuple[PipelineSpec, Any]:
    document, lines = read_document(path, "pipeline")
    return parse_spec(document, base=path.resolve().parent, name=str(path), lines=lines), document


def _job(settings: DeploymentSpec, spec: PipelineSpec, document: Any) -> Job:
    if settings.pipeline is None:
        raise SettingError(
            f"pipeline: missing in the deployment file, which has a name of its own ({settings.name}): add "
            f"`pipeline: {{image: IMAGE, state: s3://BUCKET/PREFIX}}` there in its place, or leave the "
            f"pipeline file out, to deploy the gateway and the engine alone"
        )
    return Job(spec, document, settings.pipeline)


def _settings(
    folder: Path, config: Path | None, settings: Sequence[str], namespace: str | None
) -> DeploymentSpec:
    path = config or folder / FILE
    if config is None and not path.exists():
        raise SettingError(
            f"{path}: there is no such file; it says which images to use and where state is kept: "
            f"`pipeline: {{image: IMAGE, state: s3://BUCKET/PREFIX}}` is enough. --config names another one"
        )
    value, lines = read_document(path, WHAT)
    given: list[Where] = []
    own = value.get("namespace") if isinstance(value, dict) else None
    if isinstance(value, dict):
        given = set_values(value, settings, known_paths(DeploymentSpec, value))
        if namespace is not None:
            value["namespace"] = namespace
            given.append(("namespace",))
    chosen = check_document(
        DeploymentSpec,
        value,
        what=WHAT,
        base=path.resolve().parent,
        name=str(path),
        lines=lines,
        given=given,
    )
    # A state that is given beside the namespace is meant for it.
    meant = namespace in (None, own) or ("pipeline", "state") in given
    return _with_state_of_namespace(chosen, meant=meant)


def _with_state_of_namespace(settings: DeploymentSpec, *, meant: bool) -> DeploymentSpec:
    """The settings with the namespace in place of `{namespace}` in the state. Refuses a state that is not
    `meant` for this namespace: the same job in two namespaces would take each other's transactions and
    checkpoints."""
    if settings.pipeline is None:
        return settings
    state, namespace = settings.pipeline.state, settings.namespace
    if NAMESPACE not in state:
        if not meant:
            raise SettingError(
                f"pipeline.state: {state} may be that of another namespace, and two jobs must not share it: "
                f"write {state.rstrip('/')}/{NAMESPACE}, or give the one for {namespace} by "
                f"--set pipeline.state=URI"
            )
        return settings
    if namespace is None:
        raise SettingError(
            f"pipeline.state: {state} names the namespace, and none is given: add --namespace, or write "
            f"namespace into the deployment file"
        )
    pipeline = settings.pipeline.model_copy(update={"state": state.replace(NAMESPACE, namespace)})
    return settings.model_copy(update={"pipeline": pipeline})


def _gateway(settings: DeploymentSpec) -> tuple[GatewaySpec | None, dict[str, Any] | None]:
    if settings.gateway is None:
        return None, None
    if settings.gateway.config is None:
        value: Any = {}
        lines: dict[Where, int] = {}
    else:
        value, lines = read_document(settings.gateway.config, "gateway")
    if isinstance(value, dict) and "tls" in value:
        raise SettingError(
            "gateway.config: tls: expected none; on Kubernetes an Ingress or a mesh adds HTTPS"
        )
    complete = {**value, "engine": _with_place(value.get("engine"))} if isinstance(value, dict) else value
    name = settings.gateway.config or "gateway.config"
    return check_document(GatewaySpec, complete, what="gateway", name=name, lines=lines), value


def _with_place(engine: Any) -> Any:
    """`engine` of a gateway's settings, with replicas if it names none: those of the deployment take their
    place."""
    if engine is None:
        return "http://replicas.invalid"
    if isinstance(engine, dict) and not engine.keys() & set(PLACES):
        return {"url": "http://replicas.invalid", **engine}
    return engine


def _gateway_problems(deployment: Deployment) -> Iterator[str]:
    gateway, settings = deployment.gateway, deployment.settings
    if gateway is None or settings.gateway is None:
        return
    needed = secret_variables(gateway)
    if deployment.job is not None:
        needed |= secret_variables(deployment.job.spec.engine)
    yield from _missing_secrets("gateway", settings.gateway, needed)
    relay = (deployment.gateway_document or {}).get("relay") or {}
    if settings.scaling is not None and settings.scaling.min == 0 and relay.get("absent_s") is not None:
        yield (
            f"gateway.config: relay.absent_s: expected none with scaling.min: 0, found {relay['absent_s']}: "
            f"a request waits until the first replica has started, for limits.request_s at most"
        )


def _problems(job: Job, settings: DeploymentSpec) -> Iterator[str]:
    spec, pods = job.spec, job.pods
    if isinstance(spec.sink, StdoutSink):
        yield ("sink.type: expected a topic or files, found stdout: it would be the output of a task manager")
    if spec.task_managers > 1:
        yield (
            f"task_managers: expected 1, found {spec.task_managers}: on Kubernetes parallelism and "
            f"pipeline.slots of the deployment file say how many there are"
        )
    if settings.engine is None and spec.asks_model and spec.engine.replicas() is None:
        yield (
            "engine: expected one in the deployment file, or the address of one that runs already in the "
            "pipeline file, found neither; a pod starts no engine of its own"
        )
    if settings.scaling is not None and settings.scaling.by == "controller" and spec.scaling is None:
        yield (
            "scaling.by: controller goes by what the pipeline wants, and the pipeline file has no scaling: "
            f"add `scaling: {{min: {settings.scaling.min}, max: {settings.scaling.max}}}` there"
        )
    yield from _missing_secrets("pipeline", pods, secret_variables(spec))
    mounts = [volume.path for volume in pods.volumes]
    for key, path in _paths(spec, settings):
        if "://" not in path and not any(_within(path, mount) for mount in mounts):
            yield (
                f"{key}: {path} is on this machine, and no pod has it: mount it (pipeline.volumes of the "
                f"deployment file), or use a topic"
            )
    state = pods.state
    if state.startswith("file://") and not any(
        _within(state.removeprefix("file://"), mount) for mount in mounts
    ):
        yield (
            f"pipeline.state: {state} is lost with its pod: mount a claim there (pipeline.volumes), or use a "
            f"store such as s3://bucket/prefix"
        )


def warnings_of(deployment: Deployment) -> Iterator[str]:
    """What works, but not as it seems to be meant."""
    yield from _scaling_warnings(deployment)
    job = deployment.job
    if job is None:
        return
    left_out = list(_left_out(deployment, job))
    if left_out:
        yield (
            f"inference_pool: left out of the pipeline file: {', '.join(left_out)}; behind an inference "
            f"gateway the pipeline sees no replicas"
        )
    wanted, allowed = job.spec.scaling, deployment.settings.scaling
    if wanted is None or allowed is None or "scaling" in left_out:
        return
    most = wanted.limits.ceiling
    if most > allowed.max:
        yield (
            f"scaling.max: the pipeline file wants up to {most} replicas, and the deployment file "
            f"allows {allowed.max}: those above never come; give both the same"
        )
    if most < allowed.min:
        yield (
            f"scaling.min: the deployment file keeps at least {allowed.min} replicas, and the pipeline file "
            f"never wants more than {most}: raise its scaling.max or its budget, or lower this"
        )


def _scaling_warnings(deployment: Deployment) -> Iterator[str]:
    settings, job = deployment.settings, deployment.job
    if settings.scaling is None:
        return
    if settings.scaling.by == "hpa" and settings.monitoring.rules == "none":
        yield (
            f"monitoring.rules: none leaves out the rule that records {EXTERNAL_METRIC}: without another one "
            f"the HorizontalPodAutoscaler changes nothing"
        )
    policy = None if job is None or job.spec.scaling is None else job.spec.scaling.policy
    if policy == "kv_cache" and settings.gateway is not None:
        yield (
            "scaling.policy: kv_cache of the pipeline file also sees what the gateway's requests hold in the "
            "replicas, so they count twice; another policy sees the pipeline's own"
        )


def _left_out(deployment: Deployment, job: Job) -> Iterator[str]:
    """Keys of the pipeline file that the job does not get."""
    written, rendered = job.document, job_document(deployment, job)
    yield from sorted(written.keys() - rendered.keys())
    before, after = written.get("engine"), rendered.get("engine")
    # Where other replicas are makes room for those of the deployment, as it is meant.
    if isinstance(before, dict) and isinstance(after, dict) and "kv_events" in before.keys() - after.keys():
        yield "engine.kv_events"


def _missing_secrets(where: str, pods: PodSpec, needed: frozenset[str]) -> Iterator[str]:
    for name in sorted(needed - pods.secrets.keys() - pods.env.keys()):
        yield (
            f"{where}.secrets: {name} is missing, which holds a secret: name its Secret in the deployment "
            f"file, such as {name}: {{name: forebay, key: {name.lower().replace('_', '-')}}}"
        )
    for name in sorted(needed & pods.env.keys()):
        yield f"{where}.env: {name} holds a secret: put it into a Secret, and name that under {where}.secrets"


def _written_in_pipeline(job: Job) -> Iterator[str]:
    """What the job's ConfigMap would have and looks like a secret; the message does not quote it."""
    for key in secrets_written_in(job.document):
        mend = (
            "the job has the variables of pipeline.secrets, such as AWS_SECRET_ACCESS_KEY, and files of "
            "pipeline.volumes"
            if key.startswith("flink.")
            else "write {env: NAME} where the key takes it, and give NAME under pipeline.secrets"
        )
        yield f"{key}: it looks like a secret, and everybody who may read the ConfigMap could read it: {mend}"


def _written_secrets(settings: DeploymentSpec, gateway_value: dict[str, Any] | None) -> Iterator[str]:
    """The same for the other manifests."""
    for key in secrets_written_in(settings.model_dump(mode="json"), skipped=REFERENCES):
        part = key.partition(".")[0]
        yield (
            f"{key}: it looks like a secret, and everybody who may read the manifest could read it: put it "
            f"into a Secret, name that under {part}.secrets as NAME: {{name: SECRET, key: KEY}}, and write "
            f"$(NAME) for it in arguments"
        )
    for key in secrets_written_in(gateway_value or {}):
        yield (
            f"gateway.config: {key}: it looks like a secret, and everybody who may read the ConfigMap could "
            f"read it: write {{env: NAME}}, and name the Secret of NAME under gateway.secrets"
        )


def _paths(spec: PipelineSpec, settings: DeploymentSpec) -> Iterator[tuple[str, str]]:
    """What the job reads and writes on its machine, by the keys that say it."""
    read = getattr(spec.source, "path", None)
    if isinstance(read, str):
        yield "source.path", read
    yield from spec.written().items()
    if spec.journal is not None:
        yield "journal.path", spec.journal.path
    # Where the deployment has an engine, its replicas take the place of those.
    if spec.engine.file is not None and settings.engine is None:
        yield "engine.file", spec.engine.file
    prefill = spec.engine.prefill
    if prefill is not None and prefill.file is not None and settings.engine is None:
        yield "engine.prefill.file", prefill.file
    key = spec.engine.api_key
    if key is not None and key.file is not None:
        yield "engine.api_key.file", key.file


def _within(path: str, mount: str) -> bool:
    inner, outer = posixpath.normpath(path), posixpath.normpath(mount)
    return inner == outer or inner.startswith(f"{outer.rstrip('/')}/")
