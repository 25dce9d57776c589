"""Flink SQL's ML_PREDICT with the provider `openai`, after
https://nightlies.apache.org/flink/flink-docs-stable/docs/connectors/models/openai/ and
https://nightlies.apache.org/flink/flink-docs-stable/docs/sql/reference/queries/model-inference/.
The provider's HTTP client has at most five requests in flight per host, and no option changes
that."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from flink_tables import create_topics, table_environment


def main() -> None:
    order = json.loads(Path(sys.argv[1]).read_text())
    tables = table_environment(order, {})
    create_topics(tables, order)
    models = order["options"]["models"]
    queries = []
    for number in range(models):
        tables.execute_sql(
            f"CREATE MODEL model_{number} INPUT (prompt STRING) OUTPUT (answer STRING) WITH ("
            f"'provider' = 'openai', 'endpoint' = '{order['engine']}/v1/chat/completions', "
            f"'api-key' = 'key-{number}', 'model' = '{order['model']}', "
            f"'system-prompt' = '{order['system']}', "
            f"'max-tokens' = '{order['max_tokens']}', 'temperature' = '0')"
        )
        share = f"(SELECT * FROM events WHERE MOD(ABS(HASH_CODE(event_id)), {models}) = {number})"
        tables.create_temporary_view(f"events_{number}", tables.sql_query(share))
        queries.append(
            f"SELECT event_id, answer FROM ML_PREDICT(TABLE events_{number}, MODEL model_{number}, "
            f"DESCRIPTOR(prompt), MAP['async', 'true', 'max-concurrent-operations', "
            f"'{order['capacity']}', 'timeout', '300s', 'output-mode', 'ALLOW_UNORDERED'])"
        )
    tables.execute_sql("INSERT INTO results " + " UNION ALL ".join(queries)).wait()


if __name__ == "__main__":
    main()
