"""Removal of the delay levels that no endpoint on a broker uses any more."""

from timeoutmgr.errors import FeatureRefused
from timeoutmgr.features.feature import FeatureSettings
from timeoutmgr.features.leftovers import KEEP_OR_FORCE, Uninstalled
from timeoutmgr.native.feature import native_feature


def uninstall_delay_levels(
    settings: FeatureSettings, *, force: bool = False, dry_run: bool = False
) -> Uninstalled:
    """Remove the delay levels, which all endpoints on the broker share that use these names.

    The queue of unroutable messages stays: levels of other names may send there. Raises
    FeatureRefused while anything is in the levels, unless *force*.
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
