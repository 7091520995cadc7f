"""The page of behaviours: each numbered behaviour, and the tests that hold it.

``python -m tests.behaviours`` writes docs/reference/behaviours.md; tests/test_behaviours.py checks
that the page is up to date, that each of the 141 numbers is held by a test or named as different or
not built, and that no test claims another number.
"""

import ast
from collections import defaultdict
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PAGE: Final = ROOT / "docs" / "reference" / "behaviours.md"

BEHAVIOURS: Final = {
    1: "The timeout manager runs on a receiving endpoint with a capable persistence",
    2: "Send-only endpoint: the feature is refused with its sentence, a delayed send raises",
    3: "External manager: no satellites here, delayed sends go to that address",
    4: "A transport with native delay needs no satellites for new sends",
    5: "Persistence without timeout storage fails the start and says how to disable",
    6: "Feature disabled: a delayed send raises before anything is sent",
    7: "A second manager address raises",
    8: "A negative delay is rejected, zero is accepted",
    9: "Delay and deliver-at exclude each other",
    10: "Options tell what was set, or None",
    11: "Options can be used for many sends",
    12: "A send without options is never delayed by its surroundings",
    13: "Delay together with a time to be received is rejected and names the type",
    14: "A delay is for one destination only",
    15: "Aware times become UTC, naive ones are rejected",
    16: "Negative outage times and non-positive settings are rejected",
    17: "Header names and time format of the wire",
    18: "The time format round-trips to the microsecond, malformed text raises",
    19: "Expire is the given instant, or now plus the delay",
    20: "Routing headers are removed on delivery, deliver-at is kept",
    21: "Unicode header names and values survive store and dispatch",
    22: "The message id is kept on dispatch, also by repeats",
    23: "TimeSent is kept, dispatched-at is added",
    24: "A future timeout is stored with destination, body, headers, saga and owner",
    25: "What is due already goes on at once",
    26: "Nothing is ever sent early",
    27: "A missing due time goes to the error queue with its sentence",
    28: "No destination: the reply address; none at all is rejected when stored",
    29: "A malformed saga id is rejected without a partial write",
    30: "Clearing touches one saga only; an empty id is rejected",
    31: "A cancel that overtakes its timeout wins",
    32: "Storage down: nothing leaves the queue, nothing is lost",
    33: "Without transactions the first failure goes to the error queue",
    34: "A redelivered store message makes no second timeout",
    35: "Oversized bodies, headers and destinations are errors, nothing is truncated",
    36: "Nothing stored, nothing sent; the next look is one interval away",
    37: "The next look is at the next due time, or one interval away",
    38: "An earlier timeout wakes the poller",
    39: "A later timeout causes no query",
    40: "A timeout registered during a poll is not lost",
    41: "The poller is woken after the commit, never by a rollback",
    42: "A woken poll dispatches once, then the cycle goes on",
    43: "A failing send mid-chunk retries what failed and repeats nothing that is claimed",
    44: "A row committed late with an old due time is found at the next poll",
    45: "More rows of one instant than a page holds are all dispatched once",
    46: "Adds concurrent with polling: none skipped, none claimed twice",
    47: "Of many pollers, each id is handed out once per claim",
    48: "A claim that lapsed, or whose owner died, is offered again",
    49: "Overdue rows of any age are found",
    50: "Memory is bounded by settings, not by how much is due",
    51: "A stop mid-chunk is prompt and loses nothing",
    52: "A wait is between zero and one interval, however far a due time lies",
    53: "Rows inserted past the queue are found within one interval",
    54: "A stepped wall clock neither sends early nor stalls longer than one interval",
    55: "Due times are compared with the database's clock",
    56: "The poller outlives every error",
    57: "Found: sent, then removed",
    58: "Not found: acknowledged and counted",
    59: "A failed send keeps the row, and ends in the error queue after its attempts",
    60: "A removal that comes second is benign and counted",
    61: "A removal that fails leaves the message where the mode promises",
    62: "A kill between send and removal repeats under the same message id",
    63: "Exactly once where queue and store share one transaction",
    64: "A missing destination: whole message in the error queue, neighbours on time",
    65: "The error copy says where, when, why and by whom; oversize falls back to a minimum",
    66: "A control message for what was dispatched already is acknowledged",
    67: "The concurrency of satellites is what is configured",
    68: "A breaker is armed at the first failure and disarmed by a success",
    69: "It triggers after exactly the wait without a success",
    70: "It triggers once per outage, and again in the next",
    71: "Failures pause 1 s while armed, 10 s once triggered",
    72: "Storms of successes and failures leave a consistent state",
    73: "A failing trigger action is logged",
    74: "A rate breaker triggers once above its rate, a quiet window disarms it",
    75: "An outage that ends in time never triggers",
    76: "An endpoint starts while the storage is away",
    77: "An outage is noticed within the wait plus one poll",
    78: "The critical text; the hook gets error, exception and stop",
    79: "What is raised before the start is told once after it",
    80: "Hooks run off the raising thread; stop inside one does not deadlock",
    81: "The default action is configurable, and the text true to it",
    82: "A hook that raises is logged and stops nothing",
    83: "The store is set up before it is initialized, and set up with installers on only",
    84: "A store refuses a transaction mode that it cannot keep",
    85: "The oldest that is due is fetched, under a lock; what others hold is passed by",
    86: "Removing and counting tell whether a row was there",
    87: "What is due and in other hands makes no hot loop",
    88: "A thousand messages of one instant, in every mode: all stored, sent and handled once",
    89: "While one batch is sent the next is fetched",
    90: "Attempts are one and the retries, for storing and for sending; each is counted",
    91: "The error queue has a message before its row is removed; where it fails nothing is lost",
    92: "A failing row backs off, and those behind it flow",
    93: "Failing error handling trips its own breaker, with its own text",
    94: "Exactly once in one transaction, at least once otherwise",
    95: "Without an error queue nothing starts",
    96: "Routing and property headers never reach the receiver, and cannot be given",
    97: "A stop waits for what is in hand",
    98: "Any printable table name is quoted, a schema is a plain identifier",
    99: "A hundred thousand rounds leave nothing behind",
    100: "Dead letters are on by default, off with a time to be received; its own level wins",
    101: "What is to be delayed always uses the dead-letter queue",
    102: "A time to be received holds for its own message, also within a transaction",
    103: "The receiver discards what expired, with an allowance for clocks, or not at all",
    104: "Two dead-letter queues, the class as the reason, two timers, format names",
    105: "Names, arguments and bindings of all levels are written down, and others agree with them",
    106: "The routing key spells the delay in 28 bits, and nothing else is read as one",
    107: "More than 268,435,455 s is refused, never shifted",
    108: "Delays are rounded up, and count from when the message is written: never early",
    109: "A message enters at the level of its highest bit, confirmed",
    110: "A destination that does not exist is refused at the send; one that nobody bound is bound",
    111: "A destination gets its own messages, not those of a name that ends like it",
    112: "Dots, stars and hashes in names, UTF-8, 199 bytes: exact, or refused",
    113: "What has no queue when it is due is settled, and stops nobody",
    114: "What a delay left in the headers does not travel on: delayed again and again it arrives",
    115: "Declaring twice is fine, removing leaves nothing, other arguments are told",
    116: "A broker on which the levels would lose messages is refused",
    117: "Delayed messages move from other levels into ours whole; their own due time counts",
    118: "Without the feature a delay is refused, and nothing is declared",
    119: "Endpoints with native delays and with a timeout manager send delays to each other",
    120: "Due is inclusive: what is due now is handed out",
    121: "Microseconds survive every database",
    122: "Installing twice, also at once, is fine",
    123: "A missing or old schema is told at the start, with the command to run",
    124: "Claims use the (endpoint, due, id) key",
    125: "Concurrent add, claim, remove and cancel end without deadlock errors",
    126: "Schemas and prefixes keep endpoints apart",
    127: "Delayed retries: headers, 10/20/30 s, three of them, none after a day",
    128: "A delayed retry has the original body and headers; the incoming stays untouched",
    129: "Configured delayed retries that nothing can delay are refused at the start",
    130: "A preview tells count, nearest, farthest, destinations and problems, and changes nothing",
    131: "Any problem of any endpoint, and nothing is moved",
    132: "What is being moved is handed to nobody; a kill at every step loses and doubles nothing",
    133: "A run is gone on with on its own terms only, compared to the microsecond",
    134: "An abort puts back what is not at the target, also of a half-done batch",
    135: "Counts agree per batch and in total; the report is saved, secrets are not",
    136: "Due times are absolute: a move neither makes early nor, if it is done in time, late",
    137: "What the levels cannot hold so long is reported, and stays in the store",
    138: "List, count, show, cancel, reschedule, reroute and retry, each safe against a dispatch",
    139: "Metrics: pending, due, oldest, lateness, duplicates, breakers, clock offset, polls",
    140: "A canary timeout proves that an endpoint delivers; a late canary raises an alarm",
    141: "A purge at the start never touches the satellites' queues unless asked",
}

