"""Build script of the distribution that setup.cfg describes.

setup.cfg cannot search several source roots for packages, so this does; a list kept by hand
would leave new sub-packages out of the wheel without a word.
"""

import tempfile

from setuptools import find_packages, setup

SOURCE_ROOTS = ("platform", "backends", "model_registry", "supervisor", "web")
root_of = {package: root for root in SOURCE_ROOTS for package in find_packages(root)}

# A build folder that outlives the build would bring deleted modules back into the next wheel.
with tempfile.TemporaryDirectory() as scratch:
    setup(
        packages=sorted(root_of),
        package_dir={name: f"{root}/{name.replace('.', '/')}" for name, root in root_of.items()},
        options={"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}},
    )
