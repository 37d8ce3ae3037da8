#!/usr/bin/env bash
# sbom.sh [DIR]: what the image `spark` has of Python packages, into DIR (dist): tidelog.cdx.json, a bill of
# materials in CycloneDX's form, and licences.md. Installs deploy/spark.lock and the wheel in dist/ into an
# environment of its own.
set -euo pipefail
out=$(realpath -m "${1:-dist}")
cd "$(dirname "$0")/.."
wheel=$(ls -t dist/*.whl | head -1)
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
mkdir -p "$out"
"${PYTHON:-python3}" -m venv "$room/tools"
"$room/tools/bin/python" -m pip install --quiet --disable-pip-version-check pip==26.3 cyclonedx-bom==7.5.0 pip-licenses==5.5.5
"${PYTHON:-python3}" -m venv --without-pip "$room/image"
pip=("$room/tools/bin/python" -m pip --python "$room/image" --disable-pip-version-check install --quiet)
"${pip[@]}" --require-hashes -r deploy/spark.lock
"${pip[@]}" --no-deps "$wheel"
"$room/tools/bin/cyclonedx-py" environment --output-reproducible --output-format JSON \
  --output-file "$out/tidelog.cdx.json" "$room/image/bin/python"
"$room/tools/bin/pip-licenses" --python "$room/image/bin/python" --format markdown --order license --with-urls \
  --output-file "$out/licences.md"
