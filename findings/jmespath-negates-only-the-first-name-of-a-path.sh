#!/bin/sh
# Expected: !a.b is true where a.b is false or absent, as in languages that have such paths. a.b || 1 reads all of a.b, too.
# Seen: ! binds tighter than the dot, so !a.b is (!a).b: the member b of a boolean, which is null for every input.
# With parentheses, !(a.b), the result is the expected one. A condition with !a.b never holds, and nothing says so.
# Version: jmespath 1.1.0 (Python). Source: a run; BINDING_POWER in jmespath/parser.py has not 45, dot 40.
# Why it matters: a filter such as items[?!meta.deleted] drops every item.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- jmespath==1.1.0
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
!a.b false: null
!a.b true: null
!(a.b) false: true
!(a.b) true: false
items[?!meta.deleted]: []
items[?!(meta.deleted)]: [{"id": 1, "meta": {}}]
EOF
cat > "$dir/run.py" <<'EOF'
import json

import jmespath

for path in ("!a.b", "!(a.b)"):
    for value in (False, True):
        print(f"{path} {json.dumps(value)}: {json.dumps(jmespath.search(path, {'a': {'b': value}}))}")
items = {"items": [{"id": 1, "meta": {}}, {"id": 2, "meta": {"deleted": True}}]}
for path in ("items[?!meta.deleted]", "items[?!(meta.deleted)]"):
    print(f"{path}: {json.dumps(jmespath.search(path, items))}")
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
