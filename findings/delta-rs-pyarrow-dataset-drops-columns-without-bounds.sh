#!/bin/sh
# Expected: a column without minimum and maximum in the statistics of a file can't be used to skip it. The protocol calls each
# of them optional, and Spark writes none for booleans.
# Seen: the PyArrow dataset of delta-rs finds no row of such a file by a filter on that column. Its SQL finds them.
# Version: deltalake 1.6.6, pyarrow 26.0.1. Source: a run; "Per-file Statistics" in PROTOCOL.md of delta-io/delta.
# Why it matters: a filter on a boolean column, or on one that was added later, gives an empty result and no error.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- deltalake==1.6.6 pyarrow==26.0.1
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
PyArrow: 0
SQL: 1
EOF
cat > "$dir/run.py" <<'EOF'
import json
import pathlib
import sys

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder, write_deltalake

root = pathlib.Path(sys.argv[1])


def rewritten(table, change):
    """The last commit of a table with its actions as another writer may have written them."""
    log = sorted((table / "_delta_log").glob("*.json"))[-1]
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        change(action)
    log.write_text("".join(json.dumps(action, ensure_ascii=False) + "\n" for action in actions))



table = root / "table"
write_deltalake(table, pa.table({"open": [True, False], "number": [1, 2]}))


def change(action):
    if "add" in action:
        statistics = json.loads(action["add"]["stats"])
        for bounds in ("minValues", "maxValues"):
            statistics[bounds].pop("open", None)
        action["add"]["stats"] = json.dumps(statistics)


rewritten(table, change)
delta = DeltaTable(table)
print("PyArrow:", delta.to_pyarrow_dataset().to_table(filter=pc.field("open") == pa.scalar(True)).num_rows)
print("SQL:", pa.table(QueryBuilder().register("t", delta).execute("SELECT * FROM t WHERE open").read_all()).num_rows)
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
