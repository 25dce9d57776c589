"""Where a scenario's state lies: a folder of the machine, or a prefix in an object store."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from forebay.errors import SettingError
from forebay.flink.checkpoints import LOCK, METADATA
from forebay.s3.client import S3Client, StoreAway
from forebay.s3.lease import MAX_LOCK_BYTES, decode_lock
from forebay.s3.location import Location, S3Path


class State:
    """The state of one pipeline below `root`, which moves with each copy of a folder."""

    def __init__(self, root: Location, seed: int) -> None:
        self._root = root
        self._seed = seed
        self._copies = 0
        self._seen: set[str] = set()

    @property
    def home(self) -> Location:
        """The pipeline's `checkpoint.dir`."""
        return self._root / "drill" / "checkpoints"

    def completed(self) -> int:
        """How many checkpoints were seen to be complete, over all starts."""
        # Flink removes an older one while we look: the next look sees the rest.
        with suppress(FileNotFoundError, StoreAway):
            self._seen.update(self._checkpoints())
        return len(self._seen)

    def _checkpoints(self) -> Iterator[str]:
        if isinstance(self._root, Path):
            yield from map(str, self._root.glob(f"**/chk-*/{METADATA}"))
            return
        for entry in S3Client(self._root.bucket).entries(self._root.key):
            # An empty one only occupies the name.
            if entry.size and "/chk-" in entry.name and entry.name.endswith(f"/{METADATA}"):
                yield entry.name

    def holder(self) -> str | None:
        """The run that holds the state in an object store; None before the first one."""
        assert isinstance(self.home, S3Path)
        found = S3Client(self.home.bucket).get((self.home / LOCK).key, MAX_LOCK_BYTES)
        return None if found is None else decode_lock(found.content).holder

    def move(self) -> None:
        """Move the folder as a plain copy to another machine does: the times are those of the copying, in any
        order."""
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
