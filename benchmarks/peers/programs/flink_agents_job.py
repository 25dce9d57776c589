"""Flink Agents with its chat model for servers that speak OpenAI's protocol, after the quickstart
https://nightlies.apache.org/flink/flink-agents-docs-release-0.2/docs/get-started/quickstart/workflow_agent/
and its example `flink_agents/examples/quickstart/workflow_single_agent_example.py`."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

# The interpreter in the JVM uses it to find packages, as in the installation guide, and the agent by name.
os.environ["PYTHONPATH"] = os.pathsep.join((sysconfig.get_paths()["purelib"], str(Path(__file__).parent)))

from flink_agents.api.core_options import AgentExecutionOptions, ErrorHandlingStrategy
from flink_agents.api.execution_environment import AgentsExecutionEnvironment
from flink_agents.api.resource import ResourceDescriptor, ResourceName, ResourceType
from flink_agents_ask import Ask
from flink_job import environment, read_events, write_results
from pyflink.common import Types


def main() -> None:
    order: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    env = environment(
        order,
        {
            "python.fn-execution.bundle.time": str(order["options"]["bundle_ms"]),
            "python.execution-mode": order["options"]["mode"],
        },
    )
    agents = AgentsExecutionEnvironment.get_execution_environment(env)
    options = agents.get_config()
    options.set(AgentExecutionOptions.NUM_ASYNC_THREADS, order["capacity"])
    options.set(AgentExecutionOptions.ERROR_HANDLING_STRATEGY, ErrorHandlingStrategy.RETRY)
    options.set(AgentExecutionOptions.MAX_RETRIES, order["options"]["max_retries"])
    agents.add_resource(
        "engine",
        ResourceType.CHAT_MODEL_CONNECTION,
        ResourceDescriptor(
            clazz=ResourceName.ChatModel.OPENAI_CONNECTION,
            api_key="none",
            api_base_url=f"{order['engine']}/v1",
            timeout=300.0,
        ),
    )
    agents.add_resource(
        "model",
        ResourceType.CHAT_MODEL,
        ResourceDescriptor(
            clazz=ResourceName.ChatModel.OPENAI_SETUP,
            connection="engine",
            model=order["model"],
            max_tokens=order["max_tokens"],
            temperature=0.0,
        ),
    )
    # An agent accepts only values from a Python function, not a Java string.
    events = read_events(env, order).map(lambda text: {**json.loads(text), "system": order["system"]})
    answered = (
        agents.from_datastream(events, key_selector=lambda event: event["event_id"])
        .apply(Ask())
        .to_datastream(Types.STRING())
    )
    write_results(answered, order)
    agents.execute()


if __name__ == "__main__":
    main()
