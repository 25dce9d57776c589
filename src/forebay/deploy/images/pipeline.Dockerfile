# The pipeline: Flink with Python and Forebay. Build it in a folder that holds forebay-*.whl (make dist):
#   docker build -f pipeline.Dockerfile -t REGISTRY/forebay-pipeline:1 .
FROM flink:2.3.0-java21

USER root
RUN apt-get update \
 && apt-get install --yes --no-install-recommends python3 python3-venv libpython3-dev \
 && rm -rf /var/lib/apt/lists/*

COPY forebay-*.whl /tmp/
RUN python3 -m venv /opt/forebay \
 # The wheel has the locks of what was tested; each file is checked by its hash.
 && /opt/forebay/bin/python -m zipfile -e /tmp/forebay-*.whl /tmp/wheel \
 && locked='/opt/forebay/bin/pip install --no-cache-dir --no-deps --require-hashes' \
 && $locked -r /tmp/wheel/forebay/deploy/images/build.txt \
 && $locked --no-build-isolation -r /tmp/wheel/forebay/deploy/images/requirements.txt \
 && /opt/forebay/bin/pip install --no-cache-dir --no-deps /tmp/forebay-*.whl \
 && rm -r /tmp/forebay-*.whl /tmp/wheel \
 # Flink itself is in this image already. What runs Python inside it belongs into lib/, once: brought along by
 # the job, it could be loaded only once in the life of a task manager.
 && site=$(/opt/forebay/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
 && ln -s "$site" /opt/forebay/site-packages \
 && cp "$site"/pyflink/opt/flink-python-*.jar "$FLINK_HOME"/lib/ \
 # Checkpoints and results on S3. The file system of the Hadoop client, not `native`, whose file sink loses rows.
 && mkdir -p "$FLINK_HOME"/plugins/s3-fs-hadoop \
 && cp "$FLINK_HOME"/opt/flink-s3-fs-hadoop-*.jar "$FLINK_HOME"/plugins/s3-fs-hadoop/ \
 && chown -R flink:flink "$FLINK_HOME"

# Flink's connector for Kafka: `forebay connectors install kafka` fetches it; copy it next to the wheel.
# COPY flink-sql-connector-kafka-*.jar /opt/flink/lib/

# Python inside Flink's JVM looks here for modules.
ENV PYTHONPATH=/opt/forebay/site-packages
USER flink
