"""Requests to an S3 server, and errors if it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pytest
from botocore.exceptions import ClientError, ResponseStreamingError
from botocore.loaders import JSONFileLoader
from botocore.response import StreamingBody

from forebay.clients.s3.client import Changed, S3Client, StoreAway, StoreRefused
from forebay.clients.s3.location import S3Path
from forebay.errors import SettingError
from forebay.settings import AWS_SECRETS

pytestmark = pytest.mark.xdist_group("object-store")


def client(store: S3Path, **options: Any) -> S3Client:
    return S3Client(store.bucket, **options)


def test_a_write_replaces_only_the_known_version(store: S3Path) -> None:
    s3, key = client(store), f"{store.key}/x"
    first = s3.put(key, b"1", replacing=None)
    with pytest.raises(Changed):
        s3.put(key, b"2", replacing=None)
    second = s3.put(key, b"2", replacing=first)
    with pytest.raises(Changed):
        s3.put(key, b"3", replacing=first)
    with pytest.raises(Changed):
        s3.put(f"{key}-gone", b"3", replacing=second)
    found = s3.get(key)
    assert found is not None
    assert (found.content, found.etag) == (b"2", second)


@pytest.mark.heavy
def test_objects_are_listed_read_and_deleted(store: S3Path) -> None:
    s3 = client(store)
    for name in ("a/one", "a/b/two", "ab", "a/"):
        s3.put(f"{store.key}/{name}", name.encode(), replacing=None)
    assert {entry.name: entry.size for entry in s3.entries(f"{store.key}/a")} == {"one": 5, "b/two": 7}
    assert s3.folders(store.key) == ["a"]
    assert s3.head(f"{store.key}/a/b/two", 3) == b"a/b"
    assert s3.head(f"{store.key}/none", 3) is None
    assert s3.get(f"{store.key}/none") is None
    with pytest.raises(SettingError, match="more than 3 bytes"):
        s3.get(f"{store.key}/a/one", 3)
    s3.put(f"{store.key}/lines", b"1\n2\n\n3", replacing=None)
    assert list(s3.lines(f"{store.key}/lines")) == [b"1", b"2", b"", b"3"]
    assert list(s3.lines(f"{store.key}/none")) == []
    assert s3.names(f"{store.key}/a") == ["", "b/two", "one"]
    s3.delete(f"{store.key}/a", keep=lambda entry: entry.name == "one")
    assert s3.names(f"{store.key}/a") == ["one"]
    s3.delete(f"{store.key}/a")
    s3.delete(f"{store.key}/a")
    assert [entry.name for entry in s3.entries(store.key)] == ["ab", "lines"]


def test_endless_listing_is_abandoned(store: S3Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless:
        def get_paginator(self, call: str) -> Endless:
            return self

        def paginate(self, **_: Any) -> Iterator[dict[str, Any]]:
            return repeat({})

    s3 = client(store)
    monkeypatch.setattr(s3, "_s3", Endless())
    for listing in (s3.names, s3.folders, s3.abort_uploads):
        with pytest.raises(StoreRefused, match="the listing did not end after 1000 pages"):
            listing("prefix")


def test_an_upload_that_was_aborted_cannot_be_completed(store: S3Path) -> None:
    s3, key = client(store), f"{store.key}/a/x"
    upload = s3._s3.create_multipart_upload(Bucket=store.bucket, Key=key)["UploadId"]
    part = s3._s3.upload_part(Bucket=store.bucket, Key=key, UploadId=upload, PartNumber=1, Body=b"1")
    assert s3.abort_uploads(f"{store.key}/a") == 1
    assert s3.abort_uploads(f"{store.key}/a") == 0
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    with pytest.raises(ClientError):
        s3._s3.complete_multipart_upload(Bucket=store.bucket, Key=key, UploadId=upload, MultipartUpload=parts)


def test_missing_bucket_is_named(store: S3Path) -> None:
    with pytest.raises(SettingError, match=r"bucket no-such-bucket at http://\S+ does not exist; create it"):
        S3Client("no-such-bucket").check("x")
    with pytest.raises(SettingError, match="no-such-bucket"):
        S3Client("no-such-bucket").get("x")


@pytest.mark.heavy
def test_a_busy_or_missing_server_is_reported(store: S3Path, store_server: Any) -> None:
    s3 = client(store, timeout_s=0.3, attempts=1)
    store_server.link.busy()
    with pytest.raises(StoreAway, match=r"cannot be used now \(503 SlowDown\)"):
        s3.check(store.key)
    store_server.link.restore()
    store_server.link.cut()
    with pytest.raises(StoreAway, match=r"http://127.0.0.1:\d+ did not answer"):
        s3.check(store.key)
    store_server.link.restore()
    s3.check(store.key)
    store_server.link.stall()
    with pytest.raises(StoreAway, match=r"did not answer \(ReadTimeoutError"):
        s3.check(store.key)


@pytest.mark.parametrize("error", [ResponseStreamingError(error="cut"), ConnectionResetError()])
def test_truncated_object_is_reported(
    store: S3Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(self: StreamingBody) -> Iterator[bytes]:
        yield b"1"
        raise error

    s3 = client(store)
    s3.put(f"{store.key}/lines", b"1\n2\n", replacing=None)
    monkeypatch.setattr(StreamingBody, "iter_lines", broken)
    lines = s3.lines(f"{store.key}/lines")
    assert next(lines) == b"1"
    with pytest.raises(StoreAway, match=type(error).__name__):
        next(lines)


def test_missing_keys_are_reported(store: S3Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in AWS_SECRETS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(SettingError, match="no keys were found; set AWS_ACCESS_KEY_ID"):
        client(store).check(store.key)


def test_keys_in_a_mounted_file_are_used(
    store: S3Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = AKIAFILE\naws_secret_access_key = of-the-file\n")
    for name in AWS_SECRETS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    client(store).check(store.key)


@pytest.mark.parametrize(
    "refusal",
    [
        ("InvalidAccessKeyId", 403, SettingError, "rejects these keys .403 InvalidAccessKeyId."),
        ("AccessDenied", 403, SettingError, "allowed to list"),
        ("ExpiredToken", 400, StoreRefused, "the keys have expired .ExpiredToken.; renew them"),
        ("NoSuchBucket", 404, StoreRefused, "does not exist; create it"),
        ("InternalError", 500, StoreAway, "cannot be used now"),
        ("Teapot", 418, SettingError, "answered 418 Teapot"),
    ],
)
def test_refusals_are_reported_without_the_servers_text(
    store: S3Path, monkeypatch: pytest.MonkeyPatch, refusal: tuple[str, int, type[Exception], str]
) -> None:
    code, status, kind, words = refusal
    s3 = client(store)

    def refuse(**arguments: object) -> None:
        error = {"Error": {"Code": code, "Message": "secret"}}
        raise ClientError({**error, "ResponseMetadata": {"HTTPStatusCode": status}}, "ListObjectsV2")

    monkeypatch.setattr(s3._s3, "list_objects_v2", refuse)
    with pytest.raises(kind, match=words) as caught:
        s3.check("x")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (400, "ExpiredToken", r"at http://\S+: the keys have expired \(ExpiredToken\); renew them"),
        (
            403,
            "RequestTimeTooSkewed",
            r"this machine's clock differs too much .*; correct it, for example by NTP",
        ),
        (403, "SignatureDoesNotMatch", r"rejects these keys \(403 SignatureDoesNotMatch\)"),
    ],
)
def test_refusal_differs_from_an_outage(
    store: S3Path, store_server: Any, status: int, code: str, words: str
) -> None:
    s3, key = client(store, attempts=1), f"{store.key}/x"
    etag = s3.put(key, b"1", replacing=None)
    store_server.link.refuse(status, code)
    with pytest.raises(StoreRefused, match=f"bucket {store.bucket} .*{words}"):
        s3.check(store.key)
    with pytest.raises(StoreRefused, match=words):
        s3.put(key, b"2", replacing=etag)
    store_server.link.restore()
    s3.put(key, b"2", replacing=etag)


def test_rejected_keys_are_read_again(
    store: S3Path, store_server: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    file = tmp_path / "credentials"

    def write(key: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = x\n")

    write("AKIAOLD")
    for name in AWS_SECRETS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    s3 = client(store)
    s3.check(store.key)
    write("AKIANEW")
    s3.check(store.key)
    assert s3._s3._get_credentials().access_key == "AKIAOLD"
    store_server.link.refuse(403, "ExpiredToken")
    with pytest.raises(StoreRefused):
        s3.check(store.key)
    store_server.link.restore()
    s3.check(store.key)
    assert s3._s3._get_credentials().access_key == "AKIANEW"


def test_second_client_reuses_botocores_data(store: S3Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client(store).check(store.key)
    monkeypatch.setattr(JSONFileLoader, "load_file", lambda *_: pytest.fail("read anew"))
    client(store).check(store.key)


def test_unfetchable_keys_are_not_an_outage(
    store: S3Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    config = tmp_path / "config"
    config.write_text("[default]\ncredential_process = /bin/false\n")
    for name in AWS_SECRETS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    with pytest.raises(StoreRefused, match=r"keys could not be fetched \(CredentialRetrievalError\); check"):
        client(store).check(store.key)


def test_flink_gets_the_address_but_no_key(store: S3Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = client(store).flink_options()
    assert options["s3.endpoint"].startswith("http://127.0.0.1:")
    assert options["s3.path.style.access"] == "true"
    assert not {"key", "secret"} & set(" ".join([*options, *options.values()]).lower().split("-"))
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    amazons = client(store).flink_options()
    assert "s3.endpoint" not in amazons
    assert amazons["s3.endpoint.region"] == "eu-central-1"


def test_an_endpoint_with_a_password_is_refused(store: S3Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:password@127.0.0.1:1")
    with pytest.raises(SettingError, match="without user and password") as caught:
        client(store).check("x")
    assert "me:" not in str(caught.value)
