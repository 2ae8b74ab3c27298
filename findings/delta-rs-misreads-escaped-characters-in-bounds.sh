#!/bin/sh
# Expected: the statistics of a Delta log are JSON, so a character beyond U+FFFF may be written as itself or as the escaped
# surrogate pair that json.dumps of Python writes by default.
# Seen: delta-rs decodes the pair wrongly (U+20000 is taken for U+10000). Bounds that are right then hide the rows from its SQL
# and from its PyArrow dataset, without an error. As UTF-8 the same bounds work.
# Version: deltalake 1.6.6. Source: a run; RFC 8259 section 7.
# Why it matters: whoever writes the log with a JSON library that escapes (the default of Python's) loses rows in readers.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- deltalake==1.6.6 pyarrow==26.0.1
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
UTF-8 PyArrow 1, SQL 1
escaped PyArrow 0, SQL 0
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



def found(escaped):
    table = root / f"escaped-{escaped}"
    write_deltalake(table, pa.table({"name": ["\U00020000"]}))

    def change(action):
        if "add" in action:
            statistics = json.loads(action["add"]["stats"])
            action["add"]["stats"] = json.dumps(statistics, ensure_ascii=escaped)

    rewritten(table, change)
    delta = DeltaTable(table)
    rows = delta.to_pyarrow_dataset().to_table(filter=pc.field("name") == "\U00020000").num_rows
    query = QueryBuilder().register("t", delta).execute("SELECT name FROM t WHERE name = '\U00020000'")
    return rows, pa.table(query.read_all()).num_rows


for escaped in (False, True):
    print("escaped" if escaped else "UTF-8", "PyArrow %d, SQL %d" % found(escaped))
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
