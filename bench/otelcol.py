"""A collector of OpenTelemetry with only the parts that the tests use of it, built once from its Go modules.

`python -m bench.otelcol` builds it into build/otelcol/ and says what is missing where it cannot.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from bench.telegraf import built

VERSION: Final = "0.150.0"
_GO: Final = "1.25.5"
_MODULE: Final = "go.opentelemetry.io/collector"
_PARTS: Final = ("otelcol", "receiver/otlpreceiver", "exporter/otlpexporter", "exporter/otlphttpexporter")
_BUILT: Final = Path("build/otelcol")
_LONGEST: Final = 300
_MAIN: Final = """\
package main

import (
	"log"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/otlpexporter"
	"go.opentelemetry.io/collector/exporter/otlphttpexporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

func factories() (made otelcol.Factories, err error) {
	made.Telemetry = otelconftelemetry.NewFactory()
	made.Receivers, err = otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory())
	if err == nil {
		made.Exporters, err = otelcol.MakeFactoryMap[exporter.Factory](
			otlpexporter.NewFactory(), otlphttpexporter.NewFactory())
	}
	return
}

func main() {
	resolver := confmap.ResolverSettings{
		ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
		DefaultScheme:     "file",
	}
	settings := otelcol.CollectorSettings{
		BuildInfo:              component.BuildInfo{Command: "otelcol", Version: "VERSION"},
		Factories:              factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: resolver},
	}
	if err := otelcol.NewCommand(settings).Execute(); err != nil {
		log.Fatal(err)
	}
}
"""


def program() -> Path:
    """The built program; it is built where it is not there. Raises `RuntimeError`."""
    path = _BUILT / f"otelcol-{VERSION}"
    if not path.exists():
        _build(path)
    return path.resolve()


def _build(path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        raise RuntimeError(f"a collector has to be compiled and there is no Go: install {_GO} or later")
    _BUILT.mkdir(parents=True, exist_ok=True)
    (_BUILT / "go.mod").write_text(f"module bench.invalid/otelcol\n\ngo {_GO}\n")
    (_BUILT / "main.go").write_text(_MAIN.replace("VERSION", VERSION))
    print(f"compiling a collector {VERSION}, which takes some minutes once", flush=True)
    _run(go, "get", *(f"{_MODULE}/{part}@v{VERSION}" for part in _PARTS))
    _run(go, "build", "-mod=mod", "-buildvcs=false", "-o", path.name, ".")


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=_BUILT, capture_output=True, text=True)
    if done.returncode:
        last = "".join(done.stderr.strip().splitlines()[-1:])[:_LONGEST]
        raise RuntimeError(f"the collector {VERSION} cannot be compiled: {last}")


if __name__ == "__main__":
    sys.exit(built(program))
