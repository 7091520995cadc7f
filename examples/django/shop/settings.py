"""Settings: one SQLite file, or the server that DB_ENGINE and similar variables name."""

import os
from datetime import timedelta
from pathlib import Path

ENGINE = os.environ.get("DB_ENGINE", "sqlite3")

if ENGINE == "mysql":
    try:
        import MySQLdb  # noqa: F401  # the driver that Django asks for
    except ImportError:
        import pymysql

        pymysql.version_info = (2, 2, 1, "final", 0)  # the oldest mysqlclient that Django takes
        pymysql.install_as_MySQLdb()

if ENGINE == "sqlite3":
    # sqlite-begin
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": Path(os.environ.get("DB_NAME", "shop.sqlite3")),
            "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 20},
            "TEST": {"NAME": "test.sqlite3"},
        }
    }
    # sqlite-end
else:
    DATABASES = {
        "default": {
            "ENGINE": f"django.db.backends.{ENGINE}",
            "NAME": os.environ["DB_NAME"],
            "HOST": os.environ.get("DB_HOST", ""),
            "PORT": os.environ.get("DB_PORT", ""),
            "USER": os.environ.get("DB_USER", ""),
            "PASSWORD": os.environ.get("DB_PASSWORD", ""),
        }
    }

# settings-begin
INSTALLED_APPS = ["timeoutmgr.contrib.django", "orders"]

TIMEOUTMGR = {"endpoint": "shop", "features": ["timeout-manager"]}
# settings-end

# tasks-begin
INSTALLED_APPS += ["django_tasks", "timeoutmgr.contrib.django_tasks"]

TASKS = {"default": {"BACKEND": "timeoutmgr.contrib.django_tasks.backend.TasksBackend"}}
# tasks-end

REMINDER_DELAY = timedelta(seconds=float(os.environ.get("REMINDER_SECONDS", 14 * 24 * 3600)))

SECRET_KEY = os.environ.get("SECRET_KEY", "for this example alone")
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "shop.urls"
USE_TZ = True
