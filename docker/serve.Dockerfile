# A server of scorers without TensorFlow: docs/serving.md.
#   docker build -f docker/serve.Dockerfile -t twml-ops-serve .
#   docker run -p 8500:8500 -p 8501:8501 -p 8502:8502 -v "$PWD/served:/models/ranking:ro" twml-ops-serve /models/ranking
FROM python:3.11-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml setup.py native_build.py README.md LICENSE NOTICE THIRD_PARTY_LICENSES ./
COPY bazel/targets.bzl bazel/targets.bzl
COPY cc cc
COPY python python
COPY twml_ops twml_ops
# Without TensorFlow the wheel has the scorer, and no op library.
RUN rm -f twml_ops/*.so && pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
COPY requirements /requirements
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir -r /requirements/serve.txt \
    && pip install --no-cache-dir --no-deps /wheels/*.whl \
    && rm -r /wheels /requirements \
    && useradd --no-create-home serve
USER serve
ENV PYTHONUNBUFFERED=1
EXPOSE 8500 8501 8502
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8502/readyz')"]
ENTRYPOINT ["twml-ops", "serve", "--host", "0.0.0.0", "--health-port", "8502"]
CMD ["/models/model"]
