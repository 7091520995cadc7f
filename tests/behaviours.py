"""The page of behaviours: each numbered behaviour, and the tests that check it.

``python -m tests.behaviours`` writes docs/reference/behaviours.md; tests/test_behaviours.py checks
that the page is up to date, that each of the 141 behaviours has a test or a note why it has none,
and that no test claims another number.
"""

import ast
from collections import defaultdict
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "reference" / "behaviours.md"

BEHAVIOURS: Final = {
    1: "The timeout manager runs on a receiving endpoint whose persistence supports it",
    2: "On a send-only endpoint the feature is refused with its text, and a delayed send raises",
    3: "With an external manager, the endpoint has no satellites, and sends delayed messages there",
    4: "A transport with native delay needs no satellites for new sends",
    5: "A persistence without timeouts fails the start, with the way to disable the feature",
    6: "If the feature is disabled, a delayed send raises before anything is sent",
    7: "A second address of a timeout manager raises",
    8: "A negative delay is rejected, and zero is accepted",
    9: "Delay and deliver-at exclude each other",
    10: "Options show the values that were set, or None",
    11: "Options can be used for several sends",
    12: "The context of a send never delays it",
    13: "A delay with a time to be received is rejected, and the error names the message type",
    14: "A delay applies to one destination only",
    15: "Aware times become UTC, and naive times are rejected",
    16: "Negative outage times and non-positive settings are rejected",
    17: "Header names and the time format match the wire format",
    18: "The time format round-trips to the microsecond, and malformed text raises",
    19: "The header Expire is the given instant, or now plus the delay",
    20: "Routing headers are removed on delivery, and DeliverAt is kept",
    21: "Unicode header names and values survive store and dispatch",
    22: "A dispatch keeps the message id, and so does a repeat",
    23: "TimeSent is kept, and DispatchedAt is added",
    24: "A future timeout is stored with destination, body, headers, saga and owner",
    25: "A message that is already due is sent at once",
    26: "No message is ever early",
    27: "A message without a due time goes to the error queue, with its text",
    28: "Without a destination, the reply address counts; without both, the message is rejected",
    29: "A malformed saga id is rejected without a partial write",
    30: "Clearing affects one saga only; an empty saga id is rejected",
    31: "A cancel that overtakes its timeout wins",
    32: "If the storage is down, no message leaves its queue, and none is lost",
    33: "In mode none, a message goes to the error queue at its first failure",
    34: "A redelivered store message creates no second timeout",
    35: "Oversized bodies, headers and destinations are errors, and nothing is truncated",
    36: "If nothing is stored, nothing is sent, and the next poll is one interval away",
    37: "The next poll is at the next due time, or one interval away",
    38: "An earlier timeout wakes the poller",
    39: "A later timeout causes no query",
    40: "A timeout registered during a poll is not lost",
    41: "The poller is woken after the commit, never by a rollback",
    42: "A woken poll dispatches once, and then the normal cycle continues",
    43: "If a send fails within a chunk, it is tried again, and no claimed timeout is repeated",
    44: "A row committed late with an old due time is found at the next poll",
    45: "If one instant has more rows than a page holds, each is dispatched once",
    46: "If rows are added during polls, none is skipped and none is claimed twice",
    47: "If several pollers compete, each id is claimed once",
    48: "Timeouts of a claim that expired, or whose owner died, can be claimed again",
    49: "Overdue rows of any age are found",
    50: "Settings bound the memory, however many timeouts are due",
    51: "A stop within a chunk is prompt, and loses nothing",
    52: "A wait is between zero and one interval, however far away the due time is",
    53: "Rows that were inserted without the queue are found within one interval",
    54: "If the wall clock is set, nothing is early, and nothing waits longer than one interval",
    55: "Due times are compared with the database's clock",
    56: "The poller survives every error",
    57: "A timeout that is found is sent, and then removed",
    58: "If a timeout is not found, its order is acknowledged and counted",
    59: "A failed send keeps the row; after its attempts the message goes to the error queue",
    60: "A second removal of a row is harmless, and is counted",
    61: "If a removal fails, the message stays where the transaction mode promises",
    62: "A kill between send and removal repeats under the same message id",
    63: "Delivery is exactly once if queue and store share one transaction",
    64: "If a destination is missing, the error queue has the message, and others are on time",
    65: "The error copy states place, time, cause and process; if it is too large, it is reduced",
    66: "A control message for a dispatched timeout is acknowledged",
    67: "Satellites have the configured concurrency",
    68: "A breaker is armed at the first failure and disarmed by a success",
    69: "A breaker triggers exactly after its wait without a success",
    70: "A breaker triggers once in each outage",
    71: "After a failure, a breaker pauses 1 s while it is armed, and 10 s once it has triggered",
    72: "Many fast successes and failures leave the state of a breaker consistent",
    73: "A failing trigger action is logged",
    74: "A rate breaker triggers once above its rate, and a quiet window disarms it",
    75: "An outage that ends before the limit never triggers a breaker",
    76: "An endpoint starts while the storage is away",
    77: "An outage is noticed within the wait plus one poll",
    78: "A critical error has its documented text; its hook gets error, exception and stop",
    79: "A critical error before the start is reported once after the start",
    80: "Hooks run on a separate thread, and stop() inside a hook does not deadlock",
    81: "The default action is configurable, and the text of the error matches it",
    82: "If a hook raises, the error is logged, and nothing stops",
    83: "A store is set up before it is initialized, and only if installers are on",
    84: "A store refuses a transaction mode that it cannot keep",
    85: "A fetch locks the oldest due message, and skips messages that others have locked",
    86: "Removals and counts report whether a row existed",
    87: "Due messages that other processes have locked cause no busy loop",
    88: "In each mode, a thousand messages of one instant are stored, sent and handled once",
    89: "While a batch is sent, the next batch is fetched",
    90: "Attempts are one plus the retries, for storing and for sending, and each is counted",
    91: "A message is in the error queue before its row is removed; if that fails, nothing is lost",
    92: "A failing row waits, and the rows behind it are sent",
    93: "If error handling itself fails, a separate breaker triggers, with its own text",
    94: "Delivery is exactly once in one transaction, and otherwise at least once",
    95: "Without an error queue, the endpoint does not start",
    96: "Routing and property headers never reach the receiver, and a sender cannot set them",
    97: "A stop waits for the messages that are being handled",
    98: "Table names may have any printable characters, and are quoted; a schema is an identifier",
    99: "A hundred thousand rounds leak nothing",
    100: "Dead letters are on, except with a time to be received; a message's own level wins",
    101: "A delayed message always asks for a dead letter",
    102: "A time to be received applies to its own message, also within a transaction",
    103: "The receiver discards expired messages, with an allowance for clocks, or not at all",
    104: "There are two dead-letter queues, classes as reasons, two timers, and format names",
    105: "Names, arguments and bindings of all levels are recorded, and match other programs",
    106: "The routing key has the delay in 28 bits, and other keys are not read as delays",
    107: "A delay above 268,435,455 s is refused, and never shifted",
    108: "A delay is rounded up, and counts from the write of the message: it is never early",
    109: "A message enters at the level of its highest bit, and is confirmed",
    110: "A send refuses a destination that does not exist, and binds an unbound destination",
    111: "A destination gets no message for a name that ends like its own name",
    112: "Names with dots, stars, hashes or UTF-8, up to 199 bytes, are exact, or refused",
    113: "A message whose queue is missing when it is due is settled, and blocks no other message",
    114: "Headers that a delay added are removed: a message can be delayed again and again",
    115: "Declaring twice is harmless, removing leaves nothing, and other arguments are reported",
    116: "A broker on which the levels would lose messages is refused",
    117: "Messages in other levels are moved into ours unchanged; their own due time counts",
    118: "Without the feature, a delay is refused, and nothing is declared",
    119: "Endpoints with native delays and with a timeout manager send delays to each other",
    120: "Due is inclusive: a timeout is claimed at its due time",
    121: "Microseconds survive every database",
    122: "Installing twice, even concurrently, is harmless",
    123: "A missing or old schema is reported at the start, with the command to run",
    124: "Claims use the (endpoint, due, id) key",
    125: "Concurrent add, claim, remove and cancel cause no deadlock errors",
    126: "Schemas and prefixes keep endpoints apart",
    127: "Delayed retries have their headers, wait 10/20/30 s, and end after three or after a day",
    128: "A delayed retry has the original body and headers; the received message stays unchanged",
    129: "Delayed retries are refused at the start if no part can delay them",
    130: "A preview shows count, nearest, farthest, destinations and problems, and changes nothing",
    131: "If any endpoint has a problem, nothing is moved",
    132: "Timeouts of a moving batch are not dispatched; a kill at any step loses and repeats none",
    133: "A run is continued only on its own terms, compared to the microsecond",
    134: "An abort returns timeouts that are not at the target, also of an unfinished batch",
    135: "Counts agree for each batch and in total; the report is saved, without secrets",
    136: "Due times are absolute: no move makes a message early, and a move in time none late",
    137: "Delays that are too long for the levels are reported, and stay in the store",
    138: "List, count, show, cancel, reschedule, reroute and retry are safe beside a dispatch",
    139: "Metrics exist for pending, due, oldest, lateness, duplicates, breakers, offset, polls",
    140: "A canary timeout proves that an endpoint delivers; a late canary raises an alarm",
    141: "A purge at the start leaves the satellites' queues, unless it is asked to empty them",
}

