"""The dashboard: an endpoint in a browser. Needs the extra ``timeoutmgr[web]``."""

from timeoutmgr.errors import ConfigurationError

try:
    import itsdangerous  # noqa: F401  # to know that it is there
    import jinja2  # noqa: F401  # as above
    import starlette  # noqa: F401  # as above
except ModuleNotFoundError as error:
    raise ConfigurationError(
        f"the dashboard needs the package {error.name}; install timeoutmgr[web]"
    ) from error

from timeoutmgr.web.access import Access, OneTimeLink, ProxyHeaders, Role, TokenFile, Visitor
from timeoutmgr.web.app import dashboard

__all__ = ["Access", "OneTimeLink", "ProxyHeaders", "Role", "TokenFile", "Visitor", "dashboard"]
