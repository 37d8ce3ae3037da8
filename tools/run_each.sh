#!/usr/bin/env bash
# run_each.sh TARGET…: make each of these targets, also behind one that fails.
#
# The last lines say what each did; the exit code is 1 if any failed. TIDELOG_RESULTS names a file that these
# lines are added to, so that several calls end with one list.
set -uo pipefail
trap 'exit 130' INT
export TIDELOG_RESULTS=${TIDELOG_RESULTS:-$(mktemp)}
summary=$(mktemp)
trap 'rm -f "$summary"' EXIT
failed=0
for target in "$@"; do
  printf '\n=== make %s\n' "$target"
  : >"$summary"
  began=$SECONDS code=0
  TIDELOG_SUMMARY=$summary "${MAKE:-make}" --no-print-directory "$target" || code=$?
  if [ "$code" -eq 0 ]; then said="passed"; else said="FAILED (exit $code)" failed=1; fi
  {
    printf '=== make %s: %s, %s s\n' "$target" "$said" "$((SECONDS - began))"
    sed 's/^/      /' "$summary"
  } | tee -a "$TIDELOG_RESULTS"
done
printf '\n=== in all:\n'
cat "$TIDELOG_RESULTS"
exit "$failed"
