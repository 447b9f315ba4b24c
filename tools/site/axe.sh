#!/usr/bin/env bash
# Installs axe-core, which looks for what keeps people from using a page, into build/axe/.
#
# Above it: `make docs-check`. Below it: npm, which is installed with apt-get where this user may.
# Without it the tests that need axe-core skip, and say so.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

version=4.14.1
say() { printf 'axe: %s\n' "$*" >&2; }
give_up() { say "$*; the accessibility checks skip"; exit 0; }

package=build/axe/node_modules/axe-core
if grep -qs "\"version\": \"$version\"" "$package/package.json"; then exit 0; fi
if ! command -v npm > /dev/null; then
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get > /dev/null; then
    give_up "no npm, and it cannot be installed here"
  fi
  say "installing npm with apt-get"
  apt-get update -qq > /dev/null 2>&1 || true
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends npm \
    > /dev/null 2>&1 || give_up "npm could not be installed"
fi
mkdir -p build/axe
npm install --silent --no-save --ignore-scripts --prefix build/axe "axe-core@$version" \
  > build/axe/npm.log 2>&1 || give_up "npm could not install axe-core $version"
