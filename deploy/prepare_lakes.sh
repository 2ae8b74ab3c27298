#!/bin/sh
# Fetches the object stores that `make test-lakes` runs, once: Azurite by npm into .venv/node (360 MB), fake-gcs-server by
# Go into .venv/bin. The tests of a store that can't be fetched are skipped.
set -u
cd "$(dirname "$0")/.."

if [ ! -d .venv/node/node_modules/azurite ]; then
    npm install --silent --no-audit --no-fund --no-package-lock --prefix .venv/node azurite@3.37 >/dev/null ||
        echo "petiole: npm could not install Azurite; the tests go on without Azure" >&2
fi
if [ ! -x .venv/bin/fake-gcs-server ]; then
    GOBIN="$PWD/.venv/bin" go install github.com/fsouza/fake-gcs-server@v1.56.1 2>/dev/null ||
        echo "petiole: Go could not build fake-gcs-server; the tests go on without Google" >&2
fi
