# Conductor and gateway, one image: neither needs torch or an engine.
# The base is a tag, so that a rebuild takes its security fixes; to pin it, pass BASE=NAME@sha256:DIGEST. It needs python3 (3.12 to 3.14) with venv.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
WORKDIR /src
COPY requirements/build.lock requirements/conductor.lock requirements/
# The two secrets are optional: where packages come from, and whom to trust for them. Neither stays in the image.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/secrets/ca.pem \
    if [ -s /run/secrets/ca.pem ]; then export PIP_CERT=/run/secrets/ca.pem; fi; export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1; \
    python3 -m venv /build && python3 -m venv --without-pip /opt/tidemill && \
    /build/bin/pip install --quiet --only-binary :all: --require-hashes -r requirements/build.lock && \
    /build/bin/pip --python /opt/tidemill/bin/python install --quiet --only-binary :all: --require-hashes -r requirements/conductor.lock
COPY . .
RUN /build/bin/python -m hatchling build -t wheel -d /wheel && /build/bin/pip --python /opt/tidemill/bin/python install --quiet --no-deps --no-index /wheel/*.whl

FROM ${BASE}
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="tidemill-conductor" \
      org.opencontainers.image.description="Conductor and gateway of a Tidemill job." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/tidemill /opt/tidemill
# The tasks of the first job, so that it needs no volume.
COPY examples/quickstart/tasks /opt/tidemill/examples/quickstart/tasks
COPY examples/quickstart/heldout /opt/tidemill/examples/quickstart/heldout
ENV PATH=/opt/tidemill/bin:/usr/local/bin:/usr/bin:/bin HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
CMD ["python", "-m", "tidemill_rollout.conductor", "--help"]
