"""All readers of external data, with valid inputs and meaningful words."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import orjson
import pyarrow
from fastavro import schemaless_writer
from google.protobuf import api_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from forebay.apps.summaries.state import KeyState, Pane, Work
from forebay.apps.summaries.values import Item, ItemChunk, Node, Source, Statement
from forebay.apps.trends.stages import TickCounter
from forebay.codec import decode, encode, pack_state
from forebay.connectors.event_time import EventTime
from forebay.connectors.feeds.feed import Mark
from forebay.connectors.feeds.jetstream import ReplayWindow, _time_us
from forebay.connectors.feeds.sse import SseDecoder
from forebay.connectors.files.lines import LinePart
from forebay.connectors.files.reader import LineReader, header_of, parts_of
from forebay.connectors.files.source import records_of
from forebay.connectors.formats import Format, dead_letter_json
from forebay.connectors.kafka.protobuf import ProtobufSchema, message_indexes
from forebay.connectors.kafka.registry import SchemaRegistry
from forebay.connectors.kafka.registry_values import RegistryValues
from forebay.engine.answer import AnswerCheck
from forebay.engine.failures import Redactor, error_from_status, read_retry_after_s
from forebay.engine.journal import _decode
from forebay.engine.load import parse_cache_tokens, parse_load_header, parse_metrics
from forebay.engine.prompt.template import FieldTemplate, PromptTemplate
from forebay.engine.protocol import DONE, AnswerReader, SseParser
from forebay.fleet.autoscale.meter import TopicBacklog, decode_backlog, encode_backlog
from forebay.fleet.cache_events import read_message
from forebay.fleet.discovery import read_replicas
from forebay.gateway.asked import read_asked
from forebay.gateway.spec import load_gateway
from forebay.gateway.wire import missing_in
from forebay.pipeline.load import load_spec
from forebay.pipeline.state_store import FILE, read_state
from forebay.planning.simulate.calibrate import read_run
from forebay.planning.simulate.traces import read_trace
from forebay.records import DeadLetter, Event, KeyedEvent, Request, Result, Usage
from forebay.stateful.machine import _unpack
from forebay.stateful.stream_time import StreamTime, Tolerance
from forebay.stateful.turns import (
    KeyMemory,
    SetTimer,
    Turn,
    pack_memory,
    pack_turn,
    unpack_memory,
    unpack_turn,
)

Read = Callable[[bytes], object]

POST = (
    b'{"id": 7, "text": "the harbour is dark", "when": "2026-03-01T12:00:00.5Z", "of": {"a": [1, 2.5, null]}}'
)
"""A record of most streams below."""


@dataclass(frozen=True)
class Reader:
    """`make` returns the reading function; it gets its own folder, and the URL of a registry with
    `SCHEMAS`."""

    name: str
    make: Callable[[Path, str], Read]
    seeds: tuple[bytes, ...]
    words: tuple[bytes, ...] = ()

    def __repr__(self) -> str:
        return self.name


def _read_form(raw: bytes) -> object:
    path, kind = "/v1/audio/transcriptions", b"multipart/form-data; boundary=b"
    return read_asked(path, raw, max_depth=64, content_type=kind)


def pure(read: Read) -> Callable[[Path, str], Read]:
    """For readers that need no file."""
    return lambda folder, registry: read


def from_file(read: Callable[[Path], object], name: str) -> Callable[[Path, str], Read]:
    """For readers of a file with this name."""

    def make(folder: Path, registry: str) -> Read:
        def written(raw: bytes) -> object:
            (folder / name).write_bytes(raw)
            return read(folder / name)

        return written

    return make


# Records


def record_read(form: Format) -> Read:
    """Encode and decode a record as for a checkpoint; other records become dead letters."""

    def read(raw: bytes) -> object:
        record = form.read(raw, "in@1")
        again = decode(encode(record))
        assert isinstance(again, Event | DeadLetter)
        assert again.raw == raw
        return dead_letter_json(again) if isinstance(again, DeadLetter) else None

    return read


def lines_read(
    form: Format, *, header: bool = False, letters: bool = False, encoding: str = "utf-8"
) -> Callable[[Path, str], Read]:
    def read(path: Path) -> object:
        reader = LineReader(form, header=header, letters=letters, encoding=encoding)
        return list(records_of(parts_of(path, reader), reader))

    return from_file(read, "in")


def packed_read(path: Path) -> object:
    reader = LineReader(Format("text"))
    return list(records_of(parts_of(path, reader), reader))


def zstd(content: bytes) -> bytes:
    packed: bytes = pyarrow.Codec("zstd").compress(content).to_pybytes()
    return packed


def zipped(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("in", content)
    return out.getvalue()


def letter() -> bytes:
    return dead_letter_json(DeadLetter(POST, "bad_request", "no", 2, "id", "key", 1, "in@1")).encode()


SCHEMAS: dict[int, Any] = {
    1: {
        "type": "record",
        "name": "Node",
        "fields": [
            {"name": "text", "type": "string"},
            {"name": "n", "type": ["null", "long", "double", "boolean"]},
            {"name": "cost", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "since", "type": {"type": "int", "logicalType": "time-millis"}},
            {"name": "who", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "float"}}},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["a", "b"]}},
            {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 3}},
            {"name": "next", "type": ["null", "Node"]},
        ],
    },
    2: "string",
    3: {"type": "array", "items": "null"},
}
NODE = {
    **{"text": "dark", "n": 3, "cost": b"\1\2", "day": 20_000, "at": 1_700_000_000_000, "since": 7},
    **{"who": "12345678-1234-5678-1234-567812345678", "tags": {"a": [1.0, 2.0]}, "kind": "a"},
    **{"mark": b"abc", "next": None},
}


def avro(*values: dict[str, Any]) -> tuple[bytes, ...]:
    made = []
    plain = orjson.loads(orjson.dumps(SCHEMAS[1]).replace(b"logicalType", b"was"))
    for value in values:
        out = io.BytesIO()
        schemaless_writer(out, plain, value)
        made.append(b"\0\0\0\0\1" + out.getvalue())
    return (*made, b"\0\0\0\0\2\x08text", b"\0\0\0\0\3\x02\0")


def avro_read(folder: Path, registry: str) -> Read:
    values = RegistryValues(SchemaRegistry(registry))
    form = Format(time=EventTime("at"))
    return lambda raw: encode(form.read(raw, "t/0@1", lambda data: values.fields(data, {})))


PROTOBUF = ProtobufSchema(FileDescriptorProto.FromString(api_pb2.DESCRIPTOR.serialized_pb), {})
METHOD = {"name": "m", "options": [{"name": "o", "value": {"value": b"x"}}], "syntax": 1}
API = api_pb2.Api(name="é", methods=[METHOD, METHOD], source_context={"file_name": "f"}).SerializeToString()


def protobuf_read(raw: bytes) -> object:
    indexes, at = message_indexes(raw, 0)
    return PROTOBUF.read(indexes, raw[at:])


# Feeds


def in_two(feed: Callable[[bytes], Iterable[object]], raw: bytes) -> list[object]:
    return [*feed(raw[: len(raw) // 2]), *feed(raw[len(raw) // 2 :])]


def sse_read(raw: bytes) -> object:
    return [event.data for event in in_two(SseDecoder(max_bytes=1000).feed, raw)]  # type: ignore[attr-defined]


def replica_read(*, chat: bool) -> Read:
    request = Request("id", "m", prompt=None if chat else "x")

    def read(raw: bytes) -> object:
        parser = SseParser(replica="http://r", quote=Redactor("key"))
        reader = AnswerReader(request, replica="http://r", quote=Redactor("key"))
        for data in in_two(parser.feed, raw):
            if data != DONE:
                reader.take_chunk(data)  # type: ignore[arg-type]
        parser.end()
        return reader.text

    return read


def refusal_read(raw: bytes) -> object:
    for status in (200, 302, 400, 404, 429, 500, 503, 999):
        error = error_from_status(status, raw, replica="http://r", model="m", quote=Redactor("key"))
        assert len(str(error)) < 1000
    text = raw.decode("latin-1")
    return read_retry_after_s(text, now_ms=0), parse_load_header(text, observed_s=0.0)


def metrics_read(raw: bytes) -> object:
    text = raw.decode("utf-8", "replace")
    return parse_metrics(text, observed_s=0.0), parse_cache_tokens(text)


METRICS = (
    b"# HELP vllm:num_requests_running x\n"
    b'vllm:num_requests_running{engine="0",model_name="m \\" }"} 3.0\nvllm:num_requests_waiting 1e0\n'
    b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100",x="y"} 1.0\n'
    b'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:prompt_tokens_total 7\n'
)


# Settings


PIPELINE = b"""name: p
source: {type: jsonl, path: in.jsonl, time: when, limit: 10}
prompt: |
  Which topic? {{ text | truncate(100) }} {% for x in of.a %}{{ x }}{% endfor %}
