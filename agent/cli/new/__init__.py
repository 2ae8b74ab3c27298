"""Implements `petiole new input`, which writes a package for an input.

Exit codes: 0 written; 2 unusable name or directory; 1 not writable.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from agent.cli.configuration import end
from agent.contract import Exit
from agent.leaf.inputs import OPTIONS

app = typer.Typer(help="Write a package to begin with.", no_args_is_help=True)

_NAME: Final = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*\Z")
_MAX_NAME: Final = 32
_FILES: Final = {
    "pyproject.toml": "pyproject.toml.in",
    "README.md": "README.md.in",
    "@module@/__init__.py": "package.py.in",
    "@module@/input.py": "input.py.in",
    "@module@/py.typed": None,
    "tests/test_contract.py": "test_contract.py.in",
}
"""Files of the package with templates; None for empty ones."""


@app.callback()
def about() -> None:
    """Write a package to begin with."""


@app.command("input")
def input_(
    name: Annotated[str, typer.Argument(help="The type that a configuration names.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="The directory in which the package is made.")] = Path(),
) -> None:
    """Write the package of an input that polls a device, with the suite that kills its agent."""
    if not (len(name) <= _MAX_NAME and _NAME.match(name)):
        remedy = f'take up to {_MAX_NAME} lower-case letters and digits, in words joined by "-" or "_"'
        end([f"{name!r:.60} cannot be the name of an input; {remedy}, such as press-line"])
    if name in OPTIONS:
        end([f"{name!r} is a built-in input, which no package can replace; take another name"])
    root = out / f"petiole-{name}"
    try:
        root.mkdir()
    except FileExistsError:
        end([f"{root} is there already; take another name, or another directory with --out"])
    except FileNotFoundError:
        end([f"{out} is not there; make it, or name another directory with --out"])
    except OSError as error:
        end([f"{root} cannot be made ({error.strerror}); name another directory with --out"])
    try:
        write(root, name)
    except OSError as error:
        end([f"{root} cannot be written ({error.strerror}); remove it and try again"], Exit.FAILED)
    typer.echo(f"written: {root}")
    typer.echo(f'next:    cd {root} && pip install --editable ".[test]" && pytest')


def write(root: Path, name: str) -> None:
    """Write the package of input `name`. Raises `OSError`."""
    words = re.split(r"[-_]", name)
    places = {
        "@name@": name,
        "@module@": f"petiole_{'_'.join(words)}",
        "@Class@": "".join(word.capitalize() for word in words),
        "@version@": version("petiole"),
    }
    templates = files(__name__) / "template"
    for path, template in _FILES.items():
        text = "" if template is None else (templates / template).read_text()
        for place, value in places.items():
            path, text = path.replace(place, value), text.replace(place, value)
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text(text)
