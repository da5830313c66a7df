"""A site goes into one file and comes out of it the same."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from trivet.demo_model import find_demo_model

if TYPE_CHECKING:
    from conftest import Site


def test_a_site_goes_into_a_file_and_comes_out_of_it_the_same(site: Site, tmp_path: Path) -> None:
    other_file = tmp_path / "other.gguf"
    other_file.write_bytes(find_demo_model().read_bytes() + b"\0" * 32)
    site.serve()
    with site.client() as client:
        for path in (find_demo_model(), other_file, find_demo_model()):
            client.models.add(str(path), "smol")
        client.models.add(str(find_demo_model()), "gone")
        client.models.remove("gone")
        client.aliases.set("smol", "prod", 2)
        client.deployments.create("smol:1", name="helper", backend="null")
        client.deployments.create(
            "smol:prod", name="chat", backend="null", settings={"max_num_seqs": "4"}, fallback="helper"
        )
        key = client.keys.create("ci", models=["chat"], requests_per_minute=60)
        expires_at = datetime.now(UTC) + timedelta(seconds=1)
        client.keys.create("old", expires_at=expires_at)
    site.wait_for("the key has expired", lambda: datetime.now(UTC) > expires_at)
    file = tmp_path / "site.toml"
    exported = site.run("config", "export")
    assert exported.returncode == 0, exported.stderr
    file.write_text(exported.stdout)
    assert str(key.key) not in exported.stdout
    assert 'name = "old"' not in exported.stdout
    same = site.run("config", "diff", str(file))
    assert (same.returncode, same.stdout, same.stderr) == (0, "", "no difference\n")
    with tempfile.TemporaryDirectory(prefix="tv") as home:
        other = type(site)(Path(home))
        try:
            other.serve()
            differs = other.run_here("config", "diff", str(file))
            assert differs.returncode == 1
            assert "+ alias smol:prod is version 2" in differs.stdout
            refused = other.run_here("config", "apply", str(file))
            assert "give --yes" in refused.stderr
            assert other.run_here("config", "export").stdout != exported.stdout
            applied = other.run("config", "apply", str(file), "--yes")
            assert applied.returncode == 0, applied.stderr
            assert "key ci: " in applied.stdout
            assert other.run_here("config", "export").stdout == exported.stdout
            changed = exported.stdout.replace('max_num_seqs = "4"', 'max_num_seqs = "8"')
            file.write_text(changed.replace('"8"', "8"))  # as a person writes it
            assert "max_num_seqs" in other.run_here("config", "apply", str(file), "--yes").stdout
            assert other.run_here("config", "export").stdout == changed
            restricted = changed.replace("requests_per_minute = 60", "requests_per_minute = 6")
            file.write_text(restricted)
            stricter = other.run_here("config", "apply", str(file), "--yes").stdout
            assert "~ key ci: requests_per_minute 60 to 6" in stricter
            assert "key ci: sk-" not in stricter, "its secret is what it was"
            assert other.run_here("config", "export").stdout == restricted
            file.write_text(restricted.replace('name = "ci"', 'name = "new"\nuser = "nobody"'))
            ownerless = other.run_here("config", "apply", str(file), "--yes")
            assert "who does not exist here; first: trivet users add nobody" in ownerless.stderr
            assert other.run_here("config", "export").stdout == restricted
            wrong = '[[keys]]\nname = "{}"\nscopes = ["{}"]\n'
            keys = [("a", "infer"), ("b", "nosuch"), ("c", "infer")]
            file.write_text(restricted + "".join(wrong.format(*key) for key in keys))
            halfway = other.run_here("config", "apply", str(file), "--yes")
            assert halfway.returncode == 1
            assert "stopped at: + key b, with a new secret\n1 of 3 changes made" in halfway.stderr
            assert "key a: sk-" in halfway.stdout
            assert "+ key a" not in other.run_here("config", "diff", str(file)).stdout
            file.write_text('format = "trivet-config 1"\n')
            pruned = other.run_here("config", "apply", str(file), "--prune", "--yes")
            assert pruned.returncode == 0, pruned.stderr
            with other.client() as client:
                assert {one.desired for one in client.deployments.list()} == {"stopped"}
                assert client.aliases.list() == ()
            file.write_text("format = 1\n")
            assert "is no configuration of a site" in other.run_here("config", "diff", str(file)).stderr
            other.stop()
        finally:
            other.clean_up()


def test_a_deployment_is_of_the_version_at_that_place_of_the_file(site: Site, tmp_path: Path) -> None:
    """The file lists the versions in another order than the site has them."""
    other_file = tmp_path / "other.gguf"
    other_file.write_bytes(find_demo_model().read_bytes() + b"\0" * 32)
    site.serve()
    file = tmp_path / "site.toml"
    paths = [str(other_file), str(find_demo_model())]
    versions = ", ".join(f'{{source = "local", path = "{path}"}}' for path in paths)
    text = f"""format = "trivet-config 1"
[models.smol]
versions = [{versions}]
[deployments.m]
backend = "null"
"""
    with site.client() as client:
        for path in reversed(paths):
            client.models.add(path, "smol")
        client.deployments.create("smol:2", name="m", backend="null")
        file.write_text(text + 'model = "smol:1"\n')
        same = site.run_here("config", "diff", str(file))
        assert (same.returncode, same.stdout, same.stderr) == (0, "", "no difference\n")
        file.write_text(text + 'model = "smol:2"\n')
        applied = site.run_here("config", "apply", str(file), "--yes")
        assert applied.returncode == 0, applied.stderr
        assert client.deployments.get("m").version == 1
        assert site.run_here("config", "diff", str(file)).returncode == 0
