# A cell: agent, engine and trainer. VARIANT=cpu for cells without GPUs, cuda for NVIDIA's.
# Installed packages take about 4 GB (cpu) and 9 GB (cuda); the image is that and the base.
# The base is a tag, so that a rebuild takes its security fixes; to pin it, pass BASE=NAME@sha256:DIGEST. It needs apt and python3 (3.12 to 3.14) with
# venv; CUDA's libraries come as packages, the driver from the node.
ARG BASE=python:3.12-slim

FROM ${BASE} AS build
ARG VARIANT=cpu
WORKDIR /src
COPY requirements/build.lock requirements/cell-${VARIANT}.lock requirements/
# The two secrets are optional: where packages come from, and whom to trust for them. Neither stays in the image.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf --mount=type=secret,id=ca,target=/run/secrets/ca.pem \
    if [ -s /run/secrets/ca.pem ]; then export PIP_CERT=/run/secrets/ca.pem; fi; export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1; \
    python3 -m venv /build && python3 -m venv --without-pip /opt/tidemill && \
    /build/bin/pip install --quiet --only-binary :all: --require-hashes -r requirements/build.lock && \
    /build/bin/pip --python /opt/tidemill/bin/python install --quiet --no-deps --require-hashes -r requirements/cell-${VARIANT}.lock
COPY . .
RUN /build/bin/python -m hatchling build -t wheel -d /wheel && /build/bin/pip --python /opt/tidemill/bin/python install --quiet --no-deps --no-index /wheel/*.whl

FROM ${BASE}
ARG VARIANT=cpu
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="tidemill-cell" \
      org.opencontainers.image.description="GPU cell of a Tidemill job: engine and trainer, one at a time (${VARIANT})." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# tini reaps what engine and trainer leave behind; vLLM's CPU build wants libnuma, its CUDA build a compiler for kernels that are made at start.
RUN apt-get -qq update && apt-get -qq install -y --no-install-recommends tini libnuma1 $([ "${VARIANT}" = cuda ] && echo gcc g++ libc6-dev) && \
    rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/tidemill /opt/tidemill
ENV PATH=/opt/tidemill/bin:/usr/local/bin:/usr/bin:/bin HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
ENTRYPOINT ["tini", "-g", "--"]
CMD ["python", "-m", "tidemill_cell", "--help"]
