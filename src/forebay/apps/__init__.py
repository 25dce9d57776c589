"""Applications by the names that pipeline files and `forebay run` use.

To add one, register its module or folder here. `graph` puts its program or stages into a Flink job.
May import `connectors` and below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.registry import Registry

if TYPE_CHECKING:
    from forebay.apps.base import ApplicationSettings


def _fits(value: object) -> bool:
    from forebay.apps.base import ApplicationSettings

    return isinstance(value, type) and issubclass(value, ApplicationSettings)


APPLICATIONS: Registry[type[ApplicationSettings]] = Registry(
    what="application",
    group="forebay.applications",
    own={
        "sessions": "forebay.apps.sessions:SessionsSpec",
        "summary": "forebay.apps.summaries.settings:SummarySpec",
        "topics": "forebay.apps.topics.settings:TopicsSpec",
        "trends": "forebay.apps.trends.settings:TrendsSpec",
    },
    expected="a subclass of forebay.extend.Application",
    fits=_fits,
)


def own_applications() -> dict[str, type[ApplicationSettings]]:
    return {name: APPLICATIONS.own_one(name) for name in APPLICATIONS.own}
