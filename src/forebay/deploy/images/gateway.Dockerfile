# The gateway. Build it in a folder that holds forebay-*.whl (make dist):
#   docker build -f gateway.Dockerfile -t REGISTRY/forebay-gateway:1 .
FROM python:3.12-slim

COPY forebay-*.whl /tmp/
RUN python -m venv /opt/forebay \
 && wheel=$(ls /tmp/forebay-*.whl) \
 && /opt/forebay/bin/pip install --no-cache-dir "$wheel[gateway,kubernetes,otel]" \
 && rm /tmp/forebay-*.whl \
 # A gateway runs no Flink: 329 MB less.
 && rm -rf /opt/forebay/lib/python3.12/site-packages/pyflink/lib \
           /opt/forebay/lib/python3.12/site-packages/pyflink/opt

ENV PYTHONUNBUFFERED=1
USER 9999:9999
ENTRYPOINT ["/opt/forebay/bin/forebay"]
CMD ["gateway", "--host", "0.0.0.0"]
