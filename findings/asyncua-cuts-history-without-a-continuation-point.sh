#!/bin/sh
# Expected: a server of OPC UA that has more values than the NumValuesPerNode of a HistoryRead gives that many values and a
# continuation point. Without a continuation point a client takes the answer for the whole range (OPC 10000-11, 6.5.3).
# Seen: a server of asyncua cuts the answer to NumValuesPerNode and gives no continuation point. It gives one only above the
# limit of its own storage, which is 10,000 values.
# Version: asyncua 2.1.0, storage in memory and SQLite. Source: a run of its own client against its own server;
# HistoryDict.read_node_history in asyncua/server/history.py, HistorySQLite.read_node_history in asyncua/server/history_sql.py.
# Why it matters: a client that pages through a history, as the standard says, ends after its first page and misses the rest.
# Remedy: after a full page read again from the time of its last value, and leave out values that are known.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- asyncua==2.1.0
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
memory: 50 values, asked for 20: 20 values, continuation point None
sqlite: 50 values, asked for 20: 20 values, continuation point None
EOF
cat > "$dir/run.py" <<'EOF'
import asyncio, socket, sys
from datetime import datetime, timedelta, timezone

from asyncua import Client, Server, ua
from asyncua.server.history import HistoryDict
from asyncua.server.history_sql import HistorySQLite


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


async def read(name, storage):
    url, begin = f"opc.tcp://127.0.0.1:{free_port()}/", datetime.now(timezone.utc) - timedelta(hours=1)
    server = Server()
    await server.init()
    server.set_endpoint(url)
    await storage.init()
    server.iserver.history_manager.set_storage(storage)
    node = await server.nodes.objects.add_variable("ns=1;i=2001", "1:n", 0.0)
    await server.historize_node_data_change(node)
    for second in range(50):
        at = begin + timedelta(seconds=second)
        await storage.save_node_value(node.nodeid, ua.DataValue(ua.Variant(1.0), ua.StatusCode(0), at, at))
    async with server, Client(url) as client:
        details = ua.ReadRawModifiedDetails(
            StartTime=begin, EndTime=begin + timedelta(seconds=49), NumValuesPerNode=20, ReturnBounds=False
        )
        answer = await client.get_node(node.nodeid).history_read(details)
        count, point = len(answer.HistoryData.DataValues), answer.ContinuationPoint
        print(f"{name}: 50 values, asked for 20: {count} values, continuation point {point}")


async def main():
    await read("memory", HistoryDict())
    await read("sqlite", HistorySQLite(f"{sys.argv[1]}/history.db"))


asyncio.run(main())
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
