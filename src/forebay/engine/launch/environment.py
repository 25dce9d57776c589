"""The engine's Python environment: vLLM for CPUs, separate because its pins contradict PyFlink's."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from forebay.engine.launch.progress import Progress, run_logged
from forebay.errors import SetupError
from forebay.files import check_nobody_else_writes, locked, read_stamp, write_stamp
from forebay.settings import Settings

LOCKS = Path(__file__).with_name("locks")
"""What is installed, each file with its SHA-256. `engine.txt` is all except torch; `torch-cpu.txt` is torch's
CPU build, which PyPI does not have, and `torch.txt` the stock one with CUDA."""
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
    """Whether or not it exists."""
    return settings.engine_env / "bin" / "python"


def environment_ready(settings: Settings) -> bool:
    """Whether the environment was made with this lock. Reads some files, runs nothing."""
    stamp = read_stamp(_stamp(settings))
    return stamp.get("recipe") == recipe() and engine_python(settings).exists()


def ensure_environment(settings: Settings, progress: Progress) -> None:
    """Create the environment unless it is ready; blocks for minutes then.

    A partial or outdated one is replaced. Concurrent set-ups wait for each other, as a step of `progress`.
    Raises `SetupError` with the end of pip's log, and `SettingError` if others may write to its folders.
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
        """Install exactly what a lock lists; wheels only, so that no code of a package runs."""
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
