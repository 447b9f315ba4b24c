#!/usr/bin/env bash
# Makes .venv with the pinned packages of constraints.txt and builds hps._C in place.
#
# Needs Python 3.11 or newer and g++; whatever else is missing of Debian's packages (venv, headers)
# is installed if this user may. Does nothing, in well under a second, when nothing has changed.
# PYTHON=/path/to/python chooses the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'bootstrap: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

install_debian() {
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then as_root=(sudo -n); fi
  command -v apt-get > /dev/null || return 1
  say "installing $* with apt-get"
  "${as_root[@]}" apt-get update -qq > /dev/null 2>&1 || true
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends \
    "$@" > /dev/null 2>&1
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; }

find_python() {
  local candidate
  for candidate in ${PYTHON:-} python3 python3.12 python3.11; do
    if is_new_enough "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  fail "no Python 3.11 or newer found: install python3, or set PYTHON=/path/to/python"
}

require_compiler() {
  if ! command -v g++ > /dev/null; then
    install_debian g++ || fail "no g++ found, and it could not be installed: apt-get install g++"
  fi
}

has_headers() {
  "$1" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'
}

require_headers() {
  if has_headers "$1"; then return; fi
  local version
  version="$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
  install_debian "python$version-dev" || install_debian python3-dev || true
  has_headers "$1" || fail "Python.h of $1 is missing: apt-get install python$version-dev"
}

# Three ways to an environment: the standard one, the same after Debian's package, virtualenv.
make_environment() {
  local python="$1" version
  version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
  rm -rf .venv
  if "$python" -m venv .venv > /dev/null 2>&1; then return; fi
  if install_debian "python$version-venv" || install_debian python3-venv; then
    rm -rf .venv
    if "$python" -m venv .venv > /dev/null 2>&1; then return; fi
  fi
  rm -rf .venv
  if "$python" -m virtualenv --quiet .venv > /dev/null 2>&1; then return; fi
  if "$python" -m pip install --quiet --target build/virtualenv virtualenv > /dev/null 2>&1 &&
    PYTHONPATH=build/virtualenv "$python" -m virtualenv --quiet .venv > /dev/null; then
    return
  fi
  fail "no virtual environment could be made: apt-get install python$version-venv"
}

# Packages are installed anew when the pins, the project's metadata or this script change.
install_packages() {
  local wanted stamp=.venv/.hps-packages
  wanted="$(cat constraints.txt pyproject.toml tools/bootstrap.sh | sha256sum)"
  if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then return; fi
  local python
  python="$(find_python)"
  require_compiler
  require_headers "$python"
  if ! .venv/bin/python -c '' > /dev/null 2>&1 || ! is_new_enough .venv/bin/python; then
    say "making .venv with $python"
    make_environment "$python"
  fi
  say "installing the packages of constraints.txt"
  # Byte code is left to the first import: compiling all of torch takes longer than unpacking it.
  .venv/bin/python -m pip install -qq --no-compile --disable-pip-version-check -r constraints.txt
  say "building hps"
  PATH="$PWD/.venv/bin:$PATH" .venv/bin/python -m pip install -qq --no-deps \
    --disable-pip-version-check --no-build-isolation --editable .
  rm -f .venv/.hps-native
  printf '%s' "$wanted" > "$stamp"
}

# Folders count too: their times change when a file is added or removed.
build_native() {
  local stamp=.venv/.hps-native
  if compgen -G 'hps/_C*.so' > /dev/null && [ -f "$stamp" ] &&
    [ -z "$(find csrc CMakeLists.txt setup.py -newer "$stamp" -print -quit)" ]; then
    return
  fi
  say "building hps._C"
  local log=build/native.log started
  mkdir -p build
  started="$(mktemp build/started.XXXXXX)"
  if ! PATH="$PWD/.venv/bin:$PATH" .venv/bin/python setup.py -q build_ext --inplace \
    > "$log" 2>&1; then
    cat "$log" >&2
    fail "hps._C did not build"
  fi
  mv "$started" "$stamp"
}

install_packages
build_native
