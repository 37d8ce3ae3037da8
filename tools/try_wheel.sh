#!/usr/bin/env bash
# try_wheel.sh WHEEL [EXTRA]: install it into an empty environment, with the versions of requirements.lock, and
# try it there. With the extra `demo` the quick demo runs, too. PYTHON: the interpreter (python3).
set -euo pipefail
wheel=$(realpath "$1") extra=${2:-}
here=$(realpath "$(dirname "$0")")
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
# Without hashes: the wheel itself has none there.
sed -n 's/^\([a-z0-9][^ ]*==[^\\]*\) \\$/\1/p' "$here/../requirements.lock" >"$room/constraints.txt"
"${PYTHON:-python3}" -m venv "$room/venv"
"$room/venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$room/constraints.txt" \
  "$wheel${extra:+[$extra]}"
version=$(basename "$wheel" | cut -d- -f2)
cd "$room"
"$room/venv/bin/python" "$here/smoke.py" "$version"
if [ "$extra" = demo ]; then "$room/venv/bin/tidelog" demo --quick --dir "$room/demo"; fi
