"""Addresses of folders and files: on this machine, or in an object store."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from forebay.errors import SettingError

SCHEME = "s3://"
BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
KEY = re.compile(r"[A-Za-z0-9!_.*'()=+@~,-]+(/[A-Za-z0-9!_.*'()=+@~,-]+)*")
"""Needs no quoting anywhere; has neither a query nor an empty part."""
MAX_KEY_CHARS = 900


@dataclass(frozen=True, slots=True)
class S3Path:
    """`s3://bucket/key`: a file, or a folder's prefix. An empty key means the bucket itself."""

    bucket: str
    key: str

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> S3Path:
        return S3Path(self.bucket, self.key.rpartition("/")[0])

    def __truediv__(self, name: str) -> S3Path:
        return S3Path(self.bucket, f"{self.key}/{name}" if self.key else name)

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"


Location = Path | S3Path


def is_s3(text: str) -> bool:
    return text.lower().startswith(SCHEME)


def s3_path(text: str) -> S3Path:
    """Raises `SettingError` for an invalid address, or one of a whole bucket."""
    bucket, _, key = text[len(SCHEME) :].partition("/")
    key = key.rstrip("/")
    if not is_s3(text) or not BUCKET.fullmatch(bucket):
        raise SettingError("expected s3://bucket/prefix, with the name of a bucket: a-z, 0-9, '-' and '.'")
    if not KEY.fullmatch(key) or {".", ".."} & set(key.split("/")):
        raise SettingError(
            f"expected s3://{bucket}/prefix, with a prefix of letters, digits, '/' and !_.*'()=+@~,-"
        )
    if len(key) > MAX_KEY_CHARS:
        raise SettingError(f"expected a prefix of at most {MAX_KEY_CHARS} characters, found {len(key)}")
    return S3Path(bucket, key)


def location_of(text: str) -> Location:
    return s3_path(text) if is_s3(text) else Path(text)


def uri_of(place: Location) -> str:
    """For Flink, which does not decode `%20`. Raises `SettingError` for a folder that Flink would take for
    another one.
    """
    if isinstance(place, S3Path):
        return str(place)
    # Flink ignores that `..` may follow a link.
    text = str(place.resolve() if ".." in place.parts else place.absolute())
    utf8 = text.encode("utf-8", "replace").decode() == text
    if not utf8 or "\\" in text or text[-1] <= " ":
        raise SettingError(
            f"Flink cannot use the folder {text!r}: its path holds a backslash, ends with white space, or is "
            "not UTF-8; give it another name"
        )
    return f"file://{text}"


def below(folder: Location, place: Location) -> str:
    """`place` in the form for `within`: relative if it is below `folder`, which may then be moved."""
    if isinstance(folder, Path) and isinstance(place, Path):
        outer, inner = folder.absolute(), place.absolute()
        return str(inner.relative_to(outer) if inner.is_relative_to(outer) else inner)
    prefix = f"{folder}/"
    return str(place).removeprefix(prefix) if isinstance(place, S3Path) else str(place.absolute())


def within(folder: Location, text: str) -> Location:
    return s3_path(text) if is_s3(text) else Path(text) if text.startswith("/") else folder / text
