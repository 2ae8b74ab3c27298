#!/bin/sh
# Expected: a parser of the Prometheus text format hands on the names that an exporter wrote.
# Seen: the parser of the Python client gives each sample of a counter the suffix _total where it lacks one (requests becomes
# requests_total), also where the exporter's own name is another metric's then. The name of the type line stays.
# Version: prometheus-client 0.26.0, the text format 0.0.4. Source: a run; build_metric in prometheus_client/parser.py.
# Why it matters: rules that keep or drop by the exporter's name match nothing. Prometheus itself stores the name as written.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
set -- prometheus-client==0.26.0
"$dir/venv/bin/pip" install --quiet --disable-pip-version-check "$@"
echo "with $*"
cat > "$dir/expected" <<'EOF'
counter requests -> requests_total
counter hits -> hits_total
gauge level -> level
EOF
cat > "$dir/run.py" <<'EOF'
from prometheus_client.parser import text_string_to_metric_families

text = "# TYPE requests counter\nrequests 3\n# TYPE hits_total counter\nhits_total 4\n# TYPE level gauge\nlevel 5\n"
for family in text_string_to_metric_families(text):
    print(family.type, family.name, "->", *(sample.name for sample in family.samples))
EOF
timeout --kill-after 5 150 "$dir/venv/bin/python" "$dir/run.py" "$dir" > "$dir/seen" 2> "$dir/errors" || true
cat "$dir/seen"
diff "$dir/expected" "$dir/seen" || { cat "$dir/errors" >&2; echo "changed: the output differs from the expected one above" >&2; exit 1; }
