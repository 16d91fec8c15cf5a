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
  echo "image-cpu: looking for a CPU build of torch $version by pip"
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --python-version 3.11 --platform "manylinux_2_28_$machine" --dest "$wheels" \
    "torch==$version" >/dev/null 2>&1 || echo "image-cpu: torch comes from PyTorch's index"
fi
echo "image-cpu: building goofspiel-miner:cpu; the first time packages are installed, which takes minutes"
began=$SECONDS
DOCKER_BUILDKIT=1 docker build --quiet --file Dockerfile.cpu --tag goofspiel-miner:cpu . >/dev/null
echo "image-cpu: goofspiel-miner:cpu is built, after $((SECONDS - began)) s"
