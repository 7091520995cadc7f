"""Rows of docs/behaviours.md on native delays."""

from __future__ import annotations

from tests.mutation.mutant import breaks

_LEVELS = "timeoutmgr/native/levels.py"
_LEVELS_TESTS = "tests/native/test_levels.py"
_FEATURE_TESTS = "tests/native/test_feature.py"
_DELIVERY_TESTS = "tests/native/test_delivery.py"
_INFRASTRUCTURE = "timeoutmgr/native/infrastructure.py"

MUTANTS = (
    breaks(
        105,
        "timeoutmgr/native/names.py",
        ('"timeoutmgr.v1.delay-level-{:02}"', '"timeoutmgr.v1.delay-level-{:03}"'),
        "tests/native/test_topology.py::test_names_arguments_and_bindings_match_the_golden_file",
        name="levels have names of three digits",
    ),
    breaks(
        106,
        _LEVELS,
        ("seven[bits >> 14 & 127]", "seven[bits >> 15 & 127]"),
        f"{_LEVELS_TESTS}::test_the_key_spells_the_delay_and_its_highest_bit_is_the_first_level",
        name="a bit of the routing key is spelled twice",
    ),
    breaks(
        107,
        _LEVELS,
        ("    if count > MAX_SECONDS * parts:\n", "    if count > MAX_SECONDS * parts + 1:\n"),
        f"{_LEVELS_TESTS}::test_the_longest_delay_is_let_in_and_a_microsecond_more_is_not",
        name="a delay beyond the longest level is let in",
    ),
    breaks(
        108,
        _LEVELS,
        ("-((now - due) * parts // _SECOND)", "(due - now) * parts // _SECOND"),
        f"{_LEVELS_TESTS}::test_whole_seconds_are_rounded_up",
        name="the seconds of a level are rounded down",
    ),
    breaks(
        109,
        _LEVELS,
        ("bit_length() - 1, 0)", "bit_length() - 2, 0)"),
        f"{_LEVELS_TESTS}::test_the_key_spells_the_delay_and_its_highest_bit_is_the_first_level",
        name="a message enters the level below its own",
    ),
    breaks(
        110,
        "timeoutmgr/endpoint/assembly.py",
        (
            "features.missing_destinations or _missing_queues,",
            "_missing_queues,",
        ),
        f"{_DELIVERY_TESTS}::test_an_unbound_destination_is_bound_when_sent",
        name="a send binds no destination",
    ),
    breaks(
        111,
        _LEVELS,
        ("_ANY_DELAY + check_destination(destination)", '"#." + check_destination(destination)'),
        f"{_LEVELS_TESTS}::test_a_binding_matches_its_own_destination_and_no_other",
        name="a destination is bound by its suffix",
    ),
    breaks(
        112,
        _LEVELS,
        ('{"*", "#"}.isdisjoint', '{"*"}.isdisjoint'),
        f"{_LEVELS_TESTS}::test_a_name_with_a_wildcard_for_a_word_is_refused",
        name="a name may have a hash for a word",
    ),
    breaks(
        113,
        "satellites/delivery/unroutable.py",
        ("if key is None else key[1]", 'if key is None else key[1].rpartition(".")[2]'),
        "tests/satellites/test_unroutable.py::"
        "test_neighbours_are_parted_by_whether_their_queue_exists",
        name="an unroutable message is settled under half of its destination's name",
    ),
    breaks(
        114,
        "timeoutmgr/message/headers.py",
        ('        "x-death",\n', ""),
        f"{_DELIVERY_TESTS}::test_the_brokers_marks_of_a_delay_stay_behind",
        name="the broker's record of a delay travels on",
    ),
    breaks(
        115,
        "timeoutmgr/transport/amqp/topology.py",
        ("        channel.queue_delete(queue.name)\n", "        pass\n"),
        "tests/native/test_topology.py::"
        "test_declaring_twice_changes_nothing_and_removing_leaves_nothing",
        name="removed levels leave their queues",
    ),
    breaks(
        116,
        _INFRASTRUCTURE,
        ("version < OLDEST_FOR_QUORUM", "version < (3,)"),
        f"{_FEATURE_TESTS}::test_a_broker_on_which_levels_lose_is_refused",
        name="quorum levels on a broker that drops what they pass on",
    ),
    breaks(
        117,
        "timeoutmgr/migration/levels/waiting_message.py",
        ("    at = headers.get(names.DELIVER_AT)\n", "    at = None\n"),
        "tests/migration/test_reading_levels.py::test_an_absolute_instant_counts_before_a_sum_of_delays",
        name="the delay of a waiting message counts before its due time",
    ),
    breaks(
        118,
        "timeoutmgr/sender/composer.py",
        (
            "            raise DelayedDeliveryDisabled()\n",
            "            return lambda one, _: one\n",
        ),
        f"{_FEATURE_TESTS}::test_without_the_feature_a_delay_is_refused_and_nothing_is_declared",
        name="a delay is forgotten where the broker has no levels",
    ),
    breaks(
        119,
        _LEVELS,
        ("-((now - due) * parts // _SECOND)", "(due - now) * parts // _SECOND // 2"),
        "tests/native/test_living_together.py::"
        "test_endpoints_of_both_kinds_send_delays_to_each_other",
        name="the levels hold a message for half of its delay",
    ),
)
