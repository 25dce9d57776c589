"""Jars from a repository over HTTP, a mirror, a folder; and wrong answers of servers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from tests.harness.http_server import QuietHandler, serving

from forebay.connectors.jars import KAFKA, Jar, install_jar, installed_jar
from forebay.errors import LaunchError, SettingError

BYTES = b"PK" + bytes(range(256)) * 3000
JAR = Jar("kafka", "org/example/thing/1.0/thing-1.0.jar", len(BYTES), hashlib.sha256(BYTES).hexdigest())


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Serves with a handler until the test ends; returns the URL."""
    with ExitStack() as stack:
        yield lambda handler: stack.enter_context(serving(handler))


class Quiet(QuietHandler, SimpleHTTPRequestHandler): ...


def repository(folder: Path, content: bytes = BYTES) -> Path:
    place = folder / JAR.path
    place.parent.mkdir(parents=True)
    place.write_bytes(content)
    return folder


def sending(content: bytes, *, length: int | None = None) -> type[BaseHTTPRequestHandler]:
    class Sends(QuietHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            if length is not None:
                self.send_header("Content-Length", str(length))
            self.end_headers()
            with suppress(ConnectionError):
                self.wfile.write(content)

    return Sends


def nothing_in(folder: Path) -> bool:
    return not folder.exists() or list(folder.iterdir()) == []


@pytest.mark.heavy
def test_jar_is_downloaded_and_kept(tmp_path: Path, serve: Callable[..., str]) -> None:
    url = serve(partial(Quiet, directory=str(repository(tmp_path / "maven"))))
    seen: list[tuple[int, int]] = []
    place = install_jar(JAR, tmp_path / "kept", url + "/", lambda come, whole: seen.append((come, whole)))
    assert place == tmp_path / "kept" / "thing-1.0.jar"
    assert place.read_bytes() == BYTES
    assert seen[-1] == (len(BYTES), len(BYTES))
    assert installed_jar(JAR, tmp_path / "kept") == place
    assert [file.name for file in place.parent.iterdir()] == [place.name]
    # The second time nothing is requested.
    assert install_jar(JAR, tmp_path / "kept", "http://127.0.0.1:9") == place


@pytest.mark.parametrize("by_itself", [True, False])
def test_jar_is_copied_from_a_folder(tmp_path: Path, by_itself: bool) -> None:
    if by_itself:
        folder = tmp_path / "downloads"
        folder.mkdir()
        (folder / JAR.name).write_bytes(BYTES)
    else:
        folder = repository(tmp_path / "maven")
    assert install_jar(JAR, tmp_path / "kept", str(folder)).read_bytes() == BYTES


def test_a_damaged_jar_is_fetched_again(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    place = install_jar(JAR, kept, str(repository(tmp_path / "maven")))
    place.write_bytes(BYTES[:-1] + b"x")
    assert install_jar(JAR, kept, str(tmp_path / "maven")).read_bytes() == BYTES


def test_a_missing_jar_is_one_sentence_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"run: forebay connectors install kafka$"):
        installed_jar(KAFKA, tmp_path)
    (tmp_path / JAR.name).write_bytes(BYTES[:-1])
    with pytest.raises(SettingError, match="not installed"):
        installed_jar(JAR, tmp_path)


@pytest.mark.parametrize("around", [False, True])
def test_jar_that_others_may_have_planted_is_not_used(tmp_path: Path, around: bool) -> None:
    folder = tmp_path / "home" / "connectors"
    folder.mkdir(parents=True)
    (folder / JAR.name).write_bytes(BYTES)
    assert installed_jar(JAR, folder)
    (folder.parent if around else folder).chmod(0o777)
    with pytest.raises(SettingError, match=r"others may write to .*chmod go-w"):
        installed_jar(JAR, folder)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("content", "length", "error"),
    [
        (BYTES[:-1] + b"x", len(BYTES), SettingError("is not the expected jar")),
        (BYTES + b"more", len(BYTES) + 4, SettingError("is not the expected jar")),
        (BYTES * 3, None, SettingError("is not the expected jar")),
        (BYTES[:1000], 1000, LaunchError("ended after 1000 of")),
        (BYTES[:1000], len(BYTES), LaunchError("try again")),
        (b"", 0, LaunchError("ended after 0 of")),
    ],
)
def test_jar_with_a_wrong_checksum_is_never_installed(
    tmp_path: Path, serve: Callable[..., str], content: bytes, length: int | None, error: Exception
) -> None:
    with pytest.raises(type(error), match=str(error)):
        install_jar(JAR, tmp_path / "kept", serve(sending(content, length=length)))
    assert nothing_in(tmp_path / "kept")


@pytest.mark.heavy
def test_missing_jar_or_repository_is_reported_with_the_fix(
    tmp_path: Path, serve: Callable[..., str]
) -> None:
    empty = serve(partial(Quiet, directory=str(tmp_path)))
    with pytest.raises(SettingError, match=r"answered 404; .*--from"):
        install_jar(JAR, tmp_path / "kept", empty)
    with pytest.raises(LaunchError, match=r"cannot be reached.*--from"):
        install_jar(JAR, tmp_path / "kept", "http://127.0.0.1:9")
    with pytest.raises(LaunchError) as raised:
        install_jar(JAR, tmp_path / "kept", "http://ann:secret@127.0.0.1:9")
    assert "secret" not in str(raised.value)
    with pytest.raises(SettingError, match=r"holds no thing-1\.0\.jar"):
        install_jar(JAR, tmp_path / "kept", str(tmp_path))
    assert nothing_in(tmp_path / "kept")
