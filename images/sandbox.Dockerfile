# Where harnesses run whose task names no image of its own, and what prepares every sandbox: Python and three files, no packages.
# The base is a tag, so that a rebuild takes its security fixes; to pin it, pass BASE=NAME@sha256:DIGEST. It needs python3 and a shell.
ARG BASE=python:3.12-slim

FROM ${BASE}
ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="tidemill-sandbox" \
      org.opencontainers.image.description="Sandbox of Tidemill's agents: Python, a shell, and the program that brings tasks in and results out." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
RUN command -v python >/dev/null || ln -s "$(command -v python3)" /usr/local/bin/python
COPY rollout/tidemill_rollout/__init__.py /opt/tidemill/tidemill_rollout/
COPY rollout/tidemill_rollout/sandbox/__init__.py rollout/tidemill_rollout/sandbox/enter.py rollout/tidemill_rollout/sandbox/prepare.py \
     rollout/tidemill_rollout/sandbox/relay.py /opt/tidemill/tidemill_rollout/sandbox/
ENV PYTHONPATH=/opt/tidemill HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
CMD ["python", "-m", "tidemill_rollout.sandbox.prepare"]
