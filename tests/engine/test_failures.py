import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay import errors
from forebay.engine.failures import (
    MAX_QUOTE_CHARS,
    Redactor,
    error_from_object,
    error_from_status,
    read_retry_after_s,
)

NOW_MS = 1_700_000_000_000  # Tue, 14 Nov 2023 22:13:20 GMT


def from_status(status: int, body: bytes = b"", **kwargs: object) -> errors.EngineError:
    return error_from_status(status, body, replica="http://r", model="m", quote=Redactor("sk-key"), **kwargs)  # type: ignore[arg-type]


def from_object(error: object) -> errors.EngineError:
    return error_from_object(error, replica="http://r", model="m", quote=Redactor("sk-key"))


@pytest.mark.parametrize(
    ("status", "cls"),
    [
        (307, errors.ProtocolViolation),
        (204, errors.ProtocolViolation),
        (400, errors.BadRequest),
        (401, errors.Unauthorized),
        (403, errors.Unauthorized),
        (404, errors.ModelNotFound),
        (501, errors.ModelNotFound),
        (408, errors.AttemptTimeout),
        (413, errors.BadRequest),
        (422, errors.BadRequest),
        (429, errors.RateLimited),
        (500, errors.ServerFault),
        (502, errors.Overloaded),
        (503, errors.Overloaded),
        (504, errors.Overloaded),
        (599, errors.ServerFault),
    ],
)
def test_each_status_has_one_class(status: int, cls: type[errors.EngineError]) -> None:
    error = from_status(status, b'{"error": {"message": "because"}}')
    assert type(error) is cls
    assert str(status) in str(error)


@pytest.mark.parametrize(("model", "serves"), [("m", "the model 'm'"), ("", "a model")])
def test_missing_thing_is_named_if_it_has_a_name(model: str, serves: str) -> None:
    error = error_from_status(404, b"", replica="http://r", model=model, quote=Redactor())
    assert str(error) == f"http://r answered 404; check the URL and that it serves {serves}"


@pytest.mark.parametrize("status", [404, 405, 501])
def test_web_page_is_not_quoted(status: int) -> None:
    page = b"<!DOCTYPE HTML>\n<html><head>\n<title>Error sk-key</title></head><body>long</body></html>"
    error = from_status(status, page)
    assert type(error) is errors.ModelNotFound
    assert str(error) == (
        f"no engine answers at http://r: another server answered {status} with a web page, "
        "'Error [API key]'; check the URL"
    )
    assert "a web page; check" in str(from_status(status, b" <html>" + b"<p>" * 5000))


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        (
            200,
            "no engine answers at http://r: another server answered 200 with a web page, 'Soon'; check the"
            " URL",
        ),
        (502, "http://r answered 502: a web page, 'Soon'"),
        (401, "http://r answered 401: a web page, 'Soon'; check the API key"),
    ],
)
def test_web_page_is_named_by_its_title(status: int, shown: str) -> None:
    assert str(from_status(status, b"<html><head><title>Soon</title></head><p>long</html>")) == shown


@pytest.mark.parametrize(
    ("location", "words"),
    [
        (
            "https://user:secret@other:8443/llm/v1/chat/completions?token=secret#secret",
            "a redirect to https://other:8443/llm/v1/chat/completions, which is not followed; set the"
            " engine's URL to https://other:8443/llm",
        ),
        (
            "//other/v1/completions/",
            "to http://other/v1/completions/, which is not followed; set the engine's",
        ),
        ("/login?next=/secret", "to http://r/login, which is not followed; check the engine's URL"),
        (
            "/v1/chat/completions/",
            "to http://r/v1/chat/completions/, which is not followed; check the engine's",
        ),
        ("https://other/" + "x" * 10_000, "which is not followed; check the engine's URL"),
        ("http://[", "a redirect without a valid target; check the engine's URL"),
        (None, "a redirect without a valid target; check the engine's URL"),
    ],
)
def test_target_of_a_redirect_is_named_without_secrets(location: str | None, words: str) -> None:
    error = from_status(307, location=location)
    assert str(error).startswith("http://r answered 307, a redirect ")
    assert words in str(error)
    assert "secret" not in str(error)
    assert len(str(error)) < 2 * MAX_QUOTE_CHARS


