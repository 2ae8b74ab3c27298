#!/bin/sh
# install_packages.sh WHAT PACKAGES: has apt install the Debian packages of what is missing, where that is permitted, once
# no other program uses apt. Otherwise one sentence says what to install.
set -eu
waits=${APT_WAIT:-600}
export LC_ALL=C DEBIAN_FRONTEND=noninteractive

stop() {
    echo "petiole: $1" >&2
    exit 1
}

# apt-get waits for the lock of the packages, but not for that of their lists (seen with 2.6.1).
update() {
    until said=$($as apt-get update -qq 2>&1); do
        case $said in *"Could not get lock"*) ;; *) waits=0 ;; esac
        if [ "$waits" -le 0 ]; then
            echo "$said" >&2
            return 1
        fi
        waits=$((waits - 1))
        sleep 1
    done
}

command -v apt-get >/dev/null || stop "$1 is missing and there is no apt-get here; install it by hand"
if [ "$(id -u)" = 0 ]; then as=""
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then as="sudo"
else stop "$1 is missing; install it with: apt-get install $2"
fi
echo "petiole: $1 is missing, installing $2"
{ update && $as env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    -o "DPkg::Lock::Timeout=$waits" $2; } >/dev/null || stop "$1 is missing and apt-get could not install $2"
