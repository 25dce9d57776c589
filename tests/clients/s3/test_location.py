"""Valid and invalid addresses in an object store."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.clients.s3.location import S3Path, below, location_of, s3_path, uri_of, within
from forebay.errors import SettingError

PART = st.text("abcXYZ019-_.", min_size=1, max_size=8).filter(lambda part: part not in {".", ".."})
KEYS = st.lists(PART, min_size=1, max_size=4).map("/".join)


@given(KEYS, PART)
def test_address_round_trip(key: str, name: str) -> None:
    path = S3Path("a-bucket", key)
    assert s3_path(str(path)) == s3_path(f"{path}/") == path
    assert (path / name).parent == path
    assert (path / name).name == name
    assert uri_of(path) == f"s3://a-bucket/{key}"


@given(KEYS, KEYS)
def test_paths_below_a_moved_folder_are_found(key: str, inner: str) -> None:
    old, new = S3Path("a-bucket", key), S3Path("another", "x")
    assert within(new, below(old, old / inner)) == new / inner
    assert within(old, below(old, new / inner)) == new / inner


def test_local_paths_are_unchanged(tmp_path: Path) -> None:
    assert location_of("out/state") == Path("out/state")
    assert uri_of(tmp_path) == f"file://{tmp_path}"
    assert below(tmp_path, tmp_path / "a" / "b") == "a/b"
    assert below(tmp_path / "x", tmp_path / "a") == str(tmp_path / "a")
    assert within(tmp_path, "a/b") == tmp_path / "a" / "b"
    assert within(tmp_path, "/a/b") == Path("/a/b")
    assert within(tmp_path, "s3://bucket/a") == S3Path("bucket", "a")


@pytest.mark.parametrize(
    "name", ["a b", "josé", "100%", "a%20b", "#1?", 'it\'s "{x}"', "a\nb", " a", "a:b;c"]
)
def test_flink_gets_a_path_as_it_is(name: str, tmp_path: Path) -> None:
    assert uri_of(tmp_path / name / "out") == f"file://{tmp_path}/{name}/out"


def test_flink_gets_a_path_without_dots_after_links(tmp_path: Path) -> None:
    (tmp_path / "deep" / "real").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "real")
    assert uri_of(tmp_path / "link" / ".." / "out") == f"file://{tmp_path.resolve()}/deep/out"


@pytest.mark.parametrize("name", ["a\\b", "a ", "a\n", "a\udcff"])
def test_a_path_that_flink_would_change_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="Flink cannot use the folder"):
        uri_of(tmp_path / name)


@pytest.mark.parametrize(
    "text",
    [
        "s3://",
        "s3://bucket",
        "s3://bucket/",
        "s3://Bucket/x",
        "s3://key:secret@bucket/x",
        "s3://bucket/a?versionId=1",
        "s3://bucket/a//b",
        "s3://bucket/../b",
        "s3://bucket/a b",
        "s3://bucket/" + "a" * 901,
        "s3a://bucket/x",
    ],
)
def test_invalid_address_is_rejected_without_being_shown(text: str) -> None:
    with pytest.raises(SettingError, match="expected") as caught:
        s3_path(text)
    assert "secret" not in str(caught.value)
