#!/bin/sh
# Expected: a server keeps a history of any variable in SQLite, also of a variable with a text as its node id, such as
# ns=2;s=Line1.Speed, which is the usual kind.
# Seen: historize_node_data_change raises SqlInjectionError for such a variable, for the table's name has the text in quotes
# and the library allows no quotes in names. Variables with a number have a history.
# Version: asyncua 2.1.0. Source: a run; HistorySQLite._get_table_name in asyncua/server/history_sql.py (it formats the text
# with !r), validate_table_name in asyncua/common/sql_injection.py.
# Why it matters: a server that historizes its variables does not start after an update, though its variables are unchanged.
# Remedy: give variables with a history a number as node id, or a storage of one's own.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- asyncua==2.1.0
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
ns=1;i=2001: has a history
ns=1;s=speed: SqlInjectionError
EOF
cat > "$dir/run.py" <<'EOF'
import asyncio, sys

from asyncua import Server
from asyncua.server.history_sql import HistorySQLite


async def main():
    server, storage = Server(), HistorySQLite(f"{sys.argv[1]}/history.db")
    await server.init()
    await storage.init()
    server.iserver.history_manager.set_storage(storage)
    for ident in ("ns=1;i=2001", "ns=1;s=speed"):
        node = await server.nodes.objects.add_variable(ident, f"1:{ident[5:]}", 0.0)
        try:
            await server.historize_node_data_change(node)
            print(f"{ident}: has a history")
        except Exception as error:
            print(f"{ident}: {type(error).__name__}")
    await storage.stop()
    await server.stop()


asyncio.run(main())
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
