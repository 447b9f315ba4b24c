#!/usr/bin/env bash
# Installs Chromium, in which tests open the pages of `hps report` and `hps dashboard`, where
# apt-get may do so.
#
# Above it: `make chromium`; `make test`, with --try: then it goes on whatever happens here, and the
# download ends after 45 seconds. Does nothing where HPS_CHROMIUM or the PATH has a browser.
set -euo pipefail

is_try=$([ "${1:-}" = --try ] && echo yes || echo no)
limit=$([ "$is_try" = yes ] && echo 45 || echo 600)

say() { printf 'chromium: %s\n' "$*" >&2; }
give_up() {
  if [ "$is_try" = yes ]; then say "$*; the tests of pages in a browser skip"; exit 0; fi
  say "$*"
  exit 1
}

for name in "${HPS_CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable; do
  if [ -n "$name" ] && command -v "$name" > /dev/null; then exit 0; fi
done
command -v apt-get > /dev/null || give_up "no apt-get here; install Chromium by other means"
as_root=()
if [ "$(id -u)" -ne 0 ]; then
  as_root=(sudo -n)
  sudo -n true 2> /dev/null || give_up "neither root nor sudo without a password"
fi

# Only what is fetched has a limit: packages that are half unpacked would be left broken.
fetch() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends --download-only chromium
}
say "installing chromium with apt-get"
"${as_root[@]}" timeout --kill-after=5 "$limit" bash -c "$(declare -f fetch); fetch" \
  > /dev/null 2>&1 || give_up "apt-get could not fetch it (in $limit seconds at most)"
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
  --no-install-recommends --no-download chromium > /dev/null 2>&1 ||
  give_up "apt-get could not install it"
