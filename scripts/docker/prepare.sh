#!/usr/bin/env bash
# Makes sure that images can be built here: an engine that answers and a base image. Both are made
# on a Debian machine without them, as root. Exits with 3 where that is not possible.
set -euo pipefail
cd "$(dirname "$0")"
base=${1:-python:3.11-slim-bookworm}
can_make() { [ "$(id -u)" = 0 ] && [ -f /etc/debian_version ]; }

if ! docker info >/dev/null 2>&1; then
  can_make || { echo "docker: no engine answers: start Docker, or be root on Debian to get one" >&2; exit 3; }
  echo "docker: no engine answers, installing and starting one"
  { ./engine.sh install && ./engine.sh start; } ||
    { echo "docker: no engine could be made on this machine, for the reason above" >&2; exit 3; }
fi
docker image inspect "$base" >/dev/null 2>&1 && exit 0
docker pull --quiet "$base" 2>/dev/null && exit 0
can_make || { echo "docker: $base can neither be pulled nor made here: check the network" >&2; exit 3; }
echo "docker: $base cannot be pulled, making a base image in its place"
./base-image.sh "$base" ||
  { echo "docker: $base could not be made on this machine, for the reason above" >&2; exit 3; }
