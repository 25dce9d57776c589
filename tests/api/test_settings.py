from __future__ import annotations

import pytest
from pydantic import BaseModel

from forebay.api import apps
from forebay.apps.sessions import SessionsSpec
from forebay.apps.summaries.settings import SummarySpec
from forebay.apps.topics.settings import TopicsSpec
from forebay.apps.trends.settings import TrendsSpec


@pytest.mark.parametrize(
    ("settings", "spec"),
    [
        (apps.TrendsSettings, TrendsSpec),
        (apps.TopicsSettings, TopicsSpec),
        (apps.SummariesSettings, SummarySpec),
        (apps.SessionsSettings, SessionsSpec),
    ],
)
def test_option_names_equal_those_of_a_pipeline_file(settings: type, spec: type[BaseModel]) -> None:
    assert set(settings.__annotations__) == set(spec.model_fields) - {"type"}
