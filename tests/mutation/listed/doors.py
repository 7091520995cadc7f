"""Behaviours of settings, options, headers and the wire: refusals at the door."""

from __future__ import annotations

from tests.mutation.mutant import breaks

_FEATURE = "satellites/timeout_manager/feature.py"
_FEATURE_TESTS = "tests/satellites/test_feature.py"
_COMPOSER = "timeoutmgr/sender/composer.py"
_COMPOSER_TESTS = "tests/sender/test_outgoing.py"
_VALIDATION = "timeoutmgr/message/validation.py"
_VALIDATION_TESTS = "tests/message/test_validation.py"
_INSTANTS = "timeoutmgr/message/instants.py"
_INSTANTS_TESTS = "tests/message/test_instants.py"
_ASSEMBLY = "timeoutmgr/endpoint/assembly.py"
_ASSEMBLY_TESTS = "tests/endpoint/test_assembly.py"
_HANDLERS = "timeoutmgr/endpoint/handlers.py"
_HANDLERS_TESTS = "tests/endpoint/test_handlers.py"
_STORING = "satellites/timeout_manager/timeouts.py"
_STORING_TESTS = "tests/satellites/test_timeouts.py"

MUTANTS = (
    breaks(
        1,
        _FEATURE,
        ("Satellite(consumption=dispatching, concurrency=self.concurrency),", ""),
        f"{_FEATURE_TESTS}::test_enabled_it_consumes_its_two_queues_under_the_documented_names",
        name="nothing consumes the dispatcher's queue",
    ),
    breaks(
        2,
        _FEATURE,
        ("            not settings.send_only,\n", "            True,\n"),
        f"{_FEATURE_TESTS}::test_a_send_only_endpoint_is_refused_with_the_documented_sentence",
        name="a send-only endpoint has a timeout manager",
    ),
    breaks(
        3,
        _ASSEMBLY,
        ("partial(to_timeout_manager, address=address)", "lambda out, _: out"),
        f"{_ASSEMBLY_TESTS}::"
        "test_an_external_manager_gets_the_delayed_messages_and_no_satellite_is_made",
        name="a delayed send passes by the external manager",
    ),
    breaks(
        4,
        "timeoutmgr/features/parts.py",
        ("self.native_delays or self.stored_delays", "self.stored_delays or self.native_delays"),
        "tests/native/test_living_together.py::test_stored_timeouts_are_sent_on_time_and_new_delays_are_native",
        name="the store takes new delays before the broker",
    ),
    breaks(
        5,
        _FEATURE,
        ("\"config.disable_feature('timeout-manager')\"", '"a setting"'),
        f"{_FEATURE_TESTS}::"
        "test_a_persistence_without_timeouts_is_refused_with_the_documented_sentence",
        name="the refusal of a persistence hides how to disable the feature",
    ),
    breaks(
        6,
        _COMPOSER,
        ("raise DelayedDeliveryDisabled()", "return lambda outgoing, _due: outgoing"),
        f"{_COMPOSER_TESTS}::test_a_delay_without_a_capable_part_raises_the_documented_sentence",
        name="a delay that nothing keeps is sent at once",
    ),
    breaks(
        7,
        "timeoutmgr/endpoint/configuration.py",
        ("self._external != address", "not address"),
        "tests/endpoint/test_config.py::test_a_second_timeout_manager_address_is_refused",
        name="a second manager address replaces the first",
    ),
    breaks(
        8,
        _VALIDATION,
        ("    if micros < 0:\n", "    if micros <= 0:\n        micros = 1\n    if micros < 0:\n"),
        f"{_VALIDATION_TESTS}::test_a_negative_delay_is_refused",
        name="a negative delay is due at once",
    ),
    breaks(
        9,
        _VALIDATION,
        ("    if delay is not None and deliver_at is not None:\n", "    if False:\n"),
        f"{_VALIDATION_TESTS}::test_delay_and_instant_exclude_each_other",
        name="an instant wins over a delay",
    ),
    breaks(
        10,
        _COMPOSER,
        (
            "        return Composed(routed, destination, due, id_of,",
            "        return Composed(routed, destination, begin, id_of,",
        ),
        f"{_COMPOSER_TESTS}::test_send_returns_id_and_due_of_a_delayed_message",
        name="the sender is told another due time",
    ),
    breaks(
        11,
        _COMPOSER,
        (
            "self.new_id() if ids is None else ids.next(*about)",
            'f"{id(options)}" if ids is None else ids.next(*about)',
        ),
        f"{_COMPOSER_TESTS}::test_options_are_reusable_and_each_send_has_a_message_of_its_own",
        name="two sends with the same options have one id",
    ),
    breaks(
        12,
        _HANDLERS,
        (
            "        composed = self._composer.compose(\n",
            "        if headers.DELIVER_AT in self.headers:\n"
            "            chosen = replace(chosen, delay=1)\n"
            "        composed = self._composer.compose(\n",
        ),
        f"{_HANDLERS_TESTS}::test_a_send_from_the_handler_of_a_delayed_message_is_not_delayed",
        name="the handler of a delayed message delays its sends",
    ),
    breaks(
        13,
        _VALIDATION,
        ("if headers.TIME_TO_BE_RECEIVED in given:", "if headers.TIME_TO_BE_RECEIVED == given:"),
        f"{_VALIDATION_TESTS}::"
        "test_a_delayed_message_with_a_time_to_be_received_is_refused_by_its_type",
        name="a delayed message may expire on its way",
    ),
    breaks(
        15,
        _INSTANTS,
        (
            "return (at - _EPOCH) // MICROSECOND",
            "return (at.replace(tzinfo=UTC) - _EPOCH) // MICROSECOND",
        ),
        f"{_INSTANTS_TESTS}::test_an_offset_is_normalised_to_utc",
        name="the offset of an instant is dropped",
    ),
    breaks(
        16,
        _FEATURE,
        ("if self.concurrency < 1:", "if self.concurrency < 0:"),
        f"{_FEATURE_TESTS}::test_a_setting_out_of_range_is_refused_by_name",
        name="a timeout manager without threads",
    ),
    breaks(
        17,
        _INSTANTS,
        ("{_to_the_second(seconds)}:{micros:06} Z", "{_to_the_second(seconds)}.{micros:06} Z"),
        f"{_INSTANTS_TESTS}::test_the_wire_form_has_a_colon_before_six_digits_of_microseconds",
        name="a dot before the microseconds",
    ),
    breaks(
        18,
        _INSTANTS,
        ("int(text[20:26])", "int(text[20:23]) * 1000"),
        f"{_INSTANTS_TESTS}::test_an_instant_survives_the_wire_to_the_microsecond",
        name="an instant is read to the millisecond",
    ),
    breaks(
        19,
        _VALIDATION,
        ("check_due(to_micros(deliver_at))", "check_due(max(now, to_micros(deliver_at)))"),
        f"{_VALIDATION_TESTS}::test_an_instant_in_the_past_is_legal_and_kept",
        name="an instant in the past becomes now",
    ),
    breaks(
        20,
        _STORING,
        ("        del kept[name]\n", "        pass\n"),
        f"{_STORING_TESTS}::test_the_routing_headers_are_removed_and_deliver_at_is_kept",
        name="routing headers are delivered",
    ),
    breaks(
        21,
        "persistence/sql/rows.py",
        (
            '"headers": to_json(message.headers),',
            '"headers": to_json(message.headers).replace("\\\\u", "?"),',
        ),
        "tests/persistence/test_storing.py::test_a_stored_timeout_comes_back_whole[sqlite]",
        name="a header outside of ASCII is stored with marks for signs",
    ),
    breaks(
        23,
        "satellites/delivery/forwarder.py",
        ("headers.DISPATCHED_AT: at", "headers.TIME_SENT: at"),
        "tests/satellites/test_delivering.py::test_a_delivered_message_keeps_id_body_and_headers",
        name="a message is sent when it is dispatched",
    ),
    breaks(
        24,
        _STORING,
        ("saga_id=None if is_delayed_retry(message.headers) else _saga(message),", "saga_id=None,"),
        f"{_STORING_TESTS}::test_a_timeout_is_stored_with_all_that_it_came_with",
        name="a timeout is stored without its saga",
    ),
    breaks(
        25,
        _STORING,
        ("self.dispatch_now(due, work)", "pass"),
        f"{_STORING_TESTS}::test_transaction_scope_sends_a_due_message_straight_on_and_never_early",
        name="what is due already waits for a poll",
    ),
    breaks(
        27,
        _STORING,
        ("Non timeout message arrived at", "A message arrived at"),
        f"{_STORING_TESTS}::"
        "test_a_message_that_is_no_timeout_is_rejected_with_the_documented_sentence",
        name="a missing due time has another sentence",
    ),
    breaks(
        28,
        _STORING,
        ("message.headers.get(headers.REPLY_TO)\n", "endpoint\n"),
        f"{_STORING_TESTS}::test_without_a_destination_a_timeout_goes_to_the_reply_address",
        name="a timeout without a destination goes to the manager's endpoint",
    ),
    breaks(
        29,
        _STORING,
        ("if not 0 < len(saga) <= 200 or not saga.isprintable():", "if not saga:"),
        f"{_STORING_TESTS}::test_a_malformed_saga_id_is_rejected",
        name="a saga id of any length and any signs",
    ),
    breaks(
        30,
        "timeoutmgr/endpoint/timeouts.py",
        ("        if not saga_id:\n", "        if saga_id is None:\n"),
        "tests/endpoint/test_timeouts.py::"
        "test_an_empty_saga_id_is_refused_with_the_documented_sentence",
        name="an empty saga id is ordered to be cleared",
    ),
    breaks(
        33,
        "timeoutmgr/transport/pump.py",
        (
            "            return Recovery.MOVE_TO_ERROR\n        now =",
            "            pass\n        now =",
        ),
        "tests/transport/test_pump_failures.py::"
        "test_in_mode_none_the_first_failure_goes_to_the_error_queue",
        name="a message that is gone from its queue is tried again",
    ),
    breaks(
        35,
        _VALIDATION,
        ("    if len(body) > limits.max_body:\n", "    if len(body) > 2 * limits.max_body:\n"),
        f"{_VALIDATION_TESTS}::test_a_body_over_the_limit_is_refused_and_not_cut",
        name="a body of up to twice the limit passes",
    ),
    breaks(
        128,
        _HANDLERS,
        ("replace(message, headers=again)", 'replace(message, headers=again, body=b"")'),
        f"{_HANDLERS_TESTS}::test_a_delayed_retry_carries_the_original_body_headers_and_id",
        name="a delayed retry has no body",
    ),
)
