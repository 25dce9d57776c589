"""The gateway's server, from listening to drained."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import uvicorn

from forebay.clock import SystemClock
from forebay.errors import SettingError
from forebay.fleet.client import FleetClient
from forebay.fleet.disaggregated import describe_prefill
from forebay.gateway.access_log import AccessLog
from forebay.gateway.app import Gateway
from forebay.gateway.body_reader import BodyReader
from forebay.gateway.connections import Handshakes, Listener, within_files
from forebay.gateway.cors import Cors, Hosts
from forebay.gateway.key_reload import KeyReload, read_keys
from forebay.gateway.keys import KeyEntry, KeyLimits, KeyRing
from forebay.gateway.protocol import bounded
from forebay.gateway.spec import GatewaySpec, TlsSpec
from forebay.gateway.telemetry import Monitoring
from forebay.gateway.tracing import Tracing
from forebay.settings import interpreter_environment, otel_installed, otel_signals, read_secret

LOG = logging.getLogger("forebay.gateway")
CUT_S = 1
LOOK_S = 1.0
LOCAL = ("127.0.0.1", "::1", "localhost")
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class GatewayServer(uvicorn.Server):
    """uvicorn's server that drains before it stops listening.

    On the first signal `/health` reports `draining` and new requests get a 503. The port closes when answers
    in flight have ended, or after the grace. A second signal closes it at once.
    """

    def __init__(self, gateway: Gateway, spec: GatewaySpec) -> None:
        limits = spec.limits
        self._handshakes = None if spec.tls is None else Handshakes()
        config = uvicorn.Config(
            gateway,
            http=bounded(limits, self._handshakes),
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_config=None,
            log_level=logging.CRITICAL,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=limits.idle_s,
            timeout_graceful_shutdown=CUT_S,
        )
        if spec.tls is not None:
            config.load()
            config.ssl = tls_context(spec.tls)
        super().__init__(config)
        self._gateway = gateway
        self._drain = spec.drain
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for each in sockets or []:
            if isinstance(each, Listener):
                each.handshakes = self._handshakes
        await super().startup(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Drain on SIGTERM and Ctrl-C. For the main thread, with the event loop running."""
        loop = asyncio.get_running_loop()

        def on_signal(number: int, frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(self.begin_drain)

        before = {number: signal.signal(number, on_signal) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def begin_drain(self) -> None:
        if self._draining is None:
            LOG.info("draining: %d requests in flight", self._gateway.in_flight)
            self._gateway.drain()
            self._draining = asyncio.get_running_loop().create_task(self._drain_out())
        else:
            self._draining.cancel()
            self.force_exit = self.should_exit
            self.should_exit = True

    async def _drain_out(self) -> None:
        loop = asyncio.get_running_loop()
        ends_s = loop.time() + self._drain.grace_s
        idle = asyncio.ensure_future(self._gateway.idle.wait())
        await asyncio.sleep(min(self._drain.notice_s, self._drain.grace_s))
        await asyncio.wait([idle], timeout=max(0.0, self._drain.grace_s - self._drain.notice_s))
        idle.cancel()
        # Sent bytes may still be on their way to a slow reader.
        self.config.timeout_graceful_shutdown = max(CUT_S, math.ceil(ends_s - loop.time()))
        self.should_exit = True


def tls_context(tls: TlsSpec) -> ssl.SSLContext:
    """Server context, TLS 1.2 and newer. Raises `SettingError` for unusable files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password OpenSSL prompts for one on the terminal.
        context.load_cert_chain(tls.certificate, tls.key, password=lambda: "")
    except (OSError, ValueError) as error:
        detail = getattr(error, "strerror", None) or str(error)
        raise SettingError(f"tls: {tls.certificate} and {tls.key} cannot be used: {detail}") from None
    return context


def make_gateway(spec: GatewaySpec) -> Gateway:
    clock = SystemClock()
    keys = read_keys(spec)
    watched = spec.monitoring
    monitor = None if watched.key is None else read_secret(watched.key.ref())
    prefill = spec.prefill_fleet()
    return Gateway(
        FleetClient(spec.fleet(), clock=clock),
        prefill=None if prefill is None else FleetClient(prefill, clock=clock),
        keys=KeyRing(keys, clock.monotonic_s()),
        aliases={name: alias.alias() for name, alias in spec.models.items()},
        limits=spec.limits,
        rules=spec.relay.rules(),
        monitoring=Monitoring(
            None if monitor is None else _monitors(monitor, clock.monotonic_s()),
            watched.port,
        ),
        access_log=None if spec.access_log is None else AccessLog(spec.access_log),
        cors=Cors(spec.cors),
        hosts=Hosts(spec.hosts),
        reader=BodyReader(interpreter_environment()),
        tracing=open_tracing() if spec.opentelemetry else None,
        clock=clock,
    )


def _monitors(key: str, now_s: float) -> KeyRing:
    return KeyRing([KeyEntry("monitoring", key, KeyLimits())], now_s)


def open_tracing() -> Tracing:
    signals = otel_signals()
    with otel_installed():
        from forebay.gateway.spans import SpanTracing
        from forebay.otel import open_otel
    return SpanTracing(open_otel("forebay-gateway", signals))


def listen(host: str, port: int) -> socket.socket:
    """A listening socket at `host` and `port` (0: any free port). Raises `SettingError`."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        made = socket.create_server((host, port), family=family, backlog=2048)
        return Listener(made.family, made.type, made.proto, made.detach())
    except (OSError, OverflowError) as error:
        detail = getattr(error, "strerror", None) or str(error)
        raise SettingError(f"the gateway cannot listen at {host}:{port}: {detail}") from None


def run_gateway(
    spec: GatewaySpec,
    *,
    host: str,
    port: int,
    announce: Callable[[str], None],
    load: Callable[[], GatewaySpec] | None = None,
    path: Path | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; blocks the main thread. `announce` gets the URL.

    `load` rereads the settings at `path`: changed keys apply at once. Raises `SettingError` for a port in
    use, a missing secret, or replicas without a permitted model.
    """
    spec = within_files(spec)
    gateway = make_gateway(spec)
    if not spec.keys and host not in LOCAL:
        LOG.warning("without keys, everybody who can reach %s may use the replicas", host)
    with ExitStack() as stack:
        taken = [stack.enter_context(listen(host, port))]
        at = taken[0].getsockname()[1]
        if spec.monitoring.port is not None:
            taken.append(stack.enter_context(listen(spec.monitoring.host, spec.monitoring.port)))
        url = url_of(host, at, tls=spec.tls is not None)
        reload = None if load is None else KeyReload(gateway.keys, spec, load, path)
        asyncio.run(_run(gateway, spec, taken, reload, lambda: announce(url)))


def url_of(host: str, port: int, *, tls: bool = False) -> str:
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def _run(
    gateway: Gateway,
    spec: GatewaySpec,
    taken: list[socket.socket],
    reload: KeyReload | None,
    announce: Callable[[], None],
) -> None:
    server = GatewayServer(gateway, spec)
    tasks: list[asyncio.Task[None]] = []
    try:
        await gateway.open()
        tasks.append(asyncio.create_task(look_at_prefill(gateway, spec)))
        if reload is not None:
            tasks.append(asyncio.create_task(reload.run()))
        with server.handle_signals():
            # Otherwise a full collection goes through all imports: 20 to 35 ms without an event loop.
            gc.collect()
            gc.freeze()
            announce()
            await server.serve(sockets=taken)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await gateway.close()


async def look_at_prefill(gateway: Gateway, spec: GatewaySpec) -> None:
    """Log why servers of `prefill` cannot prefill, once models are known. Raises nothing."""
    fleet = spec.prefill_fleet()
    if fleet is None:
        return
    try:
        while (model := spec.engine.model or gateway.model) is None:  # noqa: ASYNC110 (in plain fields)
            await asyncio.sleep(LOOK_S)
        detail = await describe_prefill(
            fleet.replicas, model, chat=False, api_key=fleet.api_key, key="engine.prefill"
        )
    except Exception:
        LOG.exception("engine.prefill: cannot check its servers, because of an error in the gateway")
        return
    if detail:
        LOG.warning("%s", detail)
