#!/usr/bin/env bash
# Makes sure that images can be built here: an engine that answers and a base image. Both are made
# on Debian 12 without them, as root. Exits with 3 where that is not possible. With --pull the base
# image is the newest one, as validators have it, wherever it can be pulled.
set -euo pipefail
cd "$(dirname "$0")"
base=python:3.11-slim-bookworm
can_make() { [ "$(id -u)" = 0 ] && [ -f /etc/debian_version ]; }

if ! why=$(docker info 2>&1 >/dev/null); then
  can_make || { echo "docker: no engine answers: start Docker, or be root on Debian 12 to get one ($(tail -n 1 <<<"$why"))" >&2; exit 3; }
  echo "docker: no engine answers, installing and starting one"
  { ./engine.sh install && ./engine.sh start; } ||
    { echo "docker: no engine could be made on this machine, for the reason above" >&2; exit 3; }
fi
there() { docker image inspect "$base" >/dev/null 2>&1; }
[ "${1:-}" = --pull ] || ! there || exit 0
why=$(docker pull --quiet "$base" 2>&1) && exit 0
if there; then
  echo "docker: $base cannot be pulled ($(tail -n 1 <<<"$why")): building on the one that is here," \
    "$(docker image inspect -f '{{with index .Config.Labels "stand-in"}}which {{.}}{{else}}of {{$.Created}}{{end}}' "$base")"
  exit 0
fi
can_make || { echo "docker: $base can neither be pulled nor made here ($(tail -n 1 <<<"$why"))" >&2; exit 3; }
echo "docker: $base cannot be pulled, making a base image in its place"
./base-image.sh "$base" ||
  { echo "docker: $base could not be made on this machine, for the reason above" >&2; exit 3; }
