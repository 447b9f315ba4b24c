#!/usr/bin/env bash
# Unpacks promtool of Debian's package prometheus into build/promtool, which installs nothing.
#
# Above it: `make promtool`; `make test`, with --try: then it goes on whatever happens here, and the
# download ends after 45 seconds. Does nothing where HPS_PROMTOOL, the PATH or build/ has one.
set -euo pipefail

is_try=$([ "${1:-}" = --try ] && echo yes || echo no)
limit=$([ "$is_try" = yes ] && echo 45 || echo 600)
place=$(cd "$(dirname "$0")/.." && pwd)/build/promtool

say() { printf 'promtool: %s\n' "$*" >&2; }
give_up() {
  if [ "$is_try" = yes ]; then say "$*; the tests of the alerts skip"; exit 0; fi
  say "$*"
  exit 1
}

for name in "${HPS_PROMTOOL:-}" promtool "$place/usr/bin/promtool"; do
  if [ -n "$name" ] && command -v "$name" > /dev/null; then exit 0; fi
done
command -v apt-get > /dev/null || give_up "no apt-get here; install Prometheus by other means"
command -v dpkg-deb > /dev/null || give_up "no dpkg-deb here; install Prometheus by other means"
say "unpacking promtool into build/promtool"
mkdir -p "$place"
(cd "$place" && timeout --kill-after=5 "$limit" apt-get download -qq prometheus > /dev/null 2>&1) ||
  give_up "apt-get could not fetch it (in $limit seconds at most; apt-get update helps)"
dpkg-deb --fsys-tarfile "$place"/prometheus_*.deb | tar -x -C "$place" ./usr/bin/promtool ||
  give_up "the package has no promtool"
rm -f "$place"/prometheus_*.deb
