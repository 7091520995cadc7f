"""Django: settings in ``TIMEOUTMGR``, sends in the ORM's transaction, ``manage.py timeoutmgr``.

Add ``"timeoutmgr.contrib.django"`` to ``INSTALLED_APPS``. Handlers are registered with ``handler``
in modules ``timeouts`` or ``handlers`` of the installed apps. ``endpoint`` is created at its first
use, once in each process.
"""

from timeoutmgr.contrib.django.configuration import configuration, handler
from timeoutmgr.contrib.django.databases import database_url
from timeoutmgr.contrib.django.endpoint import DjangoEndpoint, endpoint

__all__ = ["DjangoEndpoint", "configuration", "database_url", "endpoint", "handler"]
