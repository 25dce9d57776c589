"""Pod settings of each component in a deployment file: image, size, mounts, environment."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from forebay.deploy.fields import (
    Count,
    Image,
    Label,
    MountPath,
    ObjectName,
    PoolName,
    Port,
    Quantity,
    Replicas,
    ResourceName,
    Seconds,
    SecretKey,
    StoreUri,
    Text,
    Variable,
)
from forebay.fields import LocalPath, Model, Switch, wrong

MAX_ENTRIES = 100

Variables = Annotated[dict[Variable, Text], Field(max_length=MAX_ENTRIES)]
Secrets = Annotated[dict[Variable, SecretKey], Field(max_length=MAX_ENTRIES)]
Texts = Annotated[dict[Text, Text], Field(max_length=MAX_ENTRIES)]


class VolumeSpec(Model):
    """Something mounted into a container: exactly one of `claim`, `secret` and `config_map`."""

    path: MountPath = Field(description="Where it is mounted.")
    claim: ObjectName | None = Field(None, description="Name of a PersistentVolumeClaim.")
    secret: ObjectName | None = Field(None, description="Name of a Secret; mounted read-only.")
    config_map: ObjectName | None = Field(None, description="Name of a ConfigMap; mounted read-only.")

    def model_post_init(self, context: object, /) -> None:
        if sum(value is not None for value in (self.claim, self.secret, self.config_map)) != 1:
            raise wrong("expected exactly one of 'claim', 'secret' and 'config_map'")


Volumes = Annotated[tuple[VolumeSpec, ...], Field(max_length=MAX_ENTRIES)]


class TolerationSpec(Model):
    """A tolerated taint of nodes."""

    key: Text = Field(description="Key of the taint.")
    value: Text | None = Field(None, description="Its value; null: any.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        None, description="Its effect; null: any."
    )


class PodSpec(Model):
    """Settings that the pods of all components share."""

    image: Image = Field(description="Image of the container.")
    cpu: Quantity = Field("1", description="Processor cores that each pod requests.")
    memory: Quantity = Field("2Gi", description="Memory that each pod requests, and may use.")
    env: Variables = Field({}, description="Environment variables that are not secret.")
    secrets: Secrets = Field(
        {}, description="Environment variables from Secrets: `NAME: {name: SECRET, key: KEY}`."
    )
    volumes: Volumes = Field((), description="What is mounted: `{path: /data, claim: NAME}`.")
    node_selector: Texts = Field({}, description="Labels that a node must have.")
    tolerations: Annotated[tuple[TolerationSpec, ...], Field(max_length=MAX_ENTRIES)] = Field(
        (), description="Taints that a node may have: `{key: nvidia.com/gpu}`."
    )
    pull_secrets: Annotated[tuple[ObjectName, ...], Field(max_length=MAX_ENTRIES)] = Field(
        (), description="Secrets for the image's registry."
    )
    service_account_annotations: Texts = Field(
        {}, description="Annotations of the service account, such as the role that a cloud gives it."
    )


EgressPorts = Annotated[tuple[Port, ...], Field(max_length=MAX_ENTRIES)]
EGRESS_PORTS: EgressPorts = Field(
    (),
    description="Further TCP ports that its pods may reach at any address; of a Service, this is the port of "
    "its pods. Those of the addresses in its settings and in `env` are open.",
)


class PipelinePods(PodSpec):
    """The Flink cluster that runs the pipeline, created by the Flink Kubernetes operator."""

    state: StoreUri = Field(
        description="Location of checkpoints, savepoints and the job's metadata: `s3://bucket/prefix`; "
        "`{namespace}` in it stands for the namespace."
    )
    upgrade: Literal["savepoint", "last-state"] = Field(
        "savepoint",
        description="How a new version takes over. `savepoint`: the job stops with a savepoint. "
        "`last-state`: it resumes from the newest checkpoint, even if the old job cannot stop.",
    )
    job_manager_cpu: Quantity = Field("500m", description="Processor cores of the job manager.")
    job_manager_memory: Quantity = Field("1536Mi", description="Memory of the job manager.")
    slots: Count = Field(
        1, description="Subtasks per task manager; they share one Python, so 1 uses most cores."
    )
    egress_ports: EgressPorts = EGRESS_PORTS
    python: MountPath = Field(
        "/opt/forebay/bin/python", description="Python with Forebay in the image, as in its Dockerfile."
    )


class GpuSpec(Model):
    """The accelerators of each pod: exactly one of `resource` and `device_class`."""

    resource: ResourceName | None = Field(
        None, description="Extended resource of a device plugin: `nvidia.com/gpu`."
    )
    device_class: ObjectName | None = Field(
        None, description="DeviceClass for dynamic resource allocation: `gpu.nvidia.com`."
    )
    count: Count = Field(1, description="How many.")

    def model_post_init(self, context: object, /) -> None:
        if (self.resource is None) == (self.device_class is None):
            raise wrong("expected exactly one of 'resource' and 'device_class'")


class CacheSpec(Model):
    """Where weights and compiled kernels are stored."""

    claim: ObjectName | None = Field(
        None, description="A PersistentVolumeClaim that all replicas can mount; null: each loads its own."
    )
    size: Quantity = Field("50Gi", description="Limit of each replica's own cache, without a claim.")


class PoolSpec(Model):
    """Replicas of one kind, with their own Deployment and Service."""

    name: PoolName = Field(description="Name of the pool, such as `decode`.")
    replicas: Replicas = Field(1, description="Initial replicas.")
    role: Literal["prefill", "decode"] | None = Field(
        None,
        description="`prefill`: it prefills prompts, and hands over their KV cache to the pool with "
        "`decode`; there must be one pool of each role. null: it does both.",
    )
    share: Count = Field(
        1,
        description="Parts of the wanted replicas that it gets, rounded up: of pools with `share: 1` and "
        "`share: 3`, a quarter and three quarters. All pools together may so have a few more than wanted.",
    )
    args: Annotated[tuple[Text, ...], Field(max_length=MAX_ENTRIES)] = Field(
        (), description="Arguments for vLLM after those of `engine.args`."
    )


class EnginePods(PodSpec):
    """The vLLM replicas that answer."""

    memory: Quantity = Field("16Gi", description="Memory that each pod requests, and may use.")
    cpu: Quantity = Field("4", description="Processor cores that each pod requests.")
    model: Text = Field(description="Model to serve: its name on the hub, or a folder in the container.")
    command: Annotated[tuple[Text, ...], Field(min_length=1, max_length=20)] = Field(
        ("vllm", "serve"), description="Command that starts vLLM; the model and arguments follow."
    )
    args: Annotated[tuple[Text, ...], Field(max_length=MAX_ENTRIES)] = Field(
        (), description="Arguments for vLLM, such as `--max-model-len=8192`."
    )
    replicas: Replicas = Field(1, description="Initial replicas, without pools.")
    pools: Annotated[tuple[PoolSpec, ...], Field(max_length=10)] = Field(
        (), description="Pools of replicas that differ in arguments; none: one Deployment."
    )
    gpu: GpuSpec | None = Field(None, description="Accelerators of each replica; null: none.")
    runtime_class: ObjectName | None = Field(None, description="RuntimeClass of the pods, such as `nvidia`.")
    cache: CacheSpec = Field(CacheSpec(), description="Where weights and compiled kernels are stored.")
    shared_memory: Quantity = Field("2Gi", description="Size of /dev/shm, which parallel workers share.")
    startup_s: Seconds = Field(
        1800, description="How long a replica may take to load the model before it is restarted."
    )
    drain_s: Seconds = Field(300, description="How long a removed replica may take to finish its requests.")
    rollout: Literal["surge", "replace"] = Field(
        "surge",
        description="`surge`: a new version starts next to the old one, which needs a spare accelerator; "
        "`replace`: one replica at a time is replaced.",
    )
    egress: Switch = Field(
        True, description="Whether pods may reach other hosts by HTTPS, to load models from the hub."
    )
    egress_ports: EgressPorts = EGRESS_PORTS


class GatewayPods(PodSpec):
    """The gateway: one OpenAI-compatible address for the fleet, for clients other than the pipeline."""

    memory: Quantity = Field("1Gi", description="Memory that each pod requests, and may use.")
    replicas: Replicas = Field(2, description="Replicas.")
    config: LocalPath | None = Field(
        None, description="Settings of the gateway (docs/gateway.md); its engine and monitoring are set here."
    )
    egress_ports: EgressPorts = EGRESS_PORTS
    from_namespaces: Annotated[tuple[Label, ...], Field(max_length=MAX_ENTRIES)] = Field(
        (), description="Further namespaces whose pods may call it, such as that of an ingress controller."
    )
