"""Location of a scenario's state: a local folder, or a prefix in an object store."""

from __future__ import annotations

import random
import re
import shutil
from contextlib import suppress
from pathlib import Path

import orjson

from forebay.clients.s3.client import S3Client, StoreAway
from forebay.clients.s3.location import Location, S3Path
from forebay.clients.s3.lock import MAX_LOCK_BYTES, decode_lock
from forebay.errors import SettingError
from forebay.flink.checkpoints import LOCK, METADATA
from forebay.pipeline.state_store import FILE

CHECKPOINT = re.compile(rf"([^/]+)/chk-(\d+)/{METADATA}$")


class State:
    """The state of one pipeline below `root`, which changes with each copy of a folder."""

    def __init__(self, root: Location, seed: int) -> None:
        self._root = root
        self._seed = seed
        self._copies = 0
        self._numbers: dict[str, tuple[int, int]] = {}

    @property
    def home(self) -> Location:
        """The pipeline's `checkpoint.dir`."""
        return self._root / "drill" / "checkpoints"

    def completed(self) -> int:
        """Number of checkpoints completed since the first call, over all jobs."""
        # Flink may remove an older one meanwhile: the next call sees the rest.
        with suppress(FileNotFoundError, StoreAway):
            for name in self._metadata():
                if found := CHECKPOINT.search(name):
                    job, number = found[1], int(found[2])
                    first, last = self._numbers.get(job, (number, number))
                    self._numbers[job] = (first, max(last, number))
        return sum(last - first + 1 for first, last in self._numbers.values())

    def _metadata(self) -> list[str]:
        if isinstance(self._root, Path):
            return [str(path) for path in self._root.glob(f"**/chk-*/{METADATA}")]
        entries = S3Client(self._root.bucket).entries(self._root.key)
        # An empty one only occupies the name.
        return [entry.name for entry in entries if entry.size]

    def holder(self) -> str | None:
        """The run that holds the state in an object store; None before the first one."""
        assert isinstance(self.home, S3Path)
        found = S3Client(self.home.bucket).get((self.home / LOCK).key, MAX_LOCK_BYTES)
        return None if found is None else decode_lock(found.content).holder

    def hide_processes(self) -> None:
        """Remove the process of the last run's JVM from the record in an object store.

        A run ends that process if it is on the same machine, as all machines of the drill are.
        """
        assert isinstance(self.home, S3Path)
        client, key = S3Client(self.home.bucket), (self.home / FILE).key
        found = client.get(key)
        if found is not None:
            content = orjson.dumps({**orjson.loads(found.content), "jvm": None})
            client.put(key, content, replacing=found.etag)

    def move(self) -> None:
        """Move the folder like a plain copy to another machine: times are those of copying, in any order."""
        if not isinstance(self._root, Path):
            raise SettingError("only a folder can be copied")
        old, self._copies = self._root, self._copies + 1
        self._root = old.with_name(f"state-{self._copies}")
        files = sorted(path for path in old.rglob("*") if path.is_file()) if old.exists() else []
        random.Random(f"copy:{self._seed}:{self._copies}").shuffle(files)
        for path in files:
            target = self._root / path.relative_to(old)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        shutil.rmtree(old, ignore_errors=True)
