"""Accepts OTLP over gRPC (`MetricsService/Export`, `LogsService/Export`) once stored: the input `otlp_grpc`.

Exports are read as in `agent.leaf.inputs.http.otlp`; docs/inputs.md lists the codes. Equal exports are
repeats if all parts have times, or with metadata `idempotency-key`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agent.base.listen_sockets import cannot_listen, host_and_port
from agent.config import ConfigError, listen_address
from agent.leaf.inputs.otlp_grpc import OtlpGrpcOptions
from agent.leaf.inputs.shared import missing_extra
from agent.leaf.inputs.shared.access import AccessInput
from agent.leaf.intake import Intake

if TYPE_CHECKING:
    import grpc.aio

_TRANSPORT: Final = 4 * 2**20
"""Least gRPC message limit, so that one above `body` gets a worded answer."""
_STREAMS: Final = 16
"""Parallel calls per connection; gRPC reads each message before it asks."""
_GRACE: Final = 15.0
"""Seconds for pending exports at stop; the core settles within ten."""


class OtlpGrpcInput(AccessInput[OtlpGrpcOptions]):
    def _mistakes(self) -> Iterator[str]:
        yield from super()._mistakes()
        if missing := missing_extra("otlp-grpc", "grpc", "opentelemetry.proto", "google.rpc"):
            yield from missing
            return
        from agent.leaf.inputs.http.limits import EXPANSION

        body, buffer = self._options.body, self._options.buffer
        if body * EXPANSION > buffer:
            yield (
                f"body is {body} bytes, and an export may need {EXPANSION} times its size in buffer, which "
                f"is {buffer}; make it smaller, or buffer larger"
            )

    async def run(self, intake: Intake, stopping: asyncio.Event) -> None:
        """Serve until `stopping`, then finish pending calls. Raises `ConfigError` for an unusable address,
        `AccessError` for an unusable file.
        """
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it logs by itself has another form than ours
        import grpc.aio

        from agent.leaf.inputs.http.bodies import Bodies
        from agent.leaf.inputs.otlp_grpc.service import ROUTES, ExportService

        token, bodies = self._token(), Bodies(self._options.buffer)
        services = {
            name: ExportService(name, self._options, token, intake, self._metrics, self._log, bodies)
            for name in ROUTES
        }
        limit = max(_TRANSPORT, self._options.body)
        server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", limit),
                ("grpc.max_allowed_incoming_connections", self._options.max_connections),
                ("grpc.max_concurrent_streams", _STREAMS),
            ]
        )
        for name, service in services.items():
            methods = {"Export": grpc.unary_unary_rpc_method_handler(service.export)}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
        await self._open(server)
        try:
            await stopping.wait()
            await server.stop(_GRACE)
        finally:
            await server.stop(None)
            for service in services.values():
                await service.finish()

    async def _open(self, server: grpc.aio.Server) -> None:
        address = listen_address(self._options.listen)
        self._warn(address[0])
        where = host_and_port(*address)
        cert, key = self._options.tls_cert, self._options.tls_key
        try:
            if cert is None or key is None:
                server.add_insecure_port(where)
            else:
                self._tls()  # says what is wrong with the files
                server.add_secure_port(where, await asyncio.to_thread(_credentials, cert, key))
        except RuntimeError as error:
            raise ConfigError([cannot_listen(address, OSError(str(error)))]) from None
        await server.start()


def _credentials(cert: Path, key: Path) -> grpc.ServerCredentials:
    import grpc

    return grpc.ssl_server_credentials([(key.read_bytes(), cert.read_bytes())])
