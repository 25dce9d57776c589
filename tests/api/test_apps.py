from __future__ import annotations

import pytest

import forebay as fb
from forebay.testing import ScriptedEngineFactory

pytestmark = pytest.mark.flink


@pytest.mark.usefixtures("flink_logs")
def test_topics_assign_each_text_to_a_topic() -> None:
    from pyflink.common import Types

    texts = [f"storm {number} over Lisbon" for number in range(4)]
    stream = fb.environment().from_collection(texts, Types.STRING())
    ask = fb.Inference(ScriptedEngineFactory(), model="m")
    found = fb.topics(stream, ask, id="{{ text }}", embeddings="words", labels=False)
    assert isinstance(found, fb.TopicOutputs)
    with found.assignments.execute_and_collect() as results:
        answers = {result.id: result.answer for result in results}
    assert sorted(answers) == texts
    assert all({"topic", "confidence"} <= set(answer) for answer in answers.values())