DIFFERENCES: Final = {
    1: "The feature is enabled explicitly: an endpoint that stores messages should say so.",
    4: "Native delays are a feature of their own. A timeout manager beside them only drains, "
    "unless fallback_to_store says otherwise.",
    14: "There is no publish in this product; every send names one destination.",
    25: "In `transaction_scope` straight on within the receive transaction; in the other modes it "
    "is stored and the poller woken at once, so that tombstone and claim hold for it too.",
    27: "At the first attempt: no retry can mend it.",
    29: "A saga id is any printable text up to 200 characters, not only a GUID.",
    31: "By id a cancel wins even before its timeout arrived. Clearing a saga goes by the order of "
    "the queue; of a message that another consumer has in hand the time of sending decides.",
    32: "The satellite stops consuming and messages wait in `.Timeouts`; five attempts and the "
    "error queue are for errors of one message.",
    54: "Waits are monotonic; a watchdog polls when the wall clock was set back.",
    55: "The sender stamps an absolute due time, by the clock of the database that holds the queue "
    "or the session, and otherwise by its own; the offset is measured and "
    "exported, more than 30 s of it is a critical error.",
    60: "The classic raises `concurrently processed` into the error queue.",
    83: "The classic's code initializes it first.",
    90: "An outage of broker or storage is no attempt. The classic made one more, or one less.",
    91: "The classic removed the row first.",
    96: "There are no dispatch properties: those of foreign senders are dropped.",
    100: "For endpoints that enable dead-letter queues; without them the error queue is all.",
    101: "Of its way to the timeout manager; once stored, its own level counts.",
    102: "The classic rejects it, since MSMQ gives all of a transaction the first one's limit.",
    105: "Our own levels are not the classic's: alternate exchanges, a millisecond more of life in "
    "each, and eighths of a second. The classic's names have the classic's arguments.",
    106: "An empty name is refused; what is due already has no bits.",
    108: "To the next eighth of a second in levels of our names, to the next second in others'.",
    111: "With bindings of 28 words and the name. What others bind by a suffix they still get.",
    113: "The classic keeps it in the last level, which stops for all after 32 of them.",
    132: "A batch is hidden when its turn comes, not all at the start: until then the source goes "
    "on delivering and cancelling, and nothing gets late by waiting. Into a queue a batch that a "
    "crash interrupted is sent once more, under the same ids.",
    134: "A queue cannot be asked what it has: of a batch that may have been sent there, an abort "
    "sends the rest.",
    117: "A message without a due time or a destination stays in its level, and the run names it: "
    "there is no poison queue.",
    141: "No queue is purged at a start but by a flag of the command line, and never while a "
    "process of the endpoint is alive.",
    64: "The copy in the error queue is the whole message, and FailedQ its destination, so that a "
    "retry sends it there.",
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
        "What a timeout manager does, behaviour by behaviour, with the tests that hold each. The",
        "classic is NServiceBus with its timeout manager, its delayed deliveries and MSMQ; where",
        "this product differs from it on purpose, or a part is not built yet, the line says so.",
        "Each row that is built has a mutant in `tests/mutation/listed/`: a wrong change of the",
        "source that a test of the row must notice (`make mutants`).",
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