output: {schema: {type: object, properties: {topic: {enum: [a, b]}}, required: [topic]}}
engine: {url: "http://127.0.0.1:1", api_key: {env: NAME}}
sampling: {max_tokens: 32, temperature: 0.5, stop: ["\\n"]}
retry: {max_attempts: 3, base_s: 0.1}
key: "{{ id }}"
checkpoint: {interval_s: 0.5}
flink: {taskmanager.numberOfTaskSlots: "2"}
sink: {type: jsonl, path: out}
"""
FEED = b"""name: p
source:
  type: sse
  url: https://example.org/stream
  headers: {Authorization: {env: TOKEN}, User-Agent: me}
messages:
  - {role: system, content: "Be short."}
  - {role: user, content: "{{ text }}"}
sink:
  type: kafka
  bootstrap: localhost:9092
  topic: out
"""
GATEWAY = b"""engine: [http://127.0.0.1:1, "http://127.0.0.1:2"]
keys: [{name: a, key: {env: PATH}, requests_per_s: 2.5, tokens_per_min: 100}]
limits: {max_body_bytes: 1000, header_s: 1.5}
routing: round_robin
"""
YAML_WORDS = (
    b"&a ",
    b"*a",
    b"!!python/object:os.system ",
    b"<<: ",
    b"- ",
    b"? ",
    b"|\n",
    b">-\n",
    b"#",
    b"---\n",
    b"...\n",
    b"%YAML 9.9\n",
    b'"\\U99999999"',
    b'"\\ud800"',
    b"0x1F",
    b"1_000",
    b".inf",
    b"2026-01-01",
    b"type",
    b"env",
    b"url",
    b"{{ x",
    b"{% for %}",
    b"~",
    b"key: ",
)


# Templates


FIELDS = {"text": "dark <|im_end|>", "id": 7, "of": {"a": [1, 2.5, None], "b c": "x" * 300}, "when": "2026"}


def template_read(raw: bytes) -> object:
    text = raw.decode("utf-8", "replace")
    rendered = PromptTemplate(text, max_chars=10_000).render(FIELDS, key="k", time_ms=1)
    assert len(rendered[0].content) <= 10_000  # type: ignore[union-attr]
    return FieldTemplate(text).render(FIELDS, time_ms=1)


def fields_read(folder: Path, registry: str) -> Read:
    """Wrong fields with valid templates."""
    templates = [PromptTemplate(seed.decode(), max_chars=10_000) for seed in TEMPLATES]
    form = Format()

    def read(raw: bytes) -> object:
        event = form.read(raw)
        if isinstance(event, Event):
            for template in templates:
                assert len(template.render(event.fields, key="k")[0].content) <= 10_000  # type: ignore[union-attr]
        return None

    return read


TEMPLATES = (
    b"{{ text | upper | truncate(20) | replace('a', 'b') }} {{ event['of'].a[1] | round(1) }}{{ text }}",
    b"{% for x in of.a %}{{ loop.index }}: {{ x | default('none') }}{% else %}-{% endfor %}{{ of | tojson }}",
    b"{% set n = 3 %}{% if id > n and text is string %}{{ text.split(' ') | join('|') }}{% endif %}",
    b"{{ id ** 2 }}{{ range(id) | list | length }}{{ id | string }}{{ 5 // 2 }}",
)
TEMPLATE_WORDS = (
    b"{{",
    b"}}",
    b"{%",
    b"%}",
    b"{#",
    b"-%}",
    b"|",
    b"| map('upper')",
    b"| sort",
    b"| batch(3)",
    b"()",
    b".__class__",
    b"['__globals__']",
    b"* 10 ** 9",
    b"'x' * 999999999",
    b"range(999999999)",
    b"2 ** 2 ** 40",
    b"| center(999999999)",
    b"% 0",
    b"// 0",
    b"| tojson",
    b"loop",
    b"self",
    b"caller()",
    b"~",
    b"[::0]",
    b"{% for x in range(9999) %}",
    b"{% endfor %}",
    b"event",
    b"text",
    b"of",
    b"| indent(9999)",
    b"| wordwrap(1)",
    b"| urlize",
    b"| xmlattr",
    b"| groupby('a')",
    b"'%999999999d' | format(id)",
)


# State


def run_json() -> bytes:
    return (
        b'{"format":4,"finished":false,"traits":{"source":{"type":"jsonl"}},"job":"'
        + b"0" * 32
        + b'","restored":null,"completed":{"number":3,"triggered_ms":5},"parallelism":2,'
        b'"jvm":[12,3.5],"cluster":null,"ends":[["t",0,7]],"kafka":"k"}'
    )


WAITS = encode_backlog(TopicBacklog(10, 300, 40, 0.5))
RESULT = Result("id", "k", {"a": 1}, {"b": [None]}, Usage(1, 2, 3), 1, 5, 0.5, 0.25, 7, "in@1", "stop")
EVENT = Event(POST, {"text": "x", "n": [1.5]}, 5, "in@1", b"key", {"h": b"v"})
RECORDS = tuple(map(encode, (EVENT, RESULT, KeyedEvent("id", "k", EVENT, 5), DeadLetter(POST, "c", "d"))))
MEMORY = pack_memory(KeyMemory(1, {"turns": [1, "x"]}, {"t": SetTimer("wall", 5, b"abc")}, {"wall": [5]}, 9))
TURN = pack_turn(Turn(1, "k", 5, RECORDS[2]))


def summary_state() -> bytes:
    item = Item("i", 5, "said", 3, 1, False)
    node = Node(1, 0, (Statement("so", (Source("i", 5, "said"),), 0),), 2)
    pane = Pane(0, 0, 10, [item], [ItemChunk(2, (item,))], [node])
    return KeyState([pane], [10], Work("chunk", 0, (2,), 10), 3, 4, 1).to_bytes()


def ticks_state() -> bytes:
    counter = TickCounter(samples=4)
    for number in range(3):
        counter.add(["a", "b"], 1000 + number, "a and b")
    return counter.to_bytes()


def clock_state() -> bytes:
    clock = StreamTime(Tolerance())
    assert list(clock.see(1000, b"x", "p/0")) is not None
    return next(data for _, data in clock.changes() if data is not None)


MSGPACK_WORDS = (
    b"\xc0",
    b"\xc1",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\x81\xc0\xc0",
    b"\xd6\xff\0\0\0\0",
    b"\xc7\x0c\xff" + b"\xff" * 12,
    b"\xcb\x7f\xf8" + b"\0" * 6,
    b"\xcf" + b"\xff" * 8,
    b"\x91" * 600,
    b"\x81\x90\xc0",
    b"\xa1\xff",
)
JSON_WORDS = (
    b'"text"',
    b'"input"',
    b'"input_base64"',
    b'"id"',
    b'"cause"',
    b'"time_ms"',
    b"2026-02-30T25:61:61Z",
)
"""Words that JSON readers here look for."""
TIMES = (
    b'"0001-01-01T00:00:00+23:59"',
    b'"9999-12-31T23:59:59-23:59"',
    b"1e300",
    b'"NaN"',
    b'"' + b"9" * 5000 + b'"',
)

CHAT = (
    b'{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"max_tokens":5,"n":2}'
)
PROMPT = b'{"model":"m","prompt":["a","b"],"max_tokens":"9","best_of":2.0,"stream":true,"user":"u"}'
FORM = (
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b\r\n'
    b'Content-Disposition: form-data; name="file"; filename="x"\r\n\r\nRIFF\r\n--b--\r\n'
)
NO_MODEL = b'{"error":{"message":"The model `m` does not exist.","type":"NotFoundError","param":"model"}}'
CHUNK = (
    b'data: {"id":"1","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}],"usage":null}\n\n'
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,'
    b'"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}\r\n\r\n: ping\ndata: [DONE]\n\n'
)
KV = msgpack.packb(
    [
        1.5,
        [
            {"type": "BlockStored", "block_hashes": [b"\1" * 8, -5], "medium": "GPU", "group_idx": 0},
            ["BlockRemoved", [1, 2], "GPU", 0],
            {"type": "AllBlocksCleared"},
        ],
    ]
)
ANSWERS = AnswerCheck(
    {"type": "object", "properties": {"a": {"pattern": "^(x+)+$"}, "b": {"type": "array", "maxItems": 3}}}
)
PRE = msgpack.packb(("said", "stop", 1, 2, 3))

READERS = (
    Reader("JSON", pure(record_read(Format())), (POST,), JSON_WORDS),
    Reader("JSON with a time", pure(record_read(Format(time=EventTime("when")))), (POST,), TIMES),
    Reader(
        "JSON with a number as time",
        pure(record_read(Format(time=EventTime("id", "unix_us")))),
        (POST,),
        TIMES,
    ),
    Reader(
        "JSON with a time by pattern",
        pure(record_read(Format(time=EventTime("when", "%Y-%m-%dT%H:%M:%S.%fZ")))),
        (POST,),
        TIMES,
    ),
    Reader(
        "JSON with a time in a named zone",
        pure(record_read(Format(time=EventTime("when", "%a %b %d %H:%M:%S %Z %Y", "America/New_York")))),
        (POST, b'{"when": "Sat Jan 31 12:00:00 EST 2026"}'),
        TIMES,
    ),
    Reader(
        "a record in an envelope",
        pure(record_read(Format(payload="after.data"))),
        (b'{"after": {"data": %s, "op": "c"}, "x": 1e400}' % POST, b'{"after": {"data": "{\\"a\\": 1}"}}'),
        JSON_WORDS,
    ),
    Reader("text", pure(record_read(Format("text", max_record_bytes=5000))), (POST, b"some words")),
    Reader(
        "a CSV row",
        pure(record_read(Format("csv", columns=("a", "b")))),
        (b'1,"x, ""y"""', b"1,2"),
        (b'""', b'"'),
    ),
    Reader("lines of JSON", lines_read(Format()), (POST + b"\n" + POST + b"\r\n\n" + POST,), JSON_WORDS),
    Reader(
        "lines of CSV",
        lines_read(Format("csv", columns=("a", "b")), header=True),
        (b'a,b\n1,"x\ny"\n3,4\n',),
        (b'"', b'\n"'),
    ),
    Reader(
        "a header of CSV",
        from_file(lambda path: header_of(LinePart(str(path), "in"), LineReader(Format("csv"), True)), "in"),
        (b'a,"b",c\n1,2,3\n',),
    ),
    Reader(
        "dead letters",
        lines_read(Format(), letters=True),
        (letter(), letter() + b"\n" + letter()),
        JSON_WORDS,
    ),
    Reader("gzip", from_file(packed_read, "in.gz"), (gzip.compress(POST + b"\n", mtime=0),)),
    Reader("zstd", from_file(packed_read, "in.zst"), (zstd(POST + b"\n"),)),
    Reader("zip", from_file(packed_read, "in.zip"), (zipped(POST + b"\n"),)),
    Reader("bzip2", from_file(packed_read, "in.bz2"), (bz2.compress(POST + b"\n"),)),
    Reader(
        "lines of CSV in UTF-16",
        lines_read(Format("csv"), header=True, encoding="utf-16"),
        ('a,b\n1,"x\r\ny"\n3,4\n'.encode("utf-16"),),
        (b'"\0', b"\n\0", b"\n", b"\0\xd8"),
    ),
    Reader("xz", from_file(packed_read, "in.xz"), (lzma.compress(POST + b"\n"),)),
    Reader(
        "Avro",
        avro_read,
        avro(NODE, {**NODE, "next": {**NODE, "n": None}}),
        (b"\1", b"\2", b"\xff" * 9 + b"\1", b"\x80" * 9 + b"\1", b"\x02" * 600),
    ),
    Reader(
        "Protobuf",
        pure(protobuf_read),
        (b"\0" + API, b"\2\2" + api_pb2.Method(**METHOD).SerializeToString()),
        (b"\x12\2\x0a\0", b"\xff" * 9 + b"\1", b"\x1a\0" * 300, b"\2\2"),
    ),
    Reader(
        "an SSE feed",
        pure(sse_read),
        (b'id: [{"o":5}]\nevent: m\nretry: 50\ndata: {"a":1}\ndata: 2\r\n\r\n:x\n\n',),
        (b"data:", b"id:", b"retry: 9999999", b"\r"),
    ),
    Reader(
        "a message of Jetstream", pure(_time_us), (b'{"did":"x","time_us":1700000000000000,"kind":"commit"}',)
    ),
    Reader(
        "a feed's place",
        pure(lambda raw: Mark.of(raw.decode("latin-1"))),
        (str(Mark("5", ("a", "b"))).encode(),),
    ),
    Reader(
        "a place in a feed with times",
        pure(lambda raw: ReplayWindow.of(raw.decode("latin-1")).cursor_us()),
        (b'[1700000000000000,null,-1,[[1700000000000000,"0123456789abcdef"]]]',),
        (b"-1", b"[", b"99999999999999999999", b"null"),
    ),
    Reader(
        "a replica's stream",
        pure(replica_read(chat=True)),
        (CHUNK,),
        (b'"error":{"code":500},', b"data: {}\n\n"),
    ),
    Reader(
        "a replica's stream of text",
        pure(replica_read(chat=False)),
        (CHUNK.replace(b'"delta":{"content":"hi"}', b'"text":"hi"'),),
    ),
    Reader(
        "a replica's refusal",
        pure(refusal_read),
        (
            b'{"error":{"message":"context_length_exceeded","code":400}}',
            b"TEXT num_requests_running=3, x=1",
            b"Wed, 21 Oct 2015 07:28:00 GMT",
            b"120",
        ),
        (b'"code":"429"', b"Feb 30"),
    ),
    Reader("a replica's metrics", pure(metrics_read), (METRICS,), (b'"', b"{", b"vllm:", b'\\"', b'="')),
    Reader(
        "an answer by a schema",
        pure(lambda raw: ANSWERS(raw.decode("utf-8", "replace"))),
        (b'{"a": "xxxx", "b": [1]}',),
        (b"x" * 40 + b"!",),
    ),
    Reader("KV-cache events", pure(lambda raw: read_message([b"kv", b"\0" * 8, raw])), (KV,), MSGPACK_WORDS),
    Reader("what waits in topics", pure(decode_backlog), (WAITS,), JSON_WORDS),
    Reader("a pipeline", from_file(load_spec, "p.yaml"), (PIPELINE, FEED), YAML_WORDS),
    Reader("a gateway", from_file(load_gateway, "g.yaml"), (GATEWAY,), YAML_WORDS),
    Reader(
        "a list of replicas",
        from_file(read_replicas, "replicas"),
        (b"http://127.0.0.1:1\n- 'https://x.y:5/v1'  # b\n", b'["http://[::1]:8", "http://a:1"]'),
        (b"http://", b"[", b"@", b"http://[", b":99999", b"%zz", b"http://\xc3\xbc:1"),
    ),
    Reader("a template", pure(template_read), TEMPLATES, TEMPLATE_WORDS),
    Reader("fields of a template", fields_read, (POST,), JSON_WORDS),
    Reader(
        "a trace of Mooncake",
        from_file(read_trace, "t"),
        (b'{"timestamp": 5, "input_length": 600, "output_length": 9, "hash_ids": [1, 2]}\n' * 2,),
        (b"1e999",),
    ),
    Reader(
        "a trace of Azure",
        from_file(read_trace, "t"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + b"2023-11-16 18:15:46.6805900,374,44\n" * 2,),
        (b",", b"2023-02-30"),
    ),
    Reader(
        "a measured run",
        from_file(read_run, "r"),
        (
            b'{"arrival_time":1,"queued_ts":2,"first_token_ts":4,"last_token_ts":5,'
            b'"input_toks":6,"output_toks":7}\n' * 2,
        ),
    ),
    Reader(
        "a client's chat", pure(lambda raw: read_asked("/v1/chat/completions", raw, max_depth=64)), (CHAT,)
    ),
    Reader(
        "a client's prompt", pure(lambda raw: read_asked("/v1/completions", raw, max_depth=64)), (PROMPT,)
    ),
    Reader("a client's response", pure(lambda raw: read_asked("/v1/responses", raw, max_depth=64)), (CHAT,)),
    Reader("a client's message", pure(lambda raw: read_asked("/v1/messages", raw, max_depth=64)), (CHAT,)),
    Reader("a client's form", pure(_read_form), (FORM,)),
    Reader("an engine's 404", pure(missing_in), (NO_MODEL,)),
    Reader("run.json", from_file(lambda path: read_state(path.parent), FILE), (run_json(),)),
    Reader("a request in a checkpoint", pure(_unpack), (pack_state(7, "id", RECORDS[2]),), MSGPACK_WORDS),
    Reader("a record in a checkpoint", pure(decode), RECORDS, MSGPACK_WORDS),
    Reader("a key's memory", pure(unpack_memory), (MEMORY,), MSGPACK_WORDS),
    Reader("a turn", pure(lambda raw: unpack_turn(raw).item), (TURN,), MSGPACK_WORDS),
    Reader("a key's summaries", pure(KeyState.from_bytes), (summary_state(),), MSGPACK_WORDS),
    Reader("ticks", pure(TickCounter.from_bytes), (ticks_state(),), MSGPACK_WORDS),
    Reader(
        "the stream's time",
        pure(lambda raw: StreamTime(Tolerance()).restore({"a": raw})),
        (clock_state(),),
        MSGPACK_WORDS,
    ),
    Reader("an answer in the journal", pure(_decode), (PRE,), MSGPACK_WORDS),
)
