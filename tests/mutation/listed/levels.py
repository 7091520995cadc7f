"""Rows of the page of behaviours on native delays."""

from __future__ import annotations

from tests.mutation.mutant import breaks

_LEVELS = "timeoutmgr/native/levels.py"
_LEVELS_TESTS = "tests/native/test_levels.py"
_FEATURE_TESTS = "tests/native/test_feature.py"
_DELIVERY_TESTS = "tests/native/test_delivery.py"
_AMQP = "timeoutmgr/transport/amqp/"
_CONVENTIONAL_TESTS = "tests/native/test_conventional.py"
_EXCHANGE_TESTS = "tests/transport/test_exchanges.py"
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
            "        features.missing_destinations,\n",
            "        None,\n",
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
    breaks(
        109,
        _AMQP + "topology.py",
        ('return queue if self._known.get(queue, _NEVER)[0] else ""', 'return ""'),
        f"{_CONVENTIONAL_TESTS}::"
        "test_an_endpoint_sends_to_the_exchange_of_a_peer_at_once_and_delayed",
        name="a peer's exchange gets nothing that is not delayed",
    ),
    breaks(
        109,
        _AMQP + "session.py",
        ("topologies.bind_exchanges(channel, there, exchange, key_of)", "pass"),
        f"{_CONVENTIONAL_TESTS}::"
        "test_an_endpoint_sends_to_the_exchange_of_a_peer_at_once_and_delayed",
        name="a peer's exchange gets nothing that was delayed",
    ),
    breaks(
        110,
        _AMQP + "session.py",
        ("if result is SendResult.UNROUTABLE and (sent", "if not result and (sent"),
        f"{_EXCHANGE_TESTS}::test_a_message_whose_exchange_knows_no_queue_reaches_the_queue",
        name="an exchange without its queue keeps a message from the queue",
    ),
    breaks(
        111,
        _AMQP + "topology.py",
        ("AccessRefused):\n        return False", "AccessRefused):\n        return True"),
        f"{_EXCHANGE_TESTS}::test_an_exchange_of_another_kind_is_not_published_to",
        name="any exchange with the name of a queue counts as its exchange",
    ),
    breaks(
        114,
        "timeoutmgr/message/headers.py",
        ("        DELAY_IN_SECONDS.lower(),\n", ""),
        "tests/transport/test_amqp_messages.py::"
        "test_what_nservicebus_notes_about_a_delay_stays_behind",
        name="a past delay becomes text and travels on",
    ),
    breaks(
        119,
        _AMQP + "session.py",
        ("topologies.declare_own_exchanges(channel, names)", "pass"),
        f"{_CONVENTIONAL_TESTS}::test_each_own_queue_has_an_exchange_in_the_conventional_topology",
        name="a queue has no exchange for its conventional peers",
    ),
    breaks(
        119,
        "timeoutmgr/native/names.py",
        ("seconds = -((sent - due) // _SECOND)", "seconds = (due - sent) // _SECOND"),
        "tests/native/test_routes.py::"
        "test_a_delay_in_seconds_counts_from_time_sent_and_is_rounded_up",
        name="a delay for other programs' tools is rounded down",
    ),
    breaks(
        17,
        "timeoutmgr/message/headers.py",
        ("if name not in given and isinstance(", "if of != 'type' and isinstance("),
        "tests/transport/test_amqp_messages.py::test_properties_fill_the_headers_of_a_plain_sender",
        name="the type of a plain sender's message is not read",
    ),
)
