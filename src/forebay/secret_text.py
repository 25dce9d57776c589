"""Detects likely secrets: names of options and settings, keys, and URLs that contain one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from urllib.parse import parse_qsl, urlsplit

SECRET_OPTION = re.compile(
    r"^-(?:H$|-?[\w-]*(?:(?:api|private|access|secret)[-_]?key|secret|passw|auth|header|credential|bearer|token(?!s|iz)))",
    re.IGNORECASE,
)
SECRET_SETTING = re.compile(
    r"^(?=[\w.-]*(?:(?:account|api|private|access|secret)[-_.]?key|secret|passw|auth(?!or(?!i))"
    r"|credential|token(?!s|iz)))[\w.-]*[=:]",
    re.IGNORECASE,
)
"""`NAME=VALUE` whose value is hidden. Uses a lookahead, which takes linear time."""
SECRET_TEXT = re.compile(
    r"\b(?:sk-|hf_|nvapi-|gh[pousr]_|xox[abp]-|AKIA)[\w-]{8,}|\bBearer\s+\S+", re.IGNORECASE
)
URL = re.compile(r"[a-zA-Z][\w+.-]{0,40}://\S+")
"""Schemes are short; without a limit, a long word would take quadratic time."""

MAX_DEEP = 100
SURE_TEXT = re.compile(
    r"\b(?:(?i:sk-|hf_|nvapi-|gh[pousr]_|xox[abp]-)|AKIA)[\w-]{8,}"
    r"|\b(?i:bearer)\s+[\w.~+/=-]{20,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
    r"|(?i:passw(?:or)?d)\s*=\s*[\"']?[^\s\"'{]"
)
"""A stricter `SECRET_TEXT`, for refusing files: must not match prose such as "the bearer of"."""
REFERENCE = re.compile(r"(?:Bearer )?\$\([A-Za-z_][A-Za-z0-9_]*\)")
"""What Kubernetes substitutes with an environment variable, in arguments and other variables."""
PLAIN = re.compile(r"|true|false|null|none|[0-9.]+", re.IGNORECASE)
QUERY_NAMES = frozenset(("key", "sig", "signature"))


def secrets_written_in(
    value: object, path: str = "", *, skipped: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Paths of values in a document that look like secrets, by name or content; never the values.

    Ignores booleans, numbers, `$(VARIABLE)`, and mappings under keys in `skipped`.
    """
    yield from _written(value, path, skipped, MAX_DEEP)


def _written(value: object, path: str, skipped: frozenset[str], depth: int) -> Iterator[str]:
    if depth == 0:
        return
    if isinstance(value, Mapping):
        for key, inner in value.items():
            name = str(key)
            if name in skipped:
                continue
            where = f"{path}.{name}" if path else name
            if isinstance(inner, str) and is_secret(f"{name}={inner}"):
                yield where
            else:
                yield from _written(inner, where, skipped, depth - 1)
    elif isinstance(value, list | tuple):
        hides_next = False
        for at, inner in enumerate(value):
            if isinstance(inner, str) and (
                is_secret(inner) or (hides_next and not inner.startswith("-") and not _plain(inner))
            ):
                yield f"{path}[{at}]"
            else:
                yield from _written(inner, f"{path}[{at}]", skipped, depth - 1)
            hides_next = isinstance(inner, str) and "=" not in inner and bool(SECRET_OPTION.match(inner))
    elif isinstance(value, str) and is_secret(value):
        yield path


def is_secret(text: str) -> bool:
    name, equals, value = text.partition("=")
    named = SECRET_SETTING.match(f"{name}=") if not name.startswith("-") else SECRET_OPTION.match(name)
    if equals and named and not _plain(value):
        return True
    return bool(SURE_TEXT.search(text)) or any(_carries(found[0]) for found in URL.finditer(text))


def _plain(value: str) -> bool:
    return bool(REFERENCE.fullmatch(value) or PLAIN.fullmatch(value))


def _carries(url: str) -> bool:
    try:
        parts = urlsplit(url)
        if parts.password or (parts.scheme in ("http", "https", "ws", "wss") and parts.username):
            return True
        pairs = parse_qsl(parts.query, max_num_fields=1000)
    except ValueError:
        return True
    return any(
        not _plain(value) and (name.lower() in QUERY_NAMES or SECRET_SETTING.match(f"{name}="))
        for name, value in pairs
    )
