#!/usr/bin/env bash
# Makes dist/: the sdist, and from it a manylinux wheel for each Python that is found.
#
# Above it: `make wheel`. Below it: setup.py, auditwheel. Every wheel is built from the unpacked
# sdist, in an environment that has nothing of this checkout, so the sdist is complete. The core is
# compiled once; each Python compiles the bindings. From 3.12 on one wheel serves all (abi3), built
# with the oldest found. The module links to glibc and GCC's libraries alone, which each system of
# its tag has, so auditwheel grafts nothing; CUDA's are CuPy's, loaded at run time.
# PYTHONS="python3.11 /path/to/python3.12" chooses the interpreters.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf 'wheels: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null; }

# "VERSION PATH" of each, the first of each version.
find_pythons() {
  local candidate version candidates
  candidates=(python3 python3.{11,12,13,14})
  candidates+=("${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[1-4]*/bin/python3)
  if [ -n "${PYTHONS:-}" ]; then read -ra candidates <<< "$PYTHONS"; fi
  for candidate in "${candidates[@]}"; do
    candidate="$(command -v "$candidate" || true)"
    if [ -z "$candidate" ]; then continue; fi
    version="$(version_of "$candidate" || true)"
    case "$version" in 3.1[1-4]) printf '%s %s\n' "$version" "$candidate" ;; esac
  done | sort -s -V -k1,1 -u
}

python=.venv/bin/python
work="$PWD/build/wheels"
rm -rf "$work/source" "$work/raw" dist
mkdir -p "$work/source" "$work/raw" dist

say "making the man pages, the shells' completions and the sdist"
$python -m tools.shell_pages
$python -m build --sdist --no-isolation --outdir dist . > "$work/sdist.log" 2>&1 ||
  { tail -20 "$work/sdist.log" >&2; fail "the sdist could not be made"; }
sdist="$(echo dist/*.tar.gz)"
tar -xzf "$sdist" -C "$work/source" --strip-components 1

# The versions that hps is tested with, in pip's isolated builds, too, by either of its names.
export PIP_CONSTRAINT="$PWD/constraints.txt" PIP_BUILD_CONSTRAINT="$PWD/constraints.txt"
export PIP_DISABLE_PIP_VERSION_CHECK=1
export HPS_BUILD_DIR="$work/cmake"
has_abi3=no
while read -r version found; do
  if [ "$version" != 3.11 ] && [ "$has_abi3" = yes ]; then
    say "Python $version: the abi3 wheel serves it"
    continue
  fi
  say "Python $version: building with $found"
  rm -rf "$work/python" "$work/source/build" "$work/raw"
  "$found" -m venv "$work/python"
  "$work/python/bin/python" -m pip wheel --no-deps --wheel-dir "$work/raw" "$work/source" \
    > "$work/$version.log" 2>&1 ||
    { tail -30 "$work/$version.log" >&2; fail "the wheel for Python $version did not build"; }
  PATH="$PWD/.venv/bin:$PATH" $python -m auditwheel repair --wheel-dir dist "$work"/raw/*.whl \
    > "$work/auditwheel.log" 2>&1 ||
    { cat "$work/auditwheel.log" >&2; fail "auditwheel refused the wheel"; }
  if [ "$version" != 3.11 ]; then has_abi3=yes; fi
done < <(find_pythons)

for version in 3.11 3.12 3.13 3.14; do
  find_pythons | grep -q "^$version " || say "Python $version: not found on this machine"
done
ls -l dist >&2
