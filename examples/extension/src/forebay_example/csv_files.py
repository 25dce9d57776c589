"""CSV files as a sink: a row for each result."""

import csv
import io
from pathlib import Path
from typing import Any

from pydantic import Field

import forebay as fb
from forebay import extend


class CsvFiles(extend.SinkConnector):
    """Rows of id, key, answer and the named columns, each exactly once: a file appears with the checkpoint
    that covers it."""

    path: extend.LocalPath = Field(description="Directory of the files.")
    columns: tuple[str, ...] = Field((), description="Fields of the event that make further columns.")

    def directory(self) -> str:
        return self.path

    def write(self, stream: Any) -> None:
        from pyflink.common import Encoder, Types
        from pyflink.datastream.connectors import file_system as flink

        files = (
            flink.FileSink.for_row_format(Path(self.path).as_uri(), Encoder.simple_string_encoder("UTF-8"))
            .with_bucket_assigner(flink.BucketAssigner.base_path_bucket_assigner())
            .with_rolling_policy(flink.RollingPolicy.on_checkpoint_rolling_policy())
            .with_output_file_config(flink.OutputFileConfig.builder().with_part_suffix(".csv").build())
            .build()
        )
        stream.map(self.row, Types.STRING()).sink_to(files).uid("csv files")

    def row(self, result: fb.Result) -> str:
        """A row without its end, which the encoder writes."""
        more = [result.fields.get(name) for name in self.columns]
        text = io.StringIO()
        csv.writer(text, lineterminator="").writerow([result.id, result.key, result.answer, *more])
        return text.getvalue()


CONNECTOR = extend.Connector(sink=CsvFiles)
