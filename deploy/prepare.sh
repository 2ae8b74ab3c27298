#!/bin/sh
# Prepares this machine for the targets of the Makefile: a Python of 3.11 or newer with venv, Java 17 or newer for Spark,
# and a virtual environment in .venv with the package and what its tests need. Packages of the system are installed by apt
# where they are missing and that is permitted; otherwise one sentence says what to install.
set -eu
cd "$(dirname "$0")/.."

stop() {
    echo "petiole: $1" >&2
    exit 1
}

install() {
    deploy/install_packages.sh "$1" "$2"
}

find_python() {
    for one in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
        if [ -n "$one" ] && "$one" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$one"
            return
        fi
    done
}

java_version() {
    "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p'
}

python=$(find_python)
if [ -z "$python" ]; then
    install "Python 3.11 or newer" "python3 python3-venv"
    python=$(find_python)
    [ -n "$python" ] || stop "the system's Python is older than 3.11; install a newer one and set PYTHON to it"
fi
"$python" -c 'import ensurepip, venv' 2>/dev/null || install "venv of $python" python3-venv

java=$(java_version || true)
if [ "${java:-0}" -lt 17 ]; then
    install "Java 17 or newer" openjdk-17-jre-headless
    java=$(java_version || true)
    [ "${java:-0}" -ge 17 ] || stop "the Java found first is older than 17; set JAVA_HOME to a newer one"
fi

# Tests that try MQTT with mosquitto are skipped without it. Its package starts a service, so it is installed only
# where nothing would run that.
if [ ! -d /run/systemd/system ] &&
    { ! command -v mosquitto_pub || ! PATH="$PATH:/usr/sbin" command -v mosquitto; } >/dev/null; then
    (install mosquitto "mosquitto mosquitto-clients") || echo "petiole: the tests go on without it" >&2
fi

[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --disable-pip-version-check --use-pep517 --constraint deploy/constraints.txt -e '.[dev]'

# Tests that try OPC UA, Modbus and Sparkplug with peers of others are skipped without them.
if command -v npm >/dev/null && [ ! -d .venv/node/node_modules/sparkplug-client ]; then
    npm install --silent --no-audit --no-fund --no-package-lock --prefix .venv/node \
        node-opcua-server@2.182 node-opcua-nodesets@2.182 modbus-serial@8.0 sparkplug-client@3.2 >/dev/null ||
        echo "petiole: npm could not install the peers of OPC UA, Modbus and Sparkplug; the tests go on without them" >&2
fi
touch .venv/ready
