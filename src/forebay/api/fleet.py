"""Which servers answer, and how requests are spread over them."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.errors import SettingError
from forebay.fleet.cache_events.subscriber import check_form
from forebay.fleet.config import FleetConfig, stall_s_for
from forebay.fleet.engine import FleetEngineFactory
from forebay.fleet.policy_registry import DEFAULT_POLICY, make_policy
from forebay.fleet.replicas.discovery import DnsReplicas, FileReplicas, FixedReplicas, ReplicaList
from forebay.settings import SecretRef


@dataclass(frozen=True, init=False)
class Fleet:
    """Several servers of the same model. Give URLs, or `file`, or `dns`.

    Args:
        urls: One URL per server.
        file: Path of a file with one URL per line. The file may change while the job runs.
        dns: `http://NAME:PORT`; every address of the name is a server, looked up again as the job runs.
        routing: Name of a routing policy. The default sends a request to where it is answered soonest, and
            holds it back while all servers are full.
        kv_events: Where vLLM publishes the contents of its caches, such as `tcp://{host}:5557`; None:
            nowhere.

    Raises `SettingError` for a wrong argument. No server is contacted here.

    >>> fleet = fb.Fleet("http://gpu-1:8000", "http://gpu-2:8000", routing="session_affinity")
    >>> ask = fb.Inference(fleet, model="smollm2-135m-instruct", prompt="{{ text }}")
    """

    replicas: ReplicaList
    routing: str
    kv_events: str | None

    def __init__(
        self,
        *urls: str,
        file: str | None = None,
        dns: str | None = None,
        routing: str = DEFAULT_POLICY,
        kv_events: str | None = None,
    ) -> None:
        if sum((bool(urls), file is not None, dns is not None)) != 1:
            raise SettingError("a fleet needs one of: URLs, file=, dns=")
        replicas: ReplicaList
        if file is not None:
            replicas = FileReplicas(str(file))
        elif dns is not None:
            replicas = DnsReplicas(dns)
        else:
            replicas = FixedReplicas(urls)
        make_policy(routing)
        if kv_events is not None:
            check_form(kv_events)
        object.__setattr__(self, "replicas", replicas)
        object.__setattr__(self, "routing", routing)
        object.__setattr__(self, "kv_events", kv_events)

    def factory(
        self, model: str, *, api_key: SecretRef | None, timeout_s: float, deadline_s: float, capacity: int
    ) -> FleetEngineFactory:
        """What opens this fleet for an operator with these bounds."""
        return FleetEngineFactory(
            FleetConfig(
                self.replicas,
                model=model,
                api_key=api_key,
                routing=self.routing,
                kv_events=self.kv_events,
                stall_s=stall_s_for(timeout_s),
                capacity=capacity,
                deadline_s=deadline_s,
            )
        )
