"""Types of values in a deployment file, with their bounds."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field, Strict

from forebay.fields import Model, wrong

MAX_REPLICAS = 1000


def _matches(pattern: str, expected: str, most: int = 253) -> AfterValidator:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value) or len(value) > most:
            raise wrong(f"expected {expected}, found {value[:80]!r}")
        return value

    return AfterValidator(check)


ObjectName = Annotated[
    str,
    _matches(
        r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
        "the name of an object (a-z, 0-9, '-' and '.')",
    ),
]
ResourceName = Annotated[
    str,
    _matches(
        r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?",
        "an extended resource such as nvidia.com/gpu",
    ),
]
Label = Annotated[
    str, _matches(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", "a DNS label (a-z, 0-9 and '-', at most 63)", 63)
]
PoolName = Annotated[
    str, _matches(r"[a-z]([-a-z0-9]*[a-z0-9])?", "at most 12 of a-z, 0-9 and '-', a letter first", 12)
]
Image = Annotated[
    str,
    _matches(
        r"[a-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?(@sha256:[0-9a-f]{64})?",
        "an image such as registry.example/team/name:tag",
        500,
    ),
]
Quantity = Annotated[
    str, _matches(r"[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?", "a quantity such as 500m, 4 or 16Gi", 30)
]
KeyName = Annotated[str, _matches(r"[A-Za-z0-9._-]+", "a key of a Secret (A-Z, a-z, 0-9, '.', '_', '-')")]
Variable = Annotated[str, _matches(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable", 200)]
Text = Annotated[str, Field(max_length=4096)]
MountPath = Annotated[
    str, _matches(r"/[A-Za-z0-9._/-]*[A-Za-z0-9._-]", "an absolute path in the container, such as /data", 500)
]
StoreUri = Annotated[
    str,
    _matches(
        r"(s3|s3a|gs|abfss?|wasbs?|oss|hdfs|file)://[^\s@?#]+",
        "the URI of a store that Flink supports, such as s3://bucket/prefix, without keys",
        1000,
    ),
]
Replicas = Annotated[int, Strict(), Field(ge=0, le=MAX_REPLICAS)]
Seconds = Annotated[int, Strict(), Field(gt=0, le=86_400)]
Count = Annotated[int, Strict(), Field(gt=0, le=10_000)]
Port = Annotated[int, Strict(), Field(ge=1, le=65_535)]


class SecretKey(Model):
    """One key of a Secret in the deployment's namespace. You create the Secret: Forebay writes none."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: KeyName = Field(description="Key in it.")
