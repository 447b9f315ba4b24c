#!/usr/bin/env bash
# Builds the documentation site to build/site/; a warning is an error.
#
# Above it: `make docs`. Below it: mkdocs.yml, tools/site/requirements.txt, drawings.py. The network
# is needed by pip alone, and only where the packages are not there yet. The site itself asks for
# nothing elsewhere: no fonts, no scripts; its search runs in the browser.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

say() { printf 'docs: %s\n' "$*" >&2; }

stamp=.venv/.hps-docs
wanted="$(cat constraints.txt tools/site/requirements.txt | sha256sum)"
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
  say "installing the packages of tools/site/requirements.txt"
  .venv/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt \
    -r tools/site/requirements.txt
  printf '%s' "$wanted" > "$stamp"
fi
.venv/bin/python -m tools.site.drawings
log=build/site.log
mkdir -p build
if ! NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs --color build --strict --quiet \
  > "$log" 2>&1; then
  cat "$log" >&2
  say "the site did not build: each line above says what to put right"
  exit 1
fi

# The picture of the dashboard is taken anew where its page has changed, if there is a browser.
picture=build/dashboard.png
stamp=build/dashboard.sha256
wanted="$(cat hps/dashboard/*.py hps/dashboard/web/* tools/dashboard_picture.py | sha256sum)"
if [ ! -f "$picture" ] || [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
  say "taking the picture of the dashboard, which takes a minute"
  if .venv/bin/python -m tools.dashboard_picture "$picture" >&2; then
    printf '%s' "$wanted" > "$stamp"
  else
    say "the picture is the one in docs/"
  fi
fi
if [ -f "$picture" ]; then cp "$picture" build/site/dashboard.png; fi
say "build/site/index.html"
