#!/bin/sh
# Expected: setting delta.enableDeletionVectors gives a table the feature deletionVectors.
# Seen: delta-rs adds variantType too, for readers and writers, to a table without such a column. A reader without that type
# must refuse the table from then on.
# Version: deltalake 1.6.6. Source: a run.
# Why it matters: one property locks out every reader that does not know an unrelated type, and features are not taken back
# by removing the property.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- deltalake==1.6.6 pyarrow==26.0.1
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
readers: deletionVectors variantType
writers: appendOnly deletionVectors invariants variantType
EOF
cat > "$dir/run.py" <<'EOF'
import pathlib
import sys

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

table = pathlib.Path(sys.argv[1]) / "table"
write_deltalake(table, pa.table({"number": [1]}))
DeltaTable(table).alter.set_table_properties({"delta.enableDeletionVectors": "true"})
protocol = DeltaTable(table).protocol()
print("readers:", *sorted(protocol.reader_features))
print("writers:", *sorted(protocol.writer_features))
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
