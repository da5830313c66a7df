"""The launcher `ray`. Nothing of Ray is imported here."""

from importlib.util import find_spec

from trivet.config import Settings
from trivet.errors import ConfigError
from trivet.launching import Launcher
from trivet.plugins import hookimpl


@hookimpl
def trivet_launcher(settings: Settings) -> Launcher:
    """`ray`: needs the extra of the same name on every host. Raises: ConfigError where it is not here."""
    from trivet_supervisor.hosts.over_ray.bridge_process import NEEDS_RAY
    from trivet_supervisor.hosts.over_ray.hosts import RayHosts
    from trivet_supervisor.hosts.remote_launcher import RemoteLauncher

    if settings.launcher == "ray" and find_spec("ray") is None:
        raise ConfigError(NEEDS_RAY)
    hosts = RayHosts(settings.ray_address, settings.paths)
    return RemoteLauncher("ray", hosts, settings.paths, hosts)
