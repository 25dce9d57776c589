"""How files of settings name a fleet: what a pipeline's and a gateway's have in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from forebay.documents.fields import HttpUrl, wrong
from forebay.errors import SettingError
from forebay.fleet.cache_events.endpoint import check_form
from forebay.fleet.policies import POLICIES
from forebay.fleet.replicas.base import MAX_REPLICAS


def _listed(value: Any) -> Any:
    return () if value is None else (value,) if isinstance(value, str) else value


def _by_url(value: Any) -> Any:
    return {"url": value} if isinstance(value, str | list) else value


def _policy(name: str) -> str:
    if name not in POLICIES:
        raise wrong(f"expected one of {', '.join(POLICIES)}; found {name[:80]!r}")
    return name


def _kv_events(form: str) -> str:
    try:
        return check_form(form)
    except SettingError as error:
        raise wrong(str(error).removeprefix("kv_events: ")) from None


Urls = Annotated[tuple[HttpUrl, ...], BeforeValidator(_listed), Field(max_length=MAX_REPLICAS)]
"""One address, or a list of them."""
ByUrl = BeforeValidator(_by_url)
"""A mapping with `url` may be written as that alone."""
Routing = Annotated[str, AfterValidator(_policy)]
"""A policy's name."""
KvEvents = Annotated[str, AfterValidator(_kv_events)]
"""Where replicas publish the events of their caches; see `forebay.fleet.cache_events.endpoint`."""
