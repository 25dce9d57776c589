"""From a pipeline file and a deployment file to a checked `Deployment`."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forebay.config import parse_spec, set_values
from forebay.config.spec import PipelineSpec
from forebay.connectors.stdout import StdoutSink
from forebay.deploy.kubernetes.deployment import Deployment
from forebay.deploy.kubernetes.gateway import gateway_document
from forebay.deploy.kubernetes.pipeline import job_document
from forebay.deploy.kubernetes.pod_settings import PodSpec
from forebay.deploy.kubernetes.pods import CONFIG_PATH
from forebay.deploy.kubernetes.settings import DeploymentSpec
from forebay.documents import Where, check_document, known_paths, read_document
from forebay.documents.fields import secret_variables
from forebay.errors import SettingError
from forebay.gateway.spec import GatewaySpec
from forebay.secret_text import secrets_written_in

FILE = "deploy.yaml"
WHAT = "deployment"
NAMESPACE = "{namespace}"
"""What stands for the namespace in the state's place."""
REFERENCES = frozenset(("secret", "secrets", "pull_secrets", "token_secret"))
"""Keys of a deployment file that name a Secret, and hold none."""


def load_deployment(
    pipeline: Path, config: Path | None = None, settings: Sequence[str] = (), namespace: str | None = None
) -> Deployment:
    """The pipeline in the file `pipeline` with the deployment in `config`, by default `deploy.yaml` beside
    it; blocks on the file system.

    `settings` are `path.to.key=value` of the deployment, which win, and so does `namespace`. Raises
    `SettingError` with one line per mistake, also where the pipeline needs what its pods would not have: a
    path of this machine, a secret, an engine.
    """
    document, lines = read_document(pipeline, "pipeline")
    spec = parse_spec(document, base=pipeline.resolve().parent, name=str(pipeline), lines=lines)
    chosen = _settings(pipeline, config, settings, namespace)
    gateway, gateway_value = _gateway(chosen)
    problems = [*_problems(spec, chosen, gateway), *_written_secrets(document, chosen, gateway_value)]
    if problems:
        raise SettingError("\n".join(problems))
    made = Deployment(spec, document, chosen, gateway, gateway_value)
    # What is written into the manifests is what the job and the gateway will read.
    parse_spec(job_document(made), base=Path(CONFIG_PATH), name=f"{pipeline} as rendered for the job")
    if gateway is not None:
        check_document(GatewaySpec, gateway_document(made), what="gateway", name="gateway.config")
    return made


def _settings(
    pipeline: Path, config: Path | None, settings: Sequence[str], namespace: str | None
) -> DeploymentSpec:
    path = config or pipeline.parent / FILE
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
    complete = {"engine": "http://replicas.invalid", **value} if isinstance(value, dict) else value
    name = settings.gateway.config or "gateway.config"
    return check_document(GatewaySpec, complete, what="gateway", name=name, lines=lines), value


def _problems(spec: PipelineSpec, settings: DeploymentSpec, gateway: GatewaySpec | None) -> Iterator[str]:
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
    yield from _missing_secrets("pipeline", settings.pipeline, secret_variables(spec))
    if gateway is not None and settings.gateway is not None:
        needed = secret_variables(gateway) | secret_variables(spec.engine)
        yield from _missing_secrets("gateway", settings.gateway, needed)
    mounts = [volume.path for volume in settings.pipeline.volumes]
    for key, path in _paths(spec, settings):
        if "://" not in path and not any(_within(path, mount) for mount in mounts):
            yield (
                f"{key}: {path} is on this machine, and no pod has it: mount it (pipeline.volumes of the "
                f"deployment file), or use a topic"
            )
    state = settings.pipeline.state
    if state.startswith("file://") and not any(
        _within(state.removeprefix("file://"), mount) for mount in mounts
    ):
        yield (
            f"pipeline.state: {state} is lost with its pod: mount a claim there (pipeline.volumes), or use a "
            f"store such as s3://bucket/prefix"
        )


def warnings_of(deployment: Deployment) -> Iterator[str]:
    """What works, but not as it seems to be meant."""
    left_out = list(_left_out(deployment))
    if left_out:
        yield (
            f"inference_pool: left out of the pipeline file: {', '.join(left_out)}; behind an inference "
            f"gateway the pipeline sees no replicas"
        )
    wanted, allowed = deployment.pipeline.scaling, deployment.settings.scaling
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


def _left_out(deployment: Deployment) -> Iterator[str]:
    """Keys of the pipeline file that the job does not get."""
    written, rendered = deployment.document, job_document(deployment)
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


def _written_secrets(
    document: Any, settings: DeploymentSpec, gateway_value: dict[str, Any] | None
) -> Iterator[str]:
    """What would stand in a manifest and looks like a secret. The value is not said."""
    for key in secrets_written_in(document):
        mend = (
            "the job has the variables of pipeline.secrets, such as AWS_SECRET_ACCESS_KEY, and files of "
            "pipeline.volumes"
            if key.startswith("flink.")
            else "write {env: NAME} where the key takes it, and give NAME under pipeline.secrets"
        )
        yield f"{key}: it looks like a secret, and everybody who may read the ConfigMap could read it: {mend}"
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
