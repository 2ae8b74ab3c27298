#!/bin/sh
# Expected: a client of OPC UA that reads "I receive chunks of 8,192 bytes and send chunks of 65,536" in a server's
# acknowledgement sends chunks of at most 8,192 bytes and accepts chunks of up to 65,536. Its own Hello states its own limits.
# Seen: asyncua takes both numbers for its own directions. It refuses answers above 8,192 bytes as BadRequestTooLarge, though
# no request was too large. Its Hello states 2,147,483,647 for both directions, whatever limits it keeps to.
# Version: asyncua 2.1.0. Source: a run against its own server behind a relay that changes the acknowledgement;
# TransportLimits.update_client_limits in asyncua/common/connection.py (nothing calls create_hello_limits there).
# Why it matters: reads from a small controller that receives less than it sends fail, and the error blames the size of the
# request. OPC 10000-6, 7.1.2.4, says which side each number is of.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- asyncua==2.1.0
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
server receives 65536, sends 65536: 2000 values
server receives 8192, sends 65536: BadRequestTooLarge
the hello states 2147483647 and 2147483647
EOF
cat > "$dir/run.py" <<'EOF'
import asyncio, socket, struct

from asyncua import Client, Server, ua


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


async def main():
    port, hello, sizes = free_port(), [], (0, 0)
    server = Server()
    await server.init()
    server.set_endpoint(f"opc.tcp://127.0.0.1:{port}/")
    await server.start()

    async def pass_on(reader, writer, change):
        try:
            while True:
                head = await reader.readexactly(8)
                body = await reader.readexactly(struct.unpack("<I", head[4:])[0] - 8)
                writer.write(head + change(head[:3], body))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def asked(kind, body):
        if kind == b"HEL":
            hello[:] = struct.unpack("<II", body[4:12])
        return body

    def answered(kind, body):
        return body[:4] + struct.pack("<II", *sizes) + body[12:] if kind == b"ACK" else body

    async def relay(reader, writer):
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, back, asked), pass_on(there, writer, answered))

    listener = await asyncio.start_server(relay, "127.0.0.1", 0)
    for sizes in ((65536, 65536), (8192, 65536)):
        try:
            async with Client(f"opc.tcp://127.0.0.1:{listener.sockets[0].getsockname()[1]}/") as client:
                node = client.get_node(ua.ObjectIds.Server_ServerStatus_CurrentTime)
                outcome = f"{len(await client.read_values([node] * 2000))} values"
        except ua.UaStatusCodeError as error:
            outcome = type(error).__name__
        print(f"server receives {sizes[0]}, sends {sizes[1]}: {outcome}")
    print("the hello states", *hello[:1], "and", *hello[1:])
    await server.stop()


asyncio.run(main())
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
