#!/usr/bin/env bash
# run_tests.sh NAME PYTHON ARGS…: pytest, and what failed once more, alone.
#
# Servers, brokers and a JVM share two cores with each other: a test may wait too long there and hold
# when it has the machine to itself. What fails alone as well fails the run; what does not is listed as
# flaky, and is to be mended. More than TIDELOG_FLAKY (10) failures are no accident: nothing is run again.
set -uo pipefail
name=$1 python=$2
shift 2
cache=.pytest_cache/$name
rm -rf "$cache"
"$python" -m pytest -o cache_dir="$cache" "$@"
code=$?
[ "$code" -eq 1 ] || exit "$code"
if [ ! -e "$cache/v/cache/lastfailed" ]; then
  echo "pytest ended before it noted what failed: a test beyond its time limit, or a process that died"
  exit "$code"
fi
failed=$("$python" -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' \
  "$cache/v/cache/lastfailed") || exit "$code"
count=$(wc -l <<<"$failed")
if [ "$count" -gt "${TIDELOG_FLAKY:-10}" ]; then
  echo "$count tests failed: too many to be run again"
  exit "$code"
fi
echo "=== $count failed; each once more, alone"
mapfile -t tests <<<"$failed"
[ -z "${TIDELOG_SUMMARY:-}" ] || echo "$count failed; each once more, alone:" >>"$TIDELOG_SUMMARY"
"$python" -m pytest -p no:xdist --continue-on-collection-errors -o cache_dir="$cache-again" "${tests[@]}" || exit $?
printf '=== flaky, failed first and held alone:\n%s\n' "$failed"
