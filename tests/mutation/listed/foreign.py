"""Messages of other programs: where they may go, and that they arrive as sent."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

_AMQP = "timeoutmgr/transport/amqp/foreign.py"
_AMQP_TESTS = "tests/transport/test_amqp_foreign.py"
_CELERY = "tests/contrib/celery/test_delays.py"
_TASKS = "timeoutmgr/contrib/celery/tasks.py"
_DELAYS = "timeoutmgr/contrib/celery/delays.py"
_DOOR = "A stranger's message goes only where a message may go."
_TAKEOVER = "timeoutmgr/contrib/celery/takeover.py"
_RECEIVED_TESTS = "tests/contrib/celery/test_takeover.py"
_RECEIVED = "A delayed task that a worker receives is stored, and then acknowledged."
_ONE_TASK = "A redelivered task stores its retry once, and no retry of another run is lost."

_LABELS = "A cancel by label holds for what was sent before it, and labels end with their timeout."
_LABELS_TESTS = "tests/testing/test_conformance_stores.py::TestMemory"
_MOVES = (
    "tests/persistence/test_labels.py::"
    "test_labels_move_with_a_retry_a_reschedule_and_a_replacement[sqlite]"
)

MUTANTS = (
    Mutant(
        name="queues that a route declares are not asked about",
        promise=_DOOR,
        file="timeoutmgr/message/validation.py",
        before="        check_destination(declared.queue, limits)\n",
        after="        pass\n",
        tests=(
            "tests/message/test_foreign.py::"
            "test_a_route_declares_no_queue_into_which_no_message_may_go",
        ),
    ),
    Mutant(
        name="a foreign message may steer the broker by its headers",
        promise=_DOOR,
        file=_AMQP,
        before="        if str(name).lower() in _STEERING:\n",
        after="        if False:\n",
        tests=(f"{_AMQP_TESTS}::test_properties_that_steer_the_broker_are_refused",),
    ),
    Mutant(
        name="a property list that is cut off is sent",
        promise="A stranger's message closes no connection of ours.",
        file=_AMQP,
        before="        fits = _list_end(written) == len(written)\n",
        after="        fits = _list_end(written) > 0\n",
        tests=(f"{_AMQP_TESTS}::test_a_property_list_that_is_cut_off_is_refused",),
    ),
    Mutant(
        name="a route is called like a queue",
        promise=_DOOR,
        file="timeoutmgr/message/foreign.py",
        before='_OF_AN_EXCHANGE: Final = "exchange:"\n',
        after='_OF_AN_EXCHANGE: Final = ""\n',
        tests=(
            "tests/acceptance/test_foreign_messages.py::"
            "test_the_destinations_of_two_routes_differ[-a/b]",
        ),
    ),
    Mutant(
        name="rows with a route are moved inside the database",
        promise="A foreign message arrives as its own broker would deliver it.",
        file="timeoutmgr/transport/sql/queues.py",
        before="DISPATCHED_AT, RELATED_TO_TIMEOUT, ROUTE)\n",
        after="DISPATCHED_AT, RELATED_TO_TIMEOUT)\n",
        tests=(
            "tests/contrib/celery/test_delays.py::"
            "test_a_delayed_task_for_the_default_exchange_arrives_as_celery_sends_it[postgres]",
        ),
    ),
    Mutant(
        name="the number sign of a topic needs a word",
        promise="A route in the SQL queue leads where a broker's exchange leads.",
        file="timeoutmgr/transport/sql/foreign.py",
        before="matched = list(accumulate(matched, or_))\n",
        after="matched = [False, *accumulate(matched[:-1], or_)]\n",
        tests=("tests/transport/sql/test_foreign.py::test_a_topic_leads_by_words",),
    ),
    Mutant(
        name="a broker that is away holds back messages for our queues",
        promise="A destination that is away costs other destinations nothing.",
        file="timeoutmgr/transport/sql/split.py",
        before="        return self._start(outgoing, None, self._try_there)\n",
        after="        return self._start(outgoing, None, self._start_there)\n",
        tests=(
            "tests/acceptance/test_split_transport.py::"
            "test_a_broker_that_is_away_holds_foreign_messages_back_until_it_is_there"
            "[sql_sqlite+sqlite]",
        ),
    ),
    Mutant(
        name="the broker of destinations bears no marker",
        promise="Two brokers never take each other's messages out of one store.",
        file="timeoutmgr/transport/sql/split.py",
        before="return None if bearer is None else bearer.borne_marker(endpoint, expected)\n",
        after="return expected\n",
        tests=(
            "tests/acceptance/test_split_transport.py::"
            "test_a_store_with_another_broker_for_its_destinations_is_refused[sql_sqlite+sqlite]",
        ),
    ),
    Mutant(
        name="a foreign message that was moved keeps its first due time inside",
        promise="A task that is sent now runs now.",
        file="timeoutmgr/transport/foreign.py",
        before="    if name is None or due is None or from_wire(due) <= at:\n",
        after="    if True:\n",
        tests=(f"{_CELERY}::test_a_task_that_is_sent_now_waits_for_no_eta[sqlite]",),
    ),
    Mutant(
        name="a retry is known by its task id alone",
        promise=_ONE_TASK,
        file=_TASKS,
        before='["retry", self.id, self.name, run, str(self.retries), str(retried_eta)]',
        after='["retry", self.id, self.name, str(self.retries), str(retried_eta)]',
        tests=(f"{_CELERY}::test_two_runs_of_one_id_keep_their_retries",),
    ),
    Mutant(
        name="a retry has an id of its own each time",
        promise=_ONE_TASK,
        file=_TASKS,
        before='["retry", self.id, self.name, run, str(self.retries), str(retried_eta)]',
        after='["retry", self.id, uuid.uuid4().hex]',
        tests=(f"{_CELERY}::test_a_retry_of_a_redelivered_task_is_stored_once",),
    ),
    Mutant(
        name="a retry after one that set its number back is taken for it",
        promise=_ONE_TASK,
        file=_TASKS,
        before='["retry", self.id, self.name, run, str(self.retries), str(retried_eta)]',
        after='["retry", self.id, self.name, run, str(self.retries)]',
        tests=(f"{_CELERY}::test_a_task_that_sets_its_retries_back_keeps_each_of_its_retries",),
    ),
    Mutant(
        name="a task inside a transaction is stored outside",
        promise="A task inside a transaction exists if and only if that commits.",
        file=_DELAYS,
        before="        session = self._inside.get()\n        gathered",
        after="        session = None\n        gathered",
        tests=(
            f"{_CELERY}::test_a_task_inside_a_transaction_exists_if_and_only_if_it_commits"
            "[delayed-postgres]",
        ),
    ),
    Mutant(
        name="a revoke broadcasts and cancels nothing",
        promise="A revoked task is removed for good.",
        file=_DELAYS,
        before="            if answer is CancelResult.CANCELLED:\n",
        after="            if False:\n",
        tests=(
            "tests/contrib/celery/test_revoking.py::"
            "test_a_revoked_task_never_runs_and_its_state_is_revoked[sqlite]",
        ),
    ),
    Mutant(
        name="a revoke by stamps broadcasts and cancels nothing",
        promise="A revoked task is removed for good.",
        file=_DELAYS,
        before="        for label in labels_of_stamps(stamps):\n",
        after="        for label in ():\n",
        tests=(
            "tests/contrib/celery/test_revoking.py::"
            "test_stored_tasks_are_revoked_by_their_stamps[asked0]",
        ),
    ),
    Mutant(
        name="a retry ends with the block that it ends",
        promise="A retry is stored, whatever becomes of the block that it ends.",
        file=_DELAYS,
        before="        if task.retries:\n",
        after="        if False:\n",
        tests=(f"{_CELERY}::test_a_retry_that_ends_a_batch_is_stored_once",),
    ),
    Mutant(
        name="a received task is acknowledged before it is stored",
        promise=_RECEIVED,
        file=_TAKEOVER,
        before=" and self._moves_in(message, body, about)",
        after="",
        tests=(f"{_RECEIVED_TESTS}::test_a_task_is_acknowledged_only_if_the_store_has_it",),
    ),
    Mutant(
        name="a received task that was dispatched already is acknowledged",
        promise=_RECEIVED,
        file=_DELAYS,
        before="        return sent[0].repeat is None or self._rests(sent[0])\n",
        after="        return True\n",
        tests=(f"{_RECEIVED_TESTS}::test_a_task_that_was_dispatched_is_left_to_celery[sqlite]",),
    ),
    Mutant(
        name="a received task is known by its task id alone",
        promise=_RECEIVED,
        file=_TASKS,
        before='json.dumps(["moved", self.id, queue, content])',
        after='json.dumps(["moved", self.id, queue])',
        tests=(f"{_RECEIVED_TESTS}::test_a_used_id_with_other_arguments_is_another_task[sqlite]",),
    ),
    Mutant(
        name="a received task is the same in every queue",
        promise=_RECEIVED,
        file=_TASKS,
        before='json.dumps(["moved", self.id, queue, content])',
        after='json.dumps(["moved", self.id, content])',
        tests=(
            f"{_RECEIVED_TESTS}::"
            "test_each_copy_of_a_broadcast_is_moved_and_a_copy_that_comes_again_is_not[sqlite]",
        ),
    ),
    Mutant(
        name="a task of Django whose permit another task used has no permit",
        promise="Each task of Django keeps one message that is still to come.",
        file="timeoutmgr/contrib/django_tasks/handlers.py",
        before=".update(permit=urgent.permit)\n",
        after='.update(permit="")\n',
        tests=(
            "tests/contrib/test_django_tasks.py::"
            "test_the_most_urgent_task_runs_first_and_each_task_runs_once",
        ),
    ),
    Mutant(
        name="a rerouted foreign message is sent as a message of ours",
        promise="A foreign message arrives as its own broker would deliver it.",
        file="timeoutmgr/message/foreign.py",
        before="    if not is_rerouted or is_of_an_exchange(destination):\n",
        after="    if True:\n",
        tests=(
            "tests/acceptance/test_foreign_messages.py::"
            "test_a_rerouted_foreign_message_arrives_in_its_queue_as_the_default_exchange_delivers_it"
            "[sql_sqlite+sqlite]",
        ),
    ),
    Mutant(
        name="a cancel by label forgets messages that wait to be stored",
        promise=_LABELS,
        file="timeoutmgr/contracts/sagas.py",
        before="    names = [_BY_SENDING + label for label in labels_of(timeout.message)]\n",
        after="    names: list[str] = []\n",
        tests=(f"{_LABELS_TESTS}::test_a_cancel_holds_for_messages_that_wait_to_be_stored",),
    ),
    Mutant(
        name="a cancel by label reaches messages that are sent later",
        promise=_LABELS,
        file="timeoutmgr/contracts/sagas.py",
        before="        is_sent_before = timeout.created <= cleared.sent\n",
        after="        is_sent_before = True\n",
        tests=(f"{_LABELS_TESTS}::test_a_cancel_holds_for_messages_that_wait_to_be_stored",),
    ),
    Mutant(
        name="the place in the manager's queue is left out for labels",
        promise=_LABELS,
        file="satellites/timeout_manager/timeouts.py",
        before="has_sagas = has_sagas or _can_be_cleared(order)",
        after="has_sagas = has_sagas or order.saga_id is not None",
        tests=(
            "tests/acceptance/test_cancel_and_reschedule.py::"
            "test_a_cancel_by_label_holds_for_stored_messages_and_messages_on_their_way"
            "[sql_sqlite+sqlite]",
        ),
    ),
    Mutant(
        name="labels stay where their timeout was before a retry",
        promise=_LABELS,
        file="persistence/sql/dispatch/outcomes.py",
        before="        self._labels.move(connection, moved)\n",
        after="",
        tests=(_MOVES,),
    ),
    Mutant(
        name="labels outlive their timeout",
        promise=_LABELS,
        file="persistence/sql/labels.py",
        before="            execute_many(connection, self._remove, _keyed(rows))\n",
        after="            pass\n",
        tests=(_MOVES,),
    ),
    Mutant(
        name="rows with labels are moved inside the database",
        promise=_LABELS,
        file="persistence/sql/dispatch/in_database.py",
        before="            ~is_labelled(timeouts),\n",
        after="",
        tests=("tests/persistence/test_moving.py::test_rows_with_labels_are_left_to_be_sent",),
    ),
    Mutant(
        name="a cancel by label is not remembered",
        promise=_LABELS,
        file="persistence/sql/mass_cancel.py",
        before=(
            "        self._cleared.remember_cancel("
            "connection, order.memory, order.sent_until, order.channel)\n"
        ),
        after="",
        tests=(
            "tests/testing/test_conformance_stores.py::TestSqlite::"
            "test_a_cancel_holds_for_messages_that_wait_to_be_stored",
        ),
    ),
    Mutant(
        name="the first message by a route goes with others",
        promise="A stranger's message closes no connection of ours.",
        file="timeoutmgr/transport/amqp/session.py",
        before="        if not first:\n            return self.publish(publishings)\n",
        after="        if True:\n            return self.publish(publishings)\n",
        tests=(
            "tests/transport/test_routes.py::"
            "test_a_route_that_may_not_be_used_leaves_no_other_message_in_doubt",
        ),
    ),
    Mutant(
        name="a header with a number that no broker reads is sent",
        promise="A stranger's message closes no connection of ours.",
        file=_AMQP,
        before='    if kind in "fd" and not isfinite(',
        after='    if kind in "" and not isfinite(',
        tests=(
            "tests/transport/test_amqp_foreign.py::"
            "test_a_number_that_no_broker_reads_is_refused_at_the_door_and_before_a_send",
        ),
    ),
    Mutant(
        name="a migration takes messages of other programs to delay levels",
        promise="Beside delay levels a message of another program stays in the store.",
        file="persistence/sql/migration/source.py",
        before="if self._queues_only else []",
        after="if not self else []",
        tests=(
            "tests/migration/test_into_levels.py::"
            "test_a_message_of_another_program_stays_in_the_store[tasks]",
        ),
    ),
)
