"""How properties are tried: a busy machine is no counter-example, and nothing is left behind."""

from hypothesis import settings

settings.register_profile("timeoutmgr", deadline=None, database=None)
settings.load_profile("timeoutmgr")
