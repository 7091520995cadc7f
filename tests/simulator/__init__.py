"""The deterministic simulator: the real pumps, poller and steps on simulated ports, by a seed.

Two or three nodes, each with the real ``Pump`` loops of both satellites, the real ``Poller`` loop
(turns in place of APScheduler's thread), ``Housekeeping`` and breakers; a client on each that
sends, cancels, reschedules, clears sagas and orders dispatches. Broker, storage and clocks are
simulated; there is one thread, no real time and no I/O, and one ``random.Random(seed)`` decides
all. ``faults.py`` is the table of faults, ``ledger.py`` judges every event.

The simulated store keeps the rules of ``tests/model`` (not the memory store's: claims there are
sets of keys, and die with the process), with row locks or with a fence as the seed has it. The
mode is ``receive_only``. The final consumer stands at the door of its queue: a delivery counts when
the broker takes the message. Turns are nested, not switched (``timeline.py``): of two turns
that overlap, the later one ends first; every order of a few steps is the model's part.

    python -m tests.simulator --seconds 60 --seed 1
    python -m tests.simulator --seed 17 --log
"""
