# The operator.
# The base is a tag, so that a rebuild takes its security fixes; to pin it, pass BASE=NAME@sha256:DIGEST. It needs python3 (3.12 to 3.14) with venv.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
WORKDIR /src
COPY requirements/build.lock requirements/operator.lock requirements/
# The two secrets are optional: where packages come from, and whom to trust for them. Neither stays in the image.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/secrets/ca.pem \
    if [ -s /run/secrets/ca.pem ]; then export PIP_CERT=/run/secrets/ca.pem; fi; export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1; \
    python3 -m venv /build && python3 -m venv --without-pip /opt/tidemill && \
    /build/bin/pip install --quiet --only-binary :all: --require-hashes -r requirements/build.lock && \
    /build/bin/pip --python /opt/tidemill/bin/python install --quiet --only-binary :all: --require-hashes -r requirements/operator.lock
COPY . .
# The command line goes again: its report and its simulator want packages that the operator does without.
RUN /build/bin/python -m hatchling build -t wheel -d /wheel && /build/bin/pip --python /opt/tidemill/bin/python install --quiet --no-deps --no-index /wheel/*.whl && \
    rm /opt/tidemill/bin/tidemill

FROM ${BASE}
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="tidemill-operator" \
      org.opencontainers.image.description="Creates and moves the pods of Tidemill's reinforcement-learning jobs." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/tidemill /opt/tidemill
ENV PATH=/opt/tidemill/bin:/usr/local/bin:/usr/bin:/bin HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
CMD ["python", "-m", "tidemill_operator", "--config", "/etc/tidemill/operator.yaml"]
