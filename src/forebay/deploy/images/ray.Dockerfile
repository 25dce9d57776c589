# Engines on Ray: vLLM with Ray Serve and Forebay. Build it in a folder that holds forebay-*.whl (make dist):
#   docker build -f ray.Dockerfile -t REGISTRY/forebay-ray:1 .
FROM vllm/vllm-openai:v0.32.0

COPY forebay-*.whl /tmp/
# Ray has an environment of its own, so engines keep the packages of their image. What runs on the cluster
# needs only Ray and, for the router, numpy.
RUN python3 -m venv /opt/ray \
 && /opt/ray/bin/python -m zipfile -e /tmp/forebay-*.whl /tmp/wheel \
 && locked='/opt/ray/bin/pip install --no-cache-dir --no-deps --require-hashes' \
 && $locked -r /tmp/wheel/forebay/deploy/images/ray.txt \
 && /opt/ray/bin/pip install --no-cache-dir --no-deps /tmp/forebay-*.whl \
 && rm -r /tmp/forebay-*.whl /tmp/wheel

ENV PATH=/opt/ray/bin:$PATH
ENTRYPOINT []
USER 9999:9999
