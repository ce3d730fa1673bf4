#!/usr/bin/env bash
# images/build.sh operator|conductor|cell-cpu|cell-cuda|sandbox [BASE]: builds one image, with buildah or docker, whichever is there.
# The result is PREFIX/NAME:TAG, where PREFIX is tidemill unless set and TAG the project's version (a cell's with -cpu or -cuda behind it).
#   BUILDER   buildah or docker
#   ARCHIVE   file to write the image to as well, as an OCI archive (buildah only)
#   PIP_CONF  pip.conf of a package mirror; PIP_CA: certificates to trust for it. Neither stays in the image.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
[ $# -ge 1 ] && [ $# -le 2 ] || usage

version="$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)"
arguments=(--build-arg "VERSION=$version" --build-arg "REVISION=$(git rev-parse HEAD 2>/dev/null || echo unknown)")
tag="${TAG:-$version}"
case "$1" in
    operator | conductor | sandbox) name="$1" ;;
    cell-cpu | cell-cuda) name=cell; arguments+=(--build-arg "VARIANT=${1#cell-}"); tag+="-${1#cell-}" ;;
    *) usage ;;
esac
[ $# -eq 1 ] || arguments+=(--build-arg "BASE=$2")
[ -z "${PIP_CONF:-}" ] || arguments+=(--secret "id=pip,src=$PIP_CONF")
[ -z "${PIP_CA:-}" ] || arguments+=(--secret "id=ca,src=$PIP_CA")
image="${PREFIX:-tidemill}/$name:$tag"

case "${BUILDER:-$(command -v buildah >/dev/null && echo buildah || echo docker)}" in
    docker) DOCKER_BUILDKIT=1 docker build --file "images/$name.Dockerfile" --tag "$image" "${arguments[@]}" . ;;
    buildah)
        storage=() isolation=()
        # Root without a container engine has neither overlay mounts nor a runtime to rely on.
        if [ "$(id -u)" = 0 ]; then storage=(--storage-driver "${STORAGE_DRIVER:-vfs}"); isolation=(--isolation chroot); fi
        [ -z "${STORAGE_ROOT:-}" ] || storage+=(--root "$STORAGE_ROOT" --runroot "$STORAGE_ROOT/run")
        buildah "${storage[@]}" build "${isolation[@]}" --format oci --file "images/$name.Dockerfile" --tag "$image" "${arguments[@]}" .
        if [ -n "${ARCHIVE:-}" ]; then rm -f "$ARCHIVE" && buildah "${storage[@]}" push --quiet "$image" "oci-archive:$ARCHIVE:$image"; fi
        ;;
    *) usage ;;
esac
echo "$image"
