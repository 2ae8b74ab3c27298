#!/bin/sh
# Fetches the object store that `make test-lakes` runs, once: Azurite by npm into .venv/node (360 MB). Where that fails its
# tests are skipped.
set -u
cd "$(dirname "$0")/.."

if [ ! -d .venv/node/node_modules/azurite ]; then
    npm install --silent --no-audit --no-fund --no-package-lock --prefix .venv/node azurite@3.37 >/dev/null ||
        echo "petiole: npm could not install Azurite; the tests go on without Azure" >&2
fi
