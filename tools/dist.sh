#!/usr/bin/env bash
# dist.sh [DIR]: build sdist and wheel of the commit that is checked out, into DIR (dist).
#
# Only what is committed is packed. The wheel is built from the unpacked sdist, so the sdist is complete. The
# same commit gives the same bytes. PY: an interpreter with the packages of [build-system], by default .venv's.
set -euo pipefail
out=$(realpath -m "${1:-dist}")
cd "$(dirname "$0")/.."
python=$(realpath -s "${PY:-.venv/bin/python}")
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
mkdir -p "$out" "$build/commit" "$build/sdist"
[ -z "$(git status --porcelain)" ] || echo "dist.sh: changes that are not committed are left out" >&2
git archive HEAD | tar -x -C "$build/commit"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
(cd "$build/commit" && "$python" -m hatchling build --target sdist --directory "$build")
tar -xzf "$build"/tidelog-*.tar.gz -C "$build/sdist" --strip-components 1
(cd "$build/sdist" && "$python" -m hatchling build --target wheel --directory "$build")
mv "$build"/tidelog-*.{tar.gz,whl} "$out"
