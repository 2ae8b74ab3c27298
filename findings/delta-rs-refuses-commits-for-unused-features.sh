#!/bin/sh
# Expected: a writer refuses a table for a feature that it uses: a column with a default, a widened type. A table that only lists
# the feature in its protocol asks for nothing, and delta-rs does append where appendOnly is listed and not set.
# Seen: it refuses to append where the protocol lists allowColumnDefaults, identityColumns, typeWidening,
# inCommitTimestamp or vacuumProtocolCheck, used or not.
# Version: deltalake 1.6.6. Source: a run; "Table Features" in PROTOCOL.md of delta-io/delta.
# Why it matters: a table that Spark once created with a default and dropped it again is read-only for delta-rs.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- deltalake==1.6.6 pyarrow==26.0.1
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
appendOnly appended
allowColumnDefaults CommitFailedError
identityColumns CommitFailedError
typeWidening CommitFailedError
inCommitTimestamp CommitFailedError
vacuumProtocolCheck CommitFailedError
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



for feature in ("appendOnly", "allowColumnDefaults", "identityColumns", "typeWidening", "inCommitTimestamp", "vacuumProtocolCheck"):
    table = root / feature
    write_deltalake(table, pa.table({"number": [1]}))
    read = [feature] if feature in ("typeWidening", "vacuumProtocolCheck") else []
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": read, "writerFeatures": [feature]}

    def change(action):
        if "protocol" in action:
            action["protocol"] = protocol

    rewritten(table, change)
    try:
        write_deltalake(table, pa.table({"number": [2]}), mode="append")
        print(feature, "appended")
    except Exception as error:
        print(feature, type(error).__name__)
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
