"""/platform/v1: what console, command line and client library use, and nothing else.

The web server writes the desired state to the registry and wakes the supervisor, which makes it so.
"""

from trivet_web.api.management import (
    aliases,
    audit,
    bundles,
    checks,
    deployments,
    engine_batch,
    histograms,
    history,
    keys,
    logs,
    model_files,
    models,
    observations,
    plan,
    prefix_cache,
    pulls,
    requests,
    sessions,
    site_settings,
    usage,
    users,
    versions,
)

BLUEPRINTS = (
    models.blueprint,
    model_files.blueprint,
    versions.blueprint,
    aliases.blueprint,
    pulls.blueprint,
    requests.blueprint,
    bundles.blueprint,
    deployments.blueprint,
    observations.blueprint,
    history.blueprint,
    histograms.blueprint,
    engine_batch.blueprint,
    logs.blueprint,
    plan.blueprint,
    prefix_cache.blueprint,
    users.blueprint,
    sessions.blueprint,
    keys.blueprint,
    audit.blueprint,
    usage.blueprint,
    site_settings.blueprint,
    checks.blueprint,
)
