from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.secret_text import is_secret, secrets_written_in

KEYS = st.text("abkey_password", min_size=1)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    "text",
    [
        "s3.secret-key=x",
        "fs.azure.account.key.name=x",
        "-Djavax.net.ssl.keyStorePassword=x",
        "HF_TOKEN=x",
        "--api-key=x",
        "say AKIA0123456789AB",
        "Authorization=Bearer abc",
        "Bearer eyJhbGciOiJIUzI1NiIsInR5cCI6",
        "http://user:word@host/path",
        "https://host/path?sig=abc",
        "https://host/path?api_key=abc",
        'org.Login required username="u" password="p";',
        "-----BEGIN RSA PRIVATE KEY-----",
    ],
)
def test_secrets_are_detected(text: str) -> None:
    assert is_secret(text)


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=5",
        "--tokenizer=a",
        "use_auth=true",
        "author=text",
        "API_KEY=$(OTHER)",
        "the bearer of good news",
        "https://host/path?stream=recent",
        "s3a://bucket/path",
        "abfss://container@account.dfs.example/path",
        "task-0123456789",
    ],
)
def test_other_texts_are_accepted(text: str) -> None:
    assert not is_secret(text)


@given(DOCUMENTS)
def test_secret_is_found_anywhere(document: object) -> None:
    before = set(secrets_written_in(document))
    wrapped = {"outer": [document, {"password": "x"}]}
    assert {f"outer[0]{_joined(one)}" for one in before} | {"outer[1].password"} == set(
        secrets_written_in(wrapped)
    )


def _joined(path: str) -> str:
    return path if not path or path.startswith("[") else f".{path}"