DIFFERENCES: Final = {
    1: "The feature is enabled explicitly: an endpoint that stores messages should say so.",
    4: "Native delays are a separate feature. A timeout manager beside them only sends its stored "
    "timeouts, unless fallback_to_store is set.",
    14: "This product has no publish; every send names one destination.",
    25: "In `transaction_scope` it is sent within the receive transaction. In the other modes it "
    "is stored, and the poller is woken at once, so that tombstone and claim apply to it too.",
    27: "At the first attempt: no retry can fix it.",
    29: "A saga id is any printable text up to 200 characters, not only a GUID.",
    31: "A cancel by id wins even before its timeout has arrived. Clearing a saga follows the "
    "order of the queue; for a message that another consumer is handling, the time of sending "
    "decides.",
    32: "The satellite stops consuming, and messages wait in `.Timeouts`; five attempts and the "
    "error queue are for errors of a single message.",
    54: "Waits use the monotonic clock; a watchdog polls if the wall clock was set back.",
    55: "The sender computes an absolute due time by the clock of the database that has the queue "
    "or the session, and otherwise by its own clock. The offset of the clocks is measured and "
    "exported; an offset above 30 s is a critical error.",
    60: "NServiceBus raises `concurrently processed` into the error queue.",
    83: "The code of NServiceBus initializes the store first.",
    90: "An outage of broker or storage is not an attempt. NServiceBus made one attempt more or "
    "one less.",
    91: "NServiceBus removed the row first.",
    96: "There are no dispatch properties: those of foreign senders are dropped.",
    100: "For endpoints that enable dead-letter queues; without them only the error queue is left.",
    101: "On its way to the timeout manager; once it is stored, its own level counts.",
    102: "NServiceBus rejects it, because MSMQ applies the limit of the first message of a "
    "transaction to all of them.",
    105: "Our own levels differ: they have alternate exchanges, keep a message a millisecond "
    "longer, and have eighths of a second. Levels with NServiceBus' names have its arguments.",
    106: "An empty name is refused; a message that is already due has no bits.",
    108: "To the next eighth of a second in levels with our names, to the next second in others.",
    111: "Our bindings have 28 words and the name. Bindings by suffix, which other programs make, "
    "still match such names.",
    113: "NServiceBus keeps it in the last level, which stops for all endpoints after 32 of them.",
    132: "A batch is hidden when it is moved, and not at the start: until then the source still "
    "delivers and cancels its timeouts, and no timeout is late because it waits. If a crash "
    "interrupts a batch into a queue, the batch is sent once more, under the same ids.",
    134: "A queue cannot report which messages it has: an abort completes the send of a batch that "
    "may have been sent there.",
    117: "A message without a due time or a destination stays in its level, and the run names it: "
    "there is no poison queue.",
    141: "A start purges a queue only if an option of the command line asks for it, and never "
    "while a process of the endpoint is alive.",
    64: "The copy in the error queue is the whole message, with its destination as FailedQ, so "
    "that a retry sends it there.",
}

