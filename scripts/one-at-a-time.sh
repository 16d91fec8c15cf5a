# Sourced by the set-up scripts: each would remove what another one makes.
mkdir -p .cache
exec 9>>.cache/setup.lock
! command -v flock >/dev/null || flock 9
