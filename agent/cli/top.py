"""`petiole top`: what one leaf does per second, input by input and class by class, from its agent's admin
server.

It goes on until Ctrl-C, whatever the agent does meanwhile, and ends with 0. With --once: 0 shown; 5 the agent
does not answer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from agent.cli.configuration import ConfigFile, configuration, end, quiet
from agent.config import Admin
from agent.contract import Exit

if TYPE_CHECKING:
    from agent.base.terminal import TerminalLine
    from agent.cli.query.rates import Scrape

_DEFAULT_SECONDS: Final = 2.0

Once = Annotated[bool, typer.Option("--once", help="Print once, the rates of one interval, and end.")]
Interval = Annotated[
    float, typer.Option("--interval", min=0.5, max=3600, help="Seconds between two looks at the agent.")
]


def command(config: ConfigFile, once: Once = False, interval: Interval = _DEFAULT_SECONDS) -> None:
    """Show live what a leaf does: readings, refusals, errors and the backlog, per second."""
    from agent.base.terminal import draw, watch
    from agent.cli.query import AdminStatusError

    settings = configuration(config)
    quiet(settings)
    if settings.role != "leaf":
        end(["top shows one leaf; run it there, or look at all of them here with petiole fleet"])
    view = LeafView(settings.admin)
    if not once:
        watch(view.shown, interval)
        raise typer.Exit(Exit.WELL)
    try:
        view.looked()
        time.sleep(interval)
        draw(view.looked())
    except AdminStatusError as error:
        end([str(error)], Exit.UNREACHABLE)


class LeafView:
    """A leaf as it is looked at again and again: each look shows what happened since the one before."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._before: Scrape | None = None

    def shown(self) -> list[TerminalLine]:
        """The lines of a look; a sentence while the agent does not answer. The rates start again after
        that."""
        from agent.base.terminal import BAD, TerminalLine, terminal_width, wrapped
        from agent.cli.query import AdminStatusError

        try:
            return self.looked()
        except AdminStatusError as error:
            self._before = None
            said = [TerminalLine(_now()), TerminalLine(str(error), BAD)]
            return [part for line in said for part in wrapped(line, terminal_width())]

    def looked(self) -> list[TerminalLine]:
        """The lines of a look. Raises `AdminStatusError`."""
        from agent.base.terminal import BAD, GOOD, WAITS, TerminalLine, terminal_width, wrapped
        from agent.cli.query import metrics_of, status_of
        from agent.cli.query.rates import Rates, rate_lines, sample

        status = status_of(self._admin)
        now = sample(metrics_of(self._admin), status["inputs"], time.monotonic())
        rates, width = Rates(self._before, now), terminal_width()
        self._before = now
        link = status["link"]
        style = BAD if link["attention"] else GOOD if link["state"] == "flowing" else WAITS
        over = f"; the last {rates.seconds:.1f} s" if rates.seconds else "; rates follow with the next look"
        head = [TerminalLine(f"{status['domain']}: {link['sentence']}", style), TerminalLine(_now() + over)]
        if not status.get("server", {}).get("stores", True):
            head.insert(1, TerminalLine(f"server: {status['server']['state']}", BAD))
        return [*(part for line in head for part in wrapped(line, width)), *rate_lines(rates, width)]


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime())
