#!/usr/bin/env bash
# Makes .venv-openenv: OpenEnv beside .venv, which holds everything else (scripts/setup.sh first).
# For examples and tests: a machine that cannot have it continues without. Safe to run again.
set -euo pipefail
cd -P "$(dirname "$0")/.."
. scripts/one-at-a-time.sh

venv=.venv-openenv
pins=requirements-openenv.txt
version=$(sed -n 's/^openenv==//p' "$pins")
stamp=$(cat "$pins" .venv/.pins | sha256sum | cut -d' ' -f1)
[ -f "$venv/.pins" ] && [ "$(cat "$venv/.pins")" = "$stamp" ] && exit 0

echo "setup: making $venv with OpenEnv $version (half a minute)"
rm -rf "$venv"
.venv/bin/python -m venv "$venv"
site() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$pins"; then
  rm -rf "$venv"
  echo "setup: OpenEnv $version cannot be had here: its tests are skipped" >&2
  exit 0
fi
site .venv >"$(site "$venv")/base.pth"
echo "$stamp" >"$venv/.pins"
