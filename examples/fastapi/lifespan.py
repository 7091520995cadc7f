"""The endpoint of the web process: open as long as the app runs, and a dependency of its paths."""

# lifespan-begin
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, Request
from shop import Base, configuration, engine
from starlette.concurrency import run_in_threadpool

from timeoutmgr import Endpoint


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    await run_in_threadpool(Base.metadata.create_all, engine)
    app.state.endpoint = Endpoint(configuration())
    yield
    await run_in_threadpool(app.state.endpoint.close)


def of_app(request: Request) -> Endpoint:
    endpoint: Endpoint = request.app.state.endpoint
    return endpoint


Timeouts = Annotated[Endpoint, Depends(of_app)]
# lifespan-end
