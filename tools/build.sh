#!/bin/bash
# Configures and builds one preset, for ./run and ./test:  tools/build.sh PRESET [-DOPTION=VALUE...] [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:?"usage: tools/build.sh PRESET [-DOPTION=VALUE...] [TARGET...]"}
shift
options=()
while [[ ${1:-} == -D* ]]; do
  options+=("$1")
  shift
done
log=build/$preset/configure.log
mkdir -p "build/$preset"
if ! cmake --preset "$preset" "${options[@]}" >"$log" 2>&1; then
  cat "$log" >&2
  echo "build: configuring the preset '$preset' failed (above, and in $log)" >&2
  exit 1
fi
exec cmake --build "build/$preset" ${1:+--target "$@"}
