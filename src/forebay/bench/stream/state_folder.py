"""The folder in an object store for a measured pipeline's checkpoints."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from forebay.errors import ForebayError
from forebay.s3.location import S3Path


@contextmanager
def state_folder(state: S3Path | None, note: Callable[[str], None]) -> Iterator[S3Path | None]:
    """A folder below `state` for the length of the block; None if `state` is None. If the block fails and
    deleting the folder fails, too, the latter is only logged."""
    if state is None:
        yield None
        return
    from forebay.s3.client import S3Client

    home = state / f"bench-{uuid.uuid4().hex[:8]}"
    client = S3Client(home.bucket)
    client.check(home.key)
    try:
        yield home
    except BaseException:
        try:
            client.delete(home.key)
        except ForebayError as error:
            note(f"{home} stays: {error}")
        raise
    client.delete(home.key)
