"""The database's failures as a transport tells them."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc

from timeoutmgr.database import Database
from timeoutmgr.database.failures import Failure, classify, unavailable
from timeoutmgr.errors import StorageUnavailable, TransportUnavailable


@contextmanager
def as_transport(database: Database) -> Iterator[None]:
    """Raise TransportUnavailable for an error by which the queues cannot be reached now."""
    try:
        yield
    except StorageUnavailable as error:
        raise TransportUnavailable(str(error)) from error
    except exc.SQLAlchemyError as error:
        # In a caller's transaction the error is not classified yet.
        if classify(error) is Failure.STATEMENT:
            raise
        raise TransportUnavailable(str(unavailable(error, database.describe()))) from error
