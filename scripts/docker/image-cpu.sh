#!/usr/bin/env bash
# Builds goofspiel-miner:cpu from Dockerfile.cpu. Where pip on this machine is configured to find a
# CPU build of torch, that one is handed to the build; else the build takes it from PyTorch's index.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-$(command -v .venv/bin/python || command -v python3)}
wheels=.cache/wheels
version="$(sed -n 's/^torch==//p' requirements-cpu.txt)+cpu"
machine=$(uname -m | sed 's/^arm64$/aarch64/')

if ! compgen -G "$wheels/torch-$version-*$machine.whl" >/dev/null; then
  rm -rf "$wheels"
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version 3.11 --platform "manylinux_2_28_$machine" --dest "$wheels" \
    "torch==$version" >/dev/null 2>&1 || echo "image-cpu: torch comes from PyTorch's index"
fi
DOCKER_BUILDKIT=1 docker build --quiet --file Dockerfile.cpu --tag goofspiel-miner:cpu .
