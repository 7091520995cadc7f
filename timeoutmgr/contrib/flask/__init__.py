"""Flask: an extension with handlers, the app's endpoint, and ``flask timeoutmgr``."""

from timeoutmgr.contrib.flask.extension import FlaskTimeouts, configuration

__all__ = ["FlaskTimeouts", "configuration"]
