"""The first records of a source, held against what the pipeline wants of them before it starts."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from forebay.config.spec import PipelineSpec
from forebay.connectors.files.look import likely_instead
from forebay.connectors.files.settings import CsvSource, FileSource
from forebay.engine.prompt import names_of
from forebay.errors import SettingError, TemplateFailed
from forebay.records import JSON, DeadLetter, Event

MOST_RECORDS = 100
MOST_CHARS = 300


def doubt(spec: PipelineSpec) -> str | None:
    """Why the first records of `spec` would all become dead letters, in words; None where one of them would
    not, or where they are not known.

    Looks at a hundred records at most, and only of files that are not followed; blocks on the file system.
    Raises `SettingError` where the source cannot be read, and where a template or an application names a
    column that a CSV file does not have.
    """
    spec.source.check("source")
    why_not = _Templates(spec)
    whys: list[str] = []
    letters: list[DeadLetter] = []
    for record in islice(spec.source.first_records(), MOST_RECORDS):
        why = why_not(record)
        if why is None:
            return None
        whys.append(why)
        if isinstance(record, DeadLetter):
            letters.append(record)
    if not whys:
        return None
    first = whys[0][:MOST_CHARS]
    if isinstance(spec.source, CsvSource) and not letters and spec.source.has_one_header():
        raise SettingError(f"{first}; it is so in every row of {spec.source.path}")
    instead = likely_instead([letter.raw for letter in letters]) if len(letters) == len(whys) else ""
    which = f"none of the first {len(whys)} records" if len(whys) > 1 else "not even the first record"
    return f"source: {which} can be used: {first}{'; ' if instead else ''}{instead}"


def reads_nothing(spec: PipelineSpec) -> bool:
    """Whether the source is files, read to their end, without a record; blocks on the file system."""
    source = spec.source
    return (
        isinstance(source, FileSource) and not source.follow and not any(True for _ in source.first_records())
    )


class _Templates:
    """What a pipeline takes of each record before anybody is asked. Without its class of service a record
    would be answered, but where no record has one, the template is wrong."""

    def __init__(self, spec: PipelineSpec) -> None:
        fields = (
            spec.key_template(),
            spec.id_template(),
            spec.priority_template(),
            spec.answer_tokens_template(),
            spec.class_template(),
        )
        self._fields = [template for template in fields if template is not None]
        self._prompt = spec.prompt_template()
        self._text = None if spec.application is None else spec.application.text_field

    def __call__(self, record: Event | DeadLetter) -> str | None:
        """Why a record would become a dead letter; None where it would not for its fields."""
        if isinstance(record, DeadLetter):
            return record.detail
        try:
            for template in self._fields:
                template.render(record.fields, time_ms=record.time_ms)
            if self._prompt is not None:
                self._prompt.render(record.fields, key="", time_ms=record.time_ms)
        except TemplateFailed as error:
            return str(error)
        if self._text is not None and not _has(record.fields, self._text):
            return (
                f"application.text: field {self._text!r} is missing; the event has {names_of(record.fields)}"
            )
        return None


def _has(value: JSON, path: str) -> bool:
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    return True
