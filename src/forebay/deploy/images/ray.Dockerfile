# Engines on Ray: vLLM with Ray Serve and Forebay. Build it in a folder that holds forebay-*.whl (make dist):
#   docker build -f ray.Dockerfile -t REGISTRY/forebay-ray:1 .
FROM vllm/vllm-openai:v0.32.0

COPY forebay-*.whl /tmp/
# What runs on the cluster needs nothing of what Forebay needs elsewhere.
RUN python3 -m pip install --no-cache-dir 'ray[serve]==2.60.*' \
 && python3 -m pip install --no-cache-dir --no-deps /tmp/forebay-*.whl \
 && rm /tmp/forebay-*.whl

ENTRYPOINT []
USER 9999:9999
