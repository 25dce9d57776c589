"""A small client of an object store, whose errors name the cause. It shows or keeps no key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, TypeVar
from urllib.parse import urlsplit

from forebay.clients.s3.location import S3Path
from forebay.errors import PipelineFailed, SettingError, SetupError
from forebay.settings import aws_region

CONNECT_S, READ_S = 3.0, 10.0
ATTEMPTS = 3
DEFAULT_REGION = "us-east-1"
MAX_OBJECT_BYTES = 16 << 20
AWAY_STATUS = frozenset((408, 409, 429, 500, 502, 503, 504))
"""409: a concurrent write to the same object."""
REFUSED_STATUS = frozenset((400, 401, 403))
SKEWED = frozenset(("RequestTimeTooSkewed", "RequestExpired"))
UNFETCHED = frozenset(("CredentialRetrievalError", "TokenRetrievalError", "UnauthorizedSSOTokenError"))
DELETED_AT_ONCE = 1000
MAX_PAGES = 1000

R = TypeVar("R")


@cache
def _descriptions() -> Any:
    from botocore.loaders import create_loader

    return create_loader()


class StoreAway(PipelineFailed): ...


class StoreRefused(SettingError):
    """A person has to fix the bucket, the keys or the clock, possibly while a run continues."""


class Changed(Exception): ...


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    size: int
    written_s: float


@dataclass(frozen=True, slots=True)
class Found:
    content: bytes
    etag: str


def _entry(found: Any, prefix: str) -> Entry:
    return Entry(found["Key"].removeprefix(f"{prefix}/"), found["Size"], found["LastModified"].timestamp())


class S3Client:
    """The objects of one bucket. The first call looks for keys and connects, and so does the next one after a
    rejection.

    Calls block, and raise `StoreAway`, `StoreRefused`, and `SetupError`.
    """

    def __init__(self, bucket: str, *, timeout_s: float = READ_S, attempts: int = ATTEMPTS) -> None:
        self.bucket = bucket
        self._timeout_s = timeout_s
        self._attempts = attempts

    def check(self, prefix: str) -> None:
        self._ask(lambda s3: s3.list_objects_v2(Bucket=self.bucket, Prefix=f"{prefix}/", MaxKeys=1))

    def get(self, key: str, most_bytes: int = MAX_OBJECT_BYTES) -> Found | None:
        """Raises `SettingError` if it has more than `most_bytes`."""

        def ask(s3: Any) -> Found:
            answer = s3.get_object(Bucket=self.bucket, Key=key)
            with closing(answer["Body"]) as body:
                content = body.read(most_bytes + 1)
            return Found(content, answer["ETag"])

        found = self._ask(ask, missing=True)
        if found is not None and len(found.content) > most_bytes:
            raise SettingError(f"{S3Path(self.bucket, key)} has more than {most_bytes} bytes")
        return found

    def head(self, key: str, count: int) -> bytes | None:
        """None if the object does not exist."""

        def ask(s3: Any) -> bytes:
            with closing(s3.get_object(Bucket=self.bucket, Key=key)["Body"]) as body:
                return bytes(body.read(count))

        return self._ask(ask, missing=True)

    def lines(self, key: str) -> Iterator[bytes]:
        """Without line ends, streamed; none if the object does not exist."""
        answer = self._ask(lambda s3: s3.get_object(Bucket=self.bucket, Key=key), missing=True)
        if answer is not None:
            with closing(answer["Body"]) as body:
                lines = body.iter_lines()
                while (line := self._ask(lambda _: next(lines, None))) is not None:
                    yield line

    def put(self, key: str, content: bytes, *, replacing: str | None) -> str:
        """Replace the object with the ETag `replacing`, or create it (None); return the ETag.

        Raises `Changed` if another object exists, maybe the caller's own write whose answer was lost.
        """
        condition = {"IfNoneMatch": "*"} if replacing is None else {"IfMatch": replacing}

        def ask(s3: Any) -> str:
            answer = s3.put_object(Bucket=self.bucket, Key=key, Body=content, **condition)
            return str(answer["ETag"])

        etag = self._ask(ask, missing=True)
        if etag is None:
            raise Changed
        return etag

    def entries(self, prefix: str) -> list[Entry]:
        found = (_entry(each, prefix) for each in self._objects(prefix))
        return [each for each in found if each.name and not each.name.endswith("/")]

    def folders(self, prefix: str) -> list[str]:
        pages = self._pages("list_objects_v2", f"{prefix}/", Delimiter="/")
        found = [each["Prefix"] for page in pages for each in page.get("CommonPrefixes", ())]
        return [name.removeprefix(f"{prefix}/").rstrip("/") for name in found]

    def names(self, prefix: str) -> list[str]:
        return [each["Key"].removeprefix(f"{prefix}/") for each in self._objects(prefix)]

    def delete(self, prefix: str, *, keep: Callable[[Entry], bool] = lambda entry: False) -> None:
        self.abort_uploads(prefix)
        keys = [{"Key": each["Key"]} for each in self._objects(prefix) if not keep(_entry(each, prefix))]
        for at in range(0, len(keys), DELETED_AT_ONCE):
            batch = {"Objects": keys[at : at + DELETED_AT_ONCE], "Quiet": True}
            self._call("delete_objects", Delete=batch)

    def abort_uploads(self, prefix: str) -> int:
        return self.abort_uploads_of(f"{prefix}/")

    def abort_uploads_of(self, key: str) -> int:
        """To objects whose keys begin with `key`; on MinIO, to the object `key`."""
        pages = self._pages("list_multipart_uploads", key)
        uploads = [each for page in pages for each in page.get("Uploads", ())]
        for each in uploads:
            self._call("abort_multipart_upload", Key=each["Key"], UploadId=each["UploadId"])
        return len(uploads)

    def flink_options(self) -> dict[str, str]:
        """Flink's file system then reaches the same server with the same keys; contains no key."""
        made = self._s3.meta
        host = urlsplit(made.endpoint_url).hostname or ""
        options = {
            "s3.aws.credentials.provider": "com.amazonaws.auth.DefaultAWSCredentialsProviderChain",
            "s3.endpoint.region": made.region_name,
            # It finds its keys by itself on any machine.
            "security.delegation.tokens.enabled": "false",
        }
        if host.endswith((".amazonaws.com", ".amazonaws.com.cn")):
            return options
        return options | {"s3.endpoint": made.endpoint_url, "s3.path.style.access": "true"}

    def _objects(self, prefix: str) -> Iterator[Any]:
        for page in self._pages("list_objects_v2", f"{prefix}/"):
            yield from page.get("Contents", ())

    def _pages(self, call: str, prefix: str, **more: str) -> Iterator[Any]:
        pages = iter(self._s3.get_paginator(call).paginate(Bucket=self.bucket, Prefix=prefix, **more))
        read = 0
        while (page := self._ask(lambda _: next(pages, None))) is not None:
            yield page
            read += 1
            if read == MAX_PAGES:
                raise StoreRefused(
                    f"{S3Path(self.bucket, prefix)}: the listing did not end after {MAX_PAGES} pages; use a "
                    "prefix with fewer objects"
                )

    @cached_property
    def _s3(self) -> Any:
        try:
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
            from botocore.session import get_session
        except ModuleNotFoundError:
            raise SetupError(
                f"{S3Path(self.bucket, '')}: a client of S3 is needed: pip install 'forebay[s3]'"
            ) from None
        config = Config(
            connect_timeout=min(CONNECT_S, self._timeout_s),
            read_timeout=self._timeout_s,
            retries={"mode": "standard", "total_max_attempts": self._attempts},
        )
        try:
            session = get_session()
            session.register_component("data_loader", _descriptions())
            region = aws_region() or session.get_config_variable("region") or DEFAULT_REGION
            made = session.create_client("s3", region_name=region, config=config)
        except (BotoCoreError, ValueError) as error:
            self._check_fetched(error)
            raise SettingError(f"the client of S3 cannot be set up: {error}") from None
        if urlsplit(made.meta.endpoint_url).username is not None:
            raise SettingError(
                "AWS_ENDPOINT_URL: expected a URL without user and password; keys belong into "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )
        return made

    def _call(self, name: str, **arguments: Any) -> None:
        self._ask(lambda s3: getattr(s3, name)(Bucket=self.bucket, **arguments), missing=True)

    def _ask(self, call: Callable[[Any], R], *, missing: bool = False) -> R | None:
        s3 = self._s3
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError
        from botocore.exceptions import PartialCredentialsError as Partial

        try:
            return call(s3)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            if status == 412:
                raise Changed from None
            if status == 404 and code != "NoSuchBucket" and missing:
                return None
            if status in REFUSED_STATUS and code not in SKEWED:
                self.__dict__.pop("_s3", None)
            raise self._meaning(code, status, s3.meta.endpoint_url) from None
        except (NoCredentialsError, Partial):
            self.__dict__.pop("_s3", None)
            raise StoreRefused(
                f"bucket {self.bucket}: no keys were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                f"name a file in AWS_SHARED_CREDENTIALS_FILE, or give the machine a role"
            ) from None
        except (BotoCoreError, OSError) as error:
            self._check_fetched(error)
            # Only the kind: the client's own text may contain secrets.
            raise StoreAway(
                f"bucket {self.bucket}: the server at {s3.meta.endpoint_url} did not answer "
                f"({type(error).__name__})"
            ) from None

    def _check_fetched(self, error: Exception) -> None:
        kind = type(error).__name__
        if kind in UNFETCHED:
            raise StoreRefused(
                f"bucket {self.bucket}: its keys could not be fetched ({kind}); check the role, the web "
                f"identity or the command that they come from"
            ) from None

    def _meaning(self, code: str, status: int, server: str) -> Exception:
        where = f"bucket {self.bucket} at {server}"
        if code == "NoSuchBucket":
            return StoreRefused(f"{where} does not exist; create it, or name another")
        if code in SKEWED:
            return StoreRefused(
                f"{where}: this machine's clock differs too much from the server's ({code}); correct it, "
                f"for example by NTP"
            )
        if "Expired" in code:
            return StoreRefused(f"{where}: the keys have expired ({code}); renew them")
        if status in AWAY_STATUS:
            return StoreAway(f"{where} cannot be used now ({status} {code})")
        if status in REFUSED_STATUS:
            return StoreRefused(
                f"{where} rejects these keys ({status} {code}); they must be valid, and allowed to list, "
                f"read, write and delete there"
            )
        return SettingError(f"{where} answered {status} {code}")
