"""``timeoutmgr web``: the dashboard."""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from timeoutmgr.cli.options import FILE, Command, bundled, option
from timeoutmgr.cli.shared import Shared

if TYPE_CHECKING:
    from timeoutmgr.web import Access, OneTimeLink


class ProxyAddress(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """The address of one proxy; it is compared as text with the address of a client."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the address in the form that a connection shows."""
        try:
            return str(ipaddress.ip_address(value))
        except ValueError:
            self.fail(
                f"{value!r:.80} is not an address; expected a single one, such as 127.0.0.1 or "
                "::1, and --proxy once for each proxy",
                param,
                ctx,
            )


_HOST_NAME: Final = re.compile(r"\*|(\*\.)?[\w.-]+|\[[\da-f:]+\]", re.ASCII)


def _host_names(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...]:
    for each in given:
        if not _HOST_NAME.fullmatch(each):
            raise click.BadParameter(
                f"{each!r:.80} is not a host name alone, such as ops.example.com", ctx, param
            )
    return given


def require_no_port(host: str) -> None:
    """Raise UsageError if *host* includes a port."""
    name, _, port = host.rpartition(":")
    if name and port.isdecimal() and (":" not in name or name.endswith("]")):
        raise click.UsageError(
            f"--host {host} has a port; give both apart: --host {name.strip('[]')} --port {port}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrances:
    """The options for access."""

    tokens: Path | None
    proxies: tuple[str, ...]
    user_header: str
    role_header: str | None

    @property
    def has_authentication(self) -> bool:
        """Whether visitors from other machines are authenticated."""
        return self.tokens is not None or bool(self.proxies)

    def check(self, context: click.Context) -> None:
        """Raise UsageError for options that exclude each other or would have no effect."""
        if self.tokens is not None and self.proxies:
            raise click.UsageError("--tokens and --proxy exclude each other")
        default = ParameterSource.DEFAULT
        for flag, name in (("--user-header", "user_header"), ("--role-header", "role_header")):
            if not self.proxies and context.get_parameter_source(name) is not default:
                raise click.UsageError(
                    f"{flag} {getattr(self, name)} is read from the requests of a proxy alone; "
                    f"name it with --proxy ADDRESS, or leave {flag} out"
                )

    def access(self, link: "OneTimeLink") -> "Access":
        """Return the access for the options; *link* if there are none."""
        from timeoutmgr.web import ProxyHeaders, TokenFile

        if self.tokens is not None:
            return TokenFile(self.tokens)
        if self.proxies:
            return ProxyHeaders(
                self.proxies, user_header=self.user_header, role_header=self.role_header
            )
        return link


@click.command(cls=Command)
@option("--host", default="127.0.0.1", help="Address to listen on, without a port.")
@option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8642,
    help="Port to listen on; 0 is any free port.",
)
@option(
    "--name",
    "names",
    multiple=True,
    callback=_host_names,
    help="Host name in the addresses of browsers; may be given many times.",
)
@option("--secure-cookie", is_flag=True, help="Cookie only for HTTPS, such as behind a proxy.")
@bundled(
    "entrances",
    Entrances,
    option(
        "--tokens",
        type=FILE,
        help="File with a line 'ROLE NAME TOKEN' for each visitor, mode 0600.",
    ),
    option(
        "--proxy",
        "proxies",
        type=ProxyAddress(),
        metavar="ADDRESS",
        multiple=True,
        help="IP address of a proxy whose headers name the visitor; may be given many times.",
    ),
    option(
        "--user-header",
        default="X-Forwarded-User",
        help="Header in which the proxy names the visitor.",
    ),
    option(
        "--role-header",
        help="Header in which the proxy names the role. Without it, visitors are viewers.",
    ),
)
def web(
    shared: Shared,
    host: str,
    port: int,
    names: tuple[str, ...],
    secure_cookie: bool,
    entrances: Entrances,
) -> None:
    """Serve the dashboard of the endpoint until Ctrl-C.

    Without --tokens and --proxy the command prints a link that works once, and a new link after its
    use; its visitor is an admin. Roles are viewer, operator and admin. An address that other
    machines can reach needs --tokens or --proxy.

    Examples:
      timeoutmgr web
      timeoutmgr web --host 0.0.0.0 --tokens visitors.txt
      timeoutmgr web --proxy 127.0.0.1 --role-header X-Forwarded-Role
    """
    from timeoutmgr.endpoint.endpoint import Endpoint
    from timeoutmgr.web import OneTimeLink, dashboard
    from timeoutmgr.web.server import ServerAddress, serve

    require_no_port(host)
    entrances.check(click.get_current_context())
    address = ServerAddress(host=host, port=port, names=names)
    address.require_authentication(entrances.has_authentication)
    urls: list[str] = []

    def show(token: str) -> None:
        url = f"{urls[0]}/enter?token={token}"
        shared.show({"url": url}, lambda: click.echo(f"open {url}"))

    def announce(url: str) -> None:
        urls.append(url)
        if entrances.has_authentication:
            shared.show({"url": url}, lambda: click.echo(f"open {url}"))
        else:
            link.renew()

    link = OneTimeLink(show)
    endpoint = Endpoint(shared.configuration())
    try:
        app = dashboard(endpoint, access=entrances.access(link), secure_cookie=secure_cookie)
        serve(app, address, announce)
    finally:
        endpoint.close()
