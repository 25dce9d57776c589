"""Loads a checked `Deployment` from a deployment file and an optional pipeline file."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forebay.connectors.files.settings import StdoutSink
from forebay.deploy.kubernetes.deployment import EXTERNAL_METRIC, Deployment, Job
from forebay.deploy.kubernetes.gateway import gateway_document
from forebay.deploy.kubernetes.pipeline import job_document
from forebay.deploy.kubernetes.pod_settings import PodSpec
from forebay.deploy.kubernetes.pods import CONFIG_PATH
from forebay.deploy.kubernetes.settings import DeploymentSpec
from forebay.documents import Where, check_document, known_paths, read_document
from forebay.errors import SettingError
from forebay.fields import secret_variables
from forebay.fleet.config import PLACES
from forebay.gateway.spec import GatewaySpec
from forebay.pipeline.load import parse_spec, set_values
from forebay.pipeline.spec import PipelineSpec
from forebay.secret_text import secrets_written_in

FILE = "deploy.yaml"
WHAT = "deployment"
NAMESPACE = "{namespace}"
REFERENCES = frozenset(("secret", "secrets", "pull_secrets", "token_secret"))


def load_deployment(
    pipeline: Path | None = None,
    config: Path | None = None,
    settings: Sequence[str] = (),
    namespace: str | None = None,
) -> Deployment:
    """Load `config` (default: `deploy.yaml` next to the pipeline file), overridden by `settings` and
    `namespace`.

    Blocks. Raises `SettingError` with one line per mistake.
    """
    file = None if pipeline is None else _read_pipeline(pipeline)
    chosen = _settings(Path() if pipeline is None else pipeline.parent, config, settings, namespace)
    job = _job(chosen, *file) if file is not None else None
    if job is None and chosen.pipeline is not None:
        raise SettingError(
            "PIPELINE: missing; the deployment file has 'pipeline', so give the pipeline file, too"
        )
    gateway, gateway_value = _gateway(chosen)
    made = Deployment(chosen, job, gateway, gateway_value)
    problems = [] if job is None else [*_problems(job, chosen), *_written_in_pipeline(job)]
    problems += [*_gateway_problems(made), *_written_secrets(chosen, gateway_value)]
    if problems:
        raise SettingError("\n".join(problems))
    # The manifests contain what the job and the gateway will read.
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
            f"{path}: not found; it names the images and where state is stored: "
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
        DeploymentSpec, value, what=WHAT, base=path.resolve().parent, name=str(path), lines=lines, given=given
    )
    # A state that is given together with the namespace is for that namespace.
    meant = namespace in (None, own) or ("pipeline", "state") in given
    return _with_state_of_namespace(chosen, meant=meant)


def _with_state_of_namespace(settings: DeploymentSpec, *, meant: bool) -> DeploymentSpec:
    if settings.pipeline is None:
        return settings
    state, namespace = settings.pipeline.state, settings.namespace
    if NAMESPACE not in state:
        if not meant:
            raise SettingError(
                f"pipeline.state: {state} may belong to another namespace, and two jobs must not share it: "
                f"write {state.rstrip('/')}/{NAMESPACE}, or give the one for {namespace} by "
                f"--set pipeline.state=URI"
            )
        return settings
    if namespace is None:
        raise SettingError(
            f"pipeline.state: {state} needs a namespace, and none is given: add --namespace, or write "
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
    if not gateway.keys:
        yield (
            "gateway.config: keys: expected at least one, found none: every pod of the namespace could "
            "use the engine; name a Secret with the key, as in docs/how-to/kubernetes.md"
        )
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
            f"task_managers: expected 1, found {spec.task_managers}: on Kubernetes, parallelism and "
            f"pipeline.slots of the deployment file set their number"
        )
    if settings.engine is None and spec.asks_model and spec.engine.replicas() is None:
        yield (
            "engine: expected one in the deployment file, or the address of a running one in the "
            "pipeline file, found neither; pods do not start engines"
        )
    if settings.scaling is not None and settings.scaling.by == "controller" and spec.scaling is None:
        yield (
            "scaling.by: controller needs the pipeline's own scaling, and the pipeline file has none: "
            f"add `scaling: {{min: {settings.scaling.min}, max: {settings.scaling.max}}}` there"
        )
    yield from _missing_secrets("pipeline", pods, secret_variables(spec))
    mounts = [volume.path for volume in pods.volumes]
    for key, path in _paths(spec, settings):
        if "://" not in path and not any(_within(path, mount) for mount in mounts):
            yield (
                f"{key}: {path} is on this machine, not in the pods: mount it (pipeline.volumes of the "
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
            f"scaling.max: the pipeline file asks for up to {most} replicas, but the deployment file "
            f"allows {allowed.max}: the others never start; give both the same number"
        )
    if most < allowed.min:
        yield (
            f"scaling.min: the deployment file keeps at least {allowed.min} replicas, and the pipeline file "
            f"never asks for more than {most}: raise its scaling.max or its budget, or lower this"
        )


def _scaling_warnings(deployment: Deployment) -> Iterator[str]:
    settings, job = deployment.settings, deployment.job
    if settings.scaling is None:
        return
    if settings.scaling.by == "hpa" and settings.monitoring.rules == "none":
        yield (
            f"monitoring.rules: with none, no rule records {EXTERNAL_METRIC}: without another one "
            f"the HorizontalPodAutoscaler changes nothing"
        )
    policy = None if job is None or job.spec.scaling is None else job.spec.scaling.policy
    if policy == "kv_cache" and settings.gateway is not None:
        yield (
            "scaling.policy: kv_cache of the pipeline file also includes the gateway's requests in the "
            "replicas, so they count twice; another policy counts only the pipeline's own"
        )


def _left_out(deployment: Deployment, job: Job) -> Iterator[str]:
    written, rendered = job.document, job_document(deployment, job)
    yield from sorted(written.keys() - rendered.keys())
    before, after = written.get("engine"), rendered.get("engine")
    # The deployment replaces the addresses of other replicas, as intended.
    if isinstance(before, dict) and isinstance(after, dict) and "kv_events" in before.keys() - after.keys():
        yield "engine.kv_events"


def _missing_secrets(where: str, pods: PodSpec, needed: frozenset[str]) -> Iterator[str]:
    for name in sorted(needed - pods.secrets.keys() - pods.env.keys()):
        yield (
            f"{where}.secrets: {name} is missing and holds a secret: name its Secret in the deployment "
            f"file, such as {name}: {{name: forebay, key: {name.lower().replace('_', '-')}}}"
        )
    for name in sorted(needed & pods.env.keys()):
        yield f"{where}.env: {name} holds a secret: put it into a Secret, and name that under {where}.secrets"


def _written_in_pipeline(job: Job) -> Iterator[str]:
    for key in secrets_written_in(job.document):
        fix = (
            "the job has the variables of pipeline.secrets, such as AWS_SECRET_ACCESS_KEY, and files of "
            "pipeline.volumes"
            if key.startswith("flink.")
            else "write {env: NAME} where the key takes it, and give NAME under pipeline.secrets"
        )
        yield f"{key}: it looks like a secret, and everybody with access to its ConfigMap can read it: {fix}"


def _written_secrets(settings: DeploymentSpec, gateway_value: dict[str, Any] | None) -> Iterator[str]:
    for key in secrets_written_in(settings.model_dump(mode="json"), skipped=REFERENCES):
        part = key.partition(".")[0]
        yield (
            f"{key}: it looks like a secret, and everybody with access to the manifest could read it: put it "
            f"into a Secret, name that under {part}.secrets as NAME: {{name: SECRET, key: KEY}}, and write "
            f"$(NAME) for it in arguments"
        )
    for key in secrets_written_in(gateway_value or {}):
        yield (
            f"gateway.config: {key}: it looks like a secret, and everybody who may read the ConfigMap could "
            f"read it: write {{env: NAME}}, and name the Secret of NAME under gateway.secrets"
        )


def _paths(spec: PipelineSpec, settings: DeploymentSpec) -> Iterator[tuple[str, str]]:
    read = getattr(spec.source, "path", None)
    if isinstance(read, str):
        yield "source.path", read
    yield from spec.written().items()
    if spec.journal is not None:
        yield "journal.path", spec.journal.path
    # The deployment's own engine replaces those replicas.
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
