#!/usr/bin/env bash
# Builds goofspiel-miner:cpu from Dockerfile.cpu, with torch's CPU wheel from where pip on this
# machine is configured to find one, else from PyTorch's own index (as scripts/setup.sh does).
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-$(command -v .venv/bin/python || command -v python3)}
wheels=.cache/wheels
torch="torch==$(sed -n 's/^torch==//p' requirements-cpu.txt)+cpu"
machine=$(uname -m | sed 's/^arm64$/aarch64/')

if ! compgen -G "$wheels/torch-${torch#torch==}-*$machine.whl" >/dev/null; then
  rm -rf "$wheels"
  download=("$python" -m pip download --quiet --disable-pip-version-check --no-deps
    --only-binary=:all: --python-version 3.11 --platform "manylinux_2_28_$machine" --dest "$wheels")
  "${download[@]}" "$torch" >/dev/null 2>&1 ||
    "${download[@]}" "$torch" --index-url https://download.pytorch.org/whl/cpu ||
    { echo "image-cpu: no CPU build of $torch for $machine could be downloaded: check the network" >&2; exit 1; }
fi
DOCKER_BUILDKIT=1 docker build --quiet --file Dockerfile.cpu --tag "${1:-goofspiel-miner:cpu}" .
