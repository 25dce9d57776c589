"""The agent of `flink_agents_job.py`, in its own file: Flink Agents imports it by name."""

from __future__ import annotations

import json

from flink_agents.api.agents.agent import Agent
from flink_agents.api.chat_message import ChatMessage, MessageRole
from flink_agents.api.decorators import action
from flink_agents.api.events.chat_event import ChatRequestEvent, ChatResponseEvent
from flink_agents.api.events.event import InputEvent, OutputEvent
from flink_agents.api.runner_context import RunnerContext


class Ask(Agent):
    @action(InputEvent)
    @staticmethod
    def ask(event: InputEvent, ctx: RunnerContext) -> None:
        ctx.short_term_memory.set("id", event.input["event_id"])
        messages = [
            ChatMessage(role=MessageRole.SYSTEM, content=event.input["system"]),
            ChatMessage(role=MessageRole.USER, content=event.input["prompt"]),
        ]
        ctx.send_event(ChatRequestEvent(model="model", messages=messages))

    @action(ChatResponseEvent)
    @staticmethod
    def answer(event: ChatResponseEvent, ctx: RunnerContext) -> None:
        result = {"event_id": ctx.short_term_memory.get("id"), "answer": event.response.content}
        ctx.send_event(OutputEvent(output=json.dumps(result)))