@pytest.mark.parametrize(
    "message",
    [
        # vLLM, from its oldest wording to today's, then SGLang, llama.cpp, OpenAI by its code.
        "This model's maximum context length is 2048 tokens. However, you requested 2112 tokens",
        "The decoder prompt (length 5036) is longer than the maximum model length of 4096.",
        "You passed 2049 input tokens. However, the model's context length is only 2048 tokens",
        "The input (9 tokens) is longer than the model's context length (8 tokens).",
        "the request exceeds the available context size. try increasing the context size",
    ],
)
def test_messages_of_a_prompt_beyond_the_context(message: str) -> None:
    assert type(from_status(400, f'{{"message": "{message}", "code": 400}}'.encode())) is errors.PromptTooLong
    assert type(from_object({"message": message, "code": 400})) is errors.PromptTooLong


def test_code_of_a_prompt_beyond_the_context() -> None:
    body = b'{"error": {"message": "no", "type": "invalid_request_error", "code": "context_length_exceeded"}}'
    assert type(from_status(400, body)) is errors.PromptTooLong
    assert type(from_object({"message": "no", "code": "context_length_exceeded"})) is errors.PromptTooLong


def test_overload_that_mentions_context_is_not_a_long_prompt() -> None:
    assert type(from_status(503, b"maximum context length")) is errors.Overloaded


@pytest.mark.parametrize(
    ("error", "cls"),
    [
        ({"message": "x", "code": 400}, errors.BadRequest),
        ({"message": "x", "code": "503"}, errors.Overloaded),
        ({"message": "x", "type": "BadRequestError", "code": None}, errors.BadRequest),
        ({"message": "x", "code": "rate_limit_exceeded"}, errors.RateLimited),
        ({"message": "x"}, errors.ServerFault),
        ({"message": "x", "code": True}, errors.ServerFault),
        ({"message": "x", "code": 200}, errors.ServerFault),
        ("just words", errors.ServerFault),
        ([1], errors.ServerFault),
        (None, errors.ServerFault),
    ],
)
def test_error_object_is_classified_by_its_code(error: object, cls: type[errors.EngineError]) -> None:
    assert type(from_object(error)) is cls


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("3", 3.0),
        (" 1.5 ", 1.5),
        ("-1", None),
        ("nan", None),
        ("1e9", None),
        ("99999999", 3600.0),
        ("Tue, 14 Nov 2023 22:13:30 GMT", 10.0),
        ("Tue, 14 Nov 2023 22:00:00 GMT", 0.0),
        ("Tue, 14 Nov 2093 22:00:00 GMT", 3600.0),
        ("soon", None),
    ],
)
def test_retry_after_as_seconds_or_date(value: str | None, seconds: float | None) -> None:
    assert read_retry_after_s(value, now_ms=NOW_MS) == seconds


@given(st.text())
def test_any_retry_after_is_bounded(value: str) -> None:
    seconds = read_retry_after_s(value, now_ms=NOW_MS)
    assert seconds is None or 0 <= seconds <= 3600


@given(
    st.integers(100, 599),
    st.one_of(st.binary(), st.text().map(lambda t: f'{{"error":{{"message":"{t}"}}}}'.encode())),
)
def test_any_body_gives_a_short_one_line_message(status: int, body: bytes) -> None:
    text = str(from_status(status, body))
    assert len(text) < MAX_QUOTE_CHARS + 200
    assert text.isprintable()


@given(st.text(), st.text(), st.integers(0, 400))
def test_key_is_never_quoted(before: str, after: str, pad: int) -> None:
    message = before + "sk-key" + "." * pad + "sk-key" + after
    for text in (str(from_status(400, message.encode("utf-8", "replace"))), str(from_object(message))):
        assert "sk-key" not in text


def test_redactor_does_not_show_its_secret() -> None:
    assert "sk-key" not in repr(Redactor("sk-key"))


@pytest.mark.parametrize("key", ["error", "message", "detail"])
@pytest.mark.parametrize("nested", ["[" * 600 + "]" * 600, '{"a":' * 600 + "1" + "}" * 600])
def test_deeply_nested_error_has_its_class(key: str, nested: str) -> None:
    body = f'{{"{key}": {nested}}}' if key == "error" else f'{{"error": {{"{key}": {nested}}}}}'
    error = from_status(500, body.encode())
    assert type(error) is errors.ServerFault
    assert "nested too deeply" in str(error)