WITHOUT_TEST: Final = frozenset({14})
"""Behaviours of parts that this product does not have: their lines say so."""


def marks() -> dict[int, list[str]]:
    """Return, for each behaviour, the tests that carry its mark, as ``file::test``."""
    found: dict[int, list[str]] = defaultdict(list)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "behaviour" not in text:
            continue
        for node in ast.parse(text).body:  # a test is a function of its module
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for number in _numbers(node):
                    found[number].append(f"{path.relative_to(ROOT)}::{node.name}")
    return {number: sorted(set(tests)) for number, tests in found.items()}


def _numbers(function: ast.FunctionDef) -> list[int]:
    return [
        argument.value
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call)
        and ast.unparse(decorator.func).endswith("mark.behaviour")
        for argument in decorator.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, int)
    ]


def page() -> str:
    """Return the text of docs/reference/behaviours.md."""
    held = marks()
    lines = [
        "# Behaviours",
        "",
        "The behaviours of a timeout manager, each with the tests that check it. NServiceBus, with",
        "its timeout manager, its delayed deliveries and MSMQ, defines them; a note says where",
        "this product differs on purpose. For each behaviour, `tests/mutation/listed/` has a",
        "mutant: a wrong change of the source that one of its tests must detect (`make mutants`).",
        "Generated by `make approve`, checked by `tests/test_behaviours.py`.",
        "",
    ]
    for number, sentence in BEHAVIOURS.items():
        lines.append(f"## {number}. {sentence}")
        lines.append("")
        if number in DIFFERENCES:
            lines += [f"*Deliberately different:* {DIFFERENCES[number]}", ""]
        lines += [f"- `{test}`" for test in held.get(number, [])]
        if number in held:
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
