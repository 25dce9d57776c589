# The gateway. Build it in a folder that holds forebay-*.whl (make dist):
#   docker build -f gateway.Dockerfile -t REGISTRY/forebay-gateway:1 .
FROM python:3.12-slim

COPY forebay-*.whl /tmp/
RUN python -m venv /opt/forebay \
 # The wheel has the locks of what was tested; each file is checked by its hash.
 && /opt/forebay/bin/python -m zipfile -e /tmp/forebay-*.whl /tmp/wheel \
 && locked='/opt/forebay/bin/pip install --no-cache-dir --no-deps --require-hashes' \
 && $locked -r /tmp/wheel/forebay/deploy/images/build.txt \
 && $locked --no-build-isolation -r /tmp/wheel/forebay/deploy/images/requirements.txt \
 && /opt/forebay/bin/pip install --no-cache-dir --no-deps /tmp/forebay-*.whl \
 && rm -r /tmp/forebay-*.whl /tmp/wheel \
 # A gateway runs no Flink: 329 MB less.
 && rm -rf /opt/forebay/lib/python3.12/site-packages/pyflink/lib \
           /opt/forebay/lib/python3.12/site-packages/pyflink/opt

ENV PYTHONUNBUFFERED=1
USER 9999:9999
ENTRYPOINT ["/opt/forebay/bin/forebay"]
CMD ["gateway", "--host", "0.0.0.0"]
