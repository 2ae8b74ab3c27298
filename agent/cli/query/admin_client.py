"""How programs of this machine ask the admin server: where it answers, with its token, and believing the
certificate that the configuration names and no other."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final

from agent.base.http_access import AccessError, read_token
from agent.config.schema import Admin, listen_address

_HERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - looked at, not listened on


@dataclass(frozen=True, slots=True)
class Dial:
    """The address of a page, the headers of a request and the TLS of the connection, None without."""

    url: str
    headers: dict[str, str]
    tls: ssl.SSLContext | None


def dial(admin: Admin, path: str = "/status") -> Dial:
    """How to ask for a page. Raises `AccessError` when the token or the certificate cannot be read."""
    host, port = listen_address(admin.listen)
    near = _HERE.get(host, host)
    where = f"[{near}]:{port}" if ":" in near else f"{near}:{port}"
    headers = {}
    if admin.token_file is not None:
        headers["Authorization"] = f"Bearer {read_token(admin.token_file).decode()}"
    scheme, tls = "http", None
    if admin.tls_cert is not None:
        scheme, tls = "https", ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # It may be anybody's name: what is dialled is an address, and this certificate alone is believed.
        tls.check_hostname = False
        tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            tls.load_verify_locations(admin.tls_cert)
        except (OSError, ssl.SSLError) as error:
            raise AccessError(f"tls_cert {admin.tls_cert} cannot be read ({error.strerror})") from None
    return Dial(f"{scheme}://{where}{path}", headers, tls)
