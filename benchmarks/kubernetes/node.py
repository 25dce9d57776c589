"""A node whose pods are local processes."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import orjson

from benchmarks.kubernetes.container import Image, command_of, mounts
from benchmarks.kubernetes.plane import API_IP, API_PORT, NODE_IP, Api, PodNetwork
from benchmarks.kubernetes.pod import PodProcess, timestamp
from forebay.clients.kubernetes.watch import Collection, Trouble, follow
from forebay.errors import ForebayError, SettingError

log = logging.getLogger(__name__)

HEARTBEAT_S = 10.0
ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti"}
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
GIVEN = ("PATH", "PYTHONPATH", "LANG", "HOME", "FOREBAY_KAFKA_HOME")
"""Environment variables of this process that pods get."""


class ProcessNode:
    """Runs the pods that the scheduler assigns to this node, in one namespace.

    `images`: by names of container images; `authority`: the API server's certificate.
    """

    def __init__(
        self,
        api: Api,
        network: PodNetwork,
        images: Mapping[str, Image],
        *,
        namespace: str,
        folder: Path,
        authority: Path,
        name: str = "here",
    ) -> None:
        self._api = api
        self._network = network
        self._images = images
        self._namespace = namespace
        self._folder = folder
        self._authority = authority
        self.name = name
        self._pods: dict[str, PodProcess] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Run until cancelled; pods end with it."""
        await self._register()
        heart = asyncio.create_task(self._beat())
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        every = Collection(path, self._namespace, "", "the pods")
        try:
            async for found in follow(self._api.http, every):
                if not isinstance(found, Trouble):
                    self._look(found)
        finally:
            for task in (heart, *self._tasks.values()):
                task.cancel()
            await asyncio.gather(heart, *self._tasks.values(), return_exceptions=True)

    def _look(self, pods: Mapping[str, Mapping[str, Any]]) -> None:
        mine = {
            str(each["metadata"]["uid"]): each
            for each in pods.values()
            if each["spec"].get("nodeName") == self.name
        }
        for uid, body in mine.items():
            if uid not in self._tasks and not body["metadata"].get("deletionTimestamp"):
                self._tasks[uid] = asyncio.create_task(self._run(uid, body))
        for uid, pod in self._pods.items():
            if uid not in mine or mine[uid]["metadata"].get("deletionTimestamp"):
                pod.stopping.set()

    async def _run(self, uid: str, body: Mapping[str, Any]) -> None:
        spec, name = body["spec"], body["metadata"]["name"]
        folder = self._folder / name
        folder.mkdir(parents=True)
        place = await self._network.add(host=bool(spec.get("hostNetwork")))
        try:
            mounted = mounts(spec, folder)
            await self._fill(spec, folder)
            fields = {
                "status.podIP": place.ip,
                "metadata.name": name,
                "metadata.namespace": self._namespace,
                "spec.nodeName": self.name,
            }
            base = {key: os.environ[key] for key in GIVEN if key in os.environ} | {"HOSTNAME": name}
            if spec.get("automountServiceAccountToken", True):
                base["KUBECONFIG"] = str(await self._log_in(spec, folder))
            image = self._images[spec["containers"][0]["image"]]
            command = command_of(spec, image, fields, base, mounted)
            self._pods[uid] = PodProcess(self._api, body, place, command, folder / "log")
            await self._pods[uid].run()
        except (ForebayError, OSError, KeyError) as error:
            log.error("pod %s: %r", name, error)
        finally:
            self._pods.pop(uid, None)
            await self._network.remove(place)

    async def _fill(self, spec: Mapping[str, Any], folder: Path) -> None:
        for volume in spec.get("volumes") or ():
            place = folder / volume["name"]
            place.mkdir()
            if "configMap" in volume:
                path = f"/api/v1/namespaces/{self._namespace}/configmaps/{volume['configMap']['name']}"
                for name, text in ((await self._api.get(path)).get("data") or {}).items():
                    (place / name).write_text(text)
            elif "emptyDir" not in volume and "projected" not in volume:
                raise SettingError(
                    f"volume {volume['name']}: this node has empty folders and ConfigMaps only"
                )

    async def _log_in(self, spec: Mapping[str, Any], folder: Path) -> Path:
        account = spec.get("serviceAccountName", "default")
        path = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{account}/token"
        token = (await self._api.create(path, {"spec": {"expirationSeconds": 7200}}))["status"]["token"]
        authority = shutil.copy(self._authority, folder / "ca.crt")
        cluster = {"server": f"https://{API_IP}:{API_PORT}", "certificate-authority": str(authority)}
        context = {"cluster": "here", "user": account, "namespace": self._namespace}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": account, "user": {"token": token}}],
            "contexts": [{"name": "here", "context": context}],
        }
        found = folder / "kubeconfig"
        found.write_bytes(orjson.dumps(config))
        found.chmod(0o600)
        return found

    async def _register(self) -> None:
        labels = {"kubernetes.io/hostname": self.name}
        await self._api.create("/api/v1/nodes", {"metadata": {"name": self.name, "labels": labels}})
        ready = {"type": "Ready", "status": "True", "reason": "Here"}
        times = {"lastHeartbeatTime": timestamp(), "lastTransitionTime": timestamp()}
        addresses = [{"type": "InternalIP", "address": NODE_IP}]
        status = {
            "capacity": ROOM,
            "allocatable": ROOM,
            "conditions": [{**ready, **times}],
            "addresses": addresses,
        }
        await self._api.patch(f"/api/v1/nodes/{self.name}/status", {"status": status})
        lease = {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": _micro()}
        await self._api.create(LEASES, {"metadata": {"name": self.name}, "spec": lease})

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self._api.patch(f"{LEASES}/{self.name}", {"spec": {"renewTime": _micro()}})


def _micro() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
