"""The feature NativeDelayedDelivery: RabbitMQ keeps delayed messages."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast

from timeoutmgr import plugins
from timeoutmgr.contracts import FollowsTopology
from timeoutmgr.errors import ConfigurationError, FeatureRefused, InvalidMessage
from timeoutmgr.features.feature import LAST, FeatureContext, FeatureSettings, Prerequisite
from timeoutmgr.features.leftovers import KEEP_OR_FORCE, Uninstalled, refuse_leftovers
from timeoutmgr.features.parts import FeatureParts, Satellite
from timeoutmgr.native.infrastructure import (
    DelayLevels,
    Destinations,
    delay_topology,
    unroutable_topology,
)
from timeoutmgr.native.levels import check_destination
from timeoutmgr.native.names import UNROUTABLE, NameSet, NativeRoute, name_set
from timeoutmgr.transport.pump import Consumption
from timeoutmgr.transport.settings import QueueType

_BATCH = 100


@dataclass(frozen=True, kw_only=True)
class NativeDelayedDelivery:
    """Feature that lets RabbitMQ keep delayed messages, in 28 levels of queues.

    *names* selects the names of the levels: ``timeoutmgr`` (our own), or to share them with other
    programs ``nservicebus-v2``, ``nservicebus-v1`` or ``celery``, the last with kombu's *prefix*.
    With NServiceBus' names the transport follows its conventional topology, unless the transport's
    ``routing_topology`` says ``direct``. *queue_type* None is the default type for the names;
    classic queues lose messages when the broker is killed, and need ``accept_loss``. With
    *fallback_to_store* a message that the levels cannot hold (less than a second, more than
    268,435,455 s, or ``cancellable=True``) goes to the store of an enabled TimeoutManager.
    """

    priority: int = field(default=LAST, init=False, repr=False)

    names: str = "timeoutmgr"
    prefix: str = ""
    queue_type: QueueType | None = None
    fallback_to_store: bool = False
    name: str = field(default="native-delayed-delivery", init=False)

    def __post_init__(self) -> None:
        """Check every value."""
        delay_topology(self.name_set, self.queue_type)

    @property
    def name_set(self) -> NameSet:
        """The names of the levels."""
        return name_set(self.names).prefixed(self.prefix)

    def levels(self, settings: FeatureSettings) -> DelayLevels:
        """Return the levels that an endpoint of these settings uses."""
        names = self.name_set
        return DelayLevels(
            transport=settings.transport,
            names=names,
            queue_type=self.queue_type or names.queue_types[0],
            bound=() if settings.send_only else (settings.input_queue,),
        )

    def prerequisites(self, settings: FeatureSettings) -> Iterable[Prerequisite]:
        """Return the conditions for a start."""
        others = {feature.name for feature in settings.features}
        yield Prerequisite(
            settings.transport.capabilities.name == "amqp",
            "Only RabbitMQ has the exchanges and queues that it takes. Use an amqp:// transport, "
            "or TimeoutManager, which works on every transport.",
        )
        yield Prerequisite.no_external_manager(settings)
        yield Prerequisite(
            settings.delayed_delivery is None,
            "A delayed message store is given to use_transport, and a message can be delayed by "
            "one of them only. Leave delayed_delivery out.",
        )
        yield Prerequisite(
            not self.fallback_to_store or "timeout-manager" in others,
            "fallback_to_store needs a store to fall back to. Enable TimeoutManager too, or leave "
            "it out.",
        )
        yield Prerequisite(
            self.levels(settings).queue_type != "classic" or settings.accept_loss,
            "Its levels are classic queues, which pass messages on at most once: a broker that is "
            "killed loses messages. Use quorum queues (names 'nservicebus-v2' in place of "
            "'nservicebus-v1'), or say accept_loss=True.",
        )
        yield Prerequisite(
            _can_be_bound(settings.name),
            f"The endpoint's own name {settings.name!r} has '*' or '#' for a word, so that its "
            "queue cannot be bound to receive its own messages alone. Choose another name.",
        )

    def set_up(self, context: FeatureContext) -> FeatureParts:
        """Return the route, the levels, and the satellite for unroutable messages."""
        settings = context.settings
        levels = self.levels(settings)
        names = levels.names
        if names.is_nservicebus and isinstance(context.transport, FollowsTopology):
            context.transport.follow_conventional_topology()
        drains = any(feature.name == "timeout-manager" for feature in settings.features)
        return FeatureParts(
            native_delays=NativeRoute(
                names=names,
                clock=context.clock,
                falls_back=self.fallback_to_store,
                stored=context.stored_delays,
            ),
            missing_destinations=Destinations(names, settings.name, settings.error_queue),
            installed=(InstalledLevels(levels, settings, drains),),
            levels=(unroutable_topology() + delay_topology(names, levels.queue_type)).queues,
            satellites=() if settings.send_only else (_unroutable(context),),
        )


@dataclass(frozen=True, slots=True)
class InstalledLevels:
    """The levels, and the check that no timeout manager is left behind."""

    levels: DelayLevels
    settings: FeatureSettings
    drains: bool
    """Whether a timeout manager runs too."""

    def install(self) -> None:
        """Declare missing levels; idempotent and safe to run concurrently."""
        self.levels.install()

    def ddl(self) -> str:
        """Return an empty text: a broker has no statements."""
        return ""

    def check(self) -> None:
        """Raise QueueMissing if levels are missing, FeatureRefused if messages are stored."""
        self.levels.check()
        if not self.drains and not self.settings.send_only:
            refuse_leftovers(self.settings)


def _unroutable(context: FeatureContext) -> Satellite:
    step: Any = plugins.load(plugins.PARTS, "unroutable")
    return Satellite(
        consumption=Consumption(
            name="Unroutable Message Processor",
            queue=UNROUTABLE,
            step=step(
                endpoint=context.settings.name,
                error_queue=context.settings.error_queue,
                limits=context.settings.limits,
                clock=context.clock,
                telemetry=context.telemetry,
                policy=context.delivery.forwarding,
            ),
            batch=_BATCH,
        )
    )


def _can_be_bound(name: str) -> bool:
    try:
        check_destination(name)
    except InvalidMessage:
        return False
    return True


def native_feature(settings: FeatureSettings) -> NativeDelayedDelivery:
    """Return the feature if *settings* enable it; otherwise raise ConfigurationError."""
    for feature in settings.features:
        if feature.name == "native-delayed-delivery":
            return cast(NativeDelayedDelivery, feature)
    raise ConfigurationError(
        f"endpoint {settings.name!r} has no native delayed delivery; enable "
        "NativeDelayedDelivery from timeoutmgr.native"
    )


# --- removal of the delay levels that no endpoint on a broker uses any more -------------------


def uninstall_delay_levels(
    settings: FeatureSettings, *, force: bool = False, dry_run: bool = False
) -> Uninstalled:
    """Remove the delay levels, which all endpoints with these names on the broker share.

    The queue of unroutable messages stays: levels with other names may send there. Raises
    FeatureRefused while a message is in the levels, unless *force*.
    """
    levels = native_feature(settings).levels(settings)
    counts = levels.counts()
    held = ", ".join(f"{count} in {name}" for name, count in counts.items() if count)
    if held and not force:
        raise FeatureRefused(
            f"the delay levels {levels.names.name!r} hold messages ({held}), perhaps of other "
            f"endpoints too; {KEEP_OR_FORCE}"
        )
    if not dry_run:
        levels.remove()
    return Uninstalled(queues=counts, tables="")
