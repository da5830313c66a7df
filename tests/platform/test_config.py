"""Settings: precedence, refusals that name the key, and paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from trivet.config import Paths, inherited_environment, load_settings, settings_to_environment, socket_address
from trivet.engine_settings import EngineSettings, parse_engine_settings
from trivet.errors import ConfigError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "trivet.toml").write_text('port = 9001\nhost = "::1"\n[backend.ascend]\nenv = {A = "b"}\n')
    return tmp_path


def test_command_line_beats_environment_beats_file(home: Path) -> None:
    environ = {"TRIVET_HOME": str(home), "TRIVET_PORT": "9002"}
    assert load_settings(environ={"TRIVET_HOME": str(home)}).port == 9001
    assert load_settings(environ=environ).port == 9002
    assert load_settings({"port": 9003}, environ).port == 9003
    assert load_settings({"port": None}, environ).port == 9002


def test_backend_sections_are_read(home: Path) -> None:
    assert load_settings({"home": str(home)}, {}).for_backend("ascend").env == {"A": "b"}


def test_an_unknown_key_is_refused_with_the_nearest_one(home: Path) -> None:
    (home / "trivet.toml").write_text("prot = 1\n")
    with pytest.raises(ConfigError, match=r"trivet\.toml: unknown key 'prot'; did you mean 'port'"):
        load_settings({"home": str(home)}, {})


def test_a_variable_that_is_nearly_a_settings_is_refused_and_others_are_not_looked_at(home: Path) -> None:
    environ = {"TRIVET_HOME": str(home), "TRIVET_KERNELS_DIR": "/x", "TRIVET_OF_SOMEBODY": "1"}
    load_settings(environ=environ)
    with pytest.raises(ConfigError, match="TRIVET_WEB_WORKER is no setting; did you mean TRIVET_WEB_WORKERS"):
        load_settings(environ={**environ, "TRIVET_WEB_WORKER": "1"})


def test_an_unknown_key_of_a_backend_is_refused_with_its_section(home: Path) -> None:
    (home / "trivet.toml").write_text('[backend.cpu]\npyton = "x"\n')
    with pytest.raises(ConfigError, match=r"\[backend\.cpu\]: unknown key 'pyton'; did you mean 'python'"):
        load_settings({"home": str(home)}, {})


def test_a_wrong_type_is_refused(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"port"):
        load_settings({"home": str(home)}, {"TRIVET_PORT": "many"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("port", "65536"),
        ("port", "-1"),
        ("log_level", "loud"),
        ("web_workers", "0"),
        ("web_threads", "0"),
        ("drain_timeout_s", "-1"),
        ("drain_timeout_s", "nan"),
        ("drain_timeout_s", "inf"),
        ("orphan_timeout_s", "0"),
        ("drain_timeout_s", "99999999999"),
        ("orphan_timeout_s", "99999999999"),
        ("pull_timeout_s", "99999999999"),
        ("retention_days", "99999999999"),
        ("web_workers", "10000000"),
        ("web_threads", "10000000"),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name_and_value(home: Path, key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key} is '?{value}.*it must be"):
        load_settings({"home": str(home)}, {f"TRIVET_{key.upper()}": value})


@pytest.mark.parametrize("line", ["backend = 5", "backend = []", "price = 1", 'price = "free"'])
def test_a_section_that_is_no_table_is_refused(home: Path, line: str) -> None:
    (home / "trivet.toml").write_text(line)
    kind = line.partition(" ")[0]
    with pytest.raises(ConfigError, match=rf"trivet.toml: {kind} is .*; it must be tables such as \[{kind}."):
        load_settings({"home": str(home)}, {})


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ('[price.smol]\nprompt = "free"', r"\[price.smol\]: prompt is 'free'; it must be a number$"),
        ("[backend.cuda]\nenv = 5", r"\[backend.cuda\]: env is 5; it must be a table of texts$"),
    ],
)
def test_a_value_of_another_type_is_told_with_its_table(home: Path, table: str, sentence: str) -> None:
    (home / "trivet.toml").write_text(table)
    with pytest.raises(ConfigError, match=sentence):
        load_settings({"home": str(home)}, {})


def test_ipv6_may_be_written_as_in_urls_and_no_host_is_none(home: Path) -> None:
    assert load_settings({"home": str(home), "host": "[::1]"}, {}).host == "::1"
    with pytest.raises(ConfigError, match="host is ''; it must be a name or an address"):
        load_settings({"home": str(home), "host": ""}, {})


def test_a_log_level_may_be_written_small(home: Path) -> None:
    assert load_settings({"home": str(home)}, {"TRIVET_LOG_LEVEL": "debug"}).log_level == "debug"


def test_a_broken_file_is_named(home: Path) -> None:
    (home / "trivet.toml").write_text("port = [")
    with pytest.raises(ConfigError, match=r"trivet\.toml cannot be read"):
        load_settings({"home": str(home)}, {})


def test_engine_settings_read_text_as_their_types() -> None:
    settings = parse_engine_settings(
        {"max_model_len": "512", "enable_prefix_caching": "false", "gpu_memory_utilization": "0.5"}
    )
    assert settings == EngineSettings(
        max_model_len=512, enable_prefix_caching=False, gpu_memory_utilization=0.5
    )
    assert parse_engine_settings(settings.to_text()) == settings


def test_options_of_a_backend_are_carried_by_their_prefix() -> None:
    settings = parse_engine_settings({"options.step_ms": "5", "max_num_seqs": "2"})
    assert settings.options == {"step_ms": "5"}
    assert settings.to_text() == {"options.step_ms": "5", "max_num_seqs": "2"}
    with pytest.raises(ConfigError, match=r"unknown key 'options'"):
        parse_engine_settings({"options": "x"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_model_len", "0"),
        ("max_num_seqs", "-1"),
        ("gpu_memory_utilization", "1.5"),
        ("num_gpu_blocks_override", "1"),
        ("block_size", "x"),
    ],
)
def test_engine_settings_out_of_range_are_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=key):
        parse_engine_settings({key: value})


def test_a_misspelt_engine_setting_names_the_right_one() -> None:
    with pytest.raises(ConfigError, match=r"'max_model_length'; did you mean 'max_model_len'"):
        parse_engine_settings({"max_model_length": "1"})


def test_the_run_folder_is_closed_to_others(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "home")
    paths.create()
    assert paths.run.stat().st_mode & 0o777 == 0o700


def test_a_home_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"home .*/file cannot be written: .*TRIVET_HOME"):
        Paths(tmp_path / "file").create()


def test_a_socket_path_longer_than_the_kernel_allows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"TRIVET_HOME"):
        socket_address(tmp_path / ("x" * 120))


def test_a_child_reads_the_settings_that_its_parent_had(home: Path) -> None:
    given = {
        "home": str(home),
        "port": 8123,
        "insecure": True,
        "drain_timeout_s": 2.5,
        "database_url": "x://y",
    }
    settings = load_settings(given, {})
    assert load_settings(environ=settings_to_environment(settings)) == settings
    assert settings.for_backend("ascend").env == {"A": "b"}, "read from the home, not from the environment"


def test_an_engine_inherits_nothing_of_ours_but_where_kernels_are() -> None:
    passed_on = {"PATH": "/bin", "TRIVET_KERNELS_DIR": "/opt/kernels"}
    ours = {"TRIVET_DATABASE_URL": "postgresql://user:secret@host/db", "TRIVET_HOME": "/x"}
    assert inherited_environment({**passed_on, **ours}) == passed_on


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("max_model_len", "abc", "a whole number, or none"),
        ("max_num_seqs", "1.5", "a whole number"),
        ("swap_space", "x", "a number"),
        ("enable_prefix_caching", "perhaps", "true or false"),
    ],
)
def test_an_engine_setting_of_the_wrong_type_is_told_in_our_words(key, value, wanted) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_engine_settings({key: value})
    assert str(caught.value) == f"engine settings: {key} is {value!r}; it must be {wanted}"


def test_a_setting_of_the_wrong_type_is_told_in_our_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"port is 'abc'; it must be a whole number$"):
        load_settings(environ={"TRIVET_HOME": str(tmp_path), "TRIVET_PORT": "abc"})


def test_cores_and_memory_of_a_backends_engines(tmp_path: Path) -> None:
    file = tmp_path / "trivet.toml"
    file.write_text('[backend.cpu]\ncpus = "0-2, 8"\nmemory_limit_gib = 1.5\n')
    backend = load_settings({"home": str(tmp_path)}, {}).for_backend("cpu")
    assert (backend.cpu_set(), backend.memory_limit_gib) == ({0, 1, 2, 8}, 1.5)
    assert load_settings({"home": str(tmp_path)}, {}).for_backend("cuda").cpu_set() is None
    for wrong in ('cpus = "3-1"', 'cpus = "all"', "memory_limit_gib = 0"):
        file.write_text(f"[backend.cpu]\n{wrong}\n")
        with pytest.raises(ConfigError, match=r"\[backend\.cpu\]: (cpus is '|memory_limit_gib is 0)"):
            load_settings({"home": str(tmp_path)}, {})


def test_a_proxy_is_a_setting_of_the_site_and_no_variable_of_a_shell(tmp_path: Path) -> None:
    environ = {"TRIVET_HOME": str(tmp_path), "HTTPS_PROXY": "http://shell:1", "https_proxy": "http://shell:1"}
    assert load_settings(environ=environ).source_proxy == ""
    proxy = "http://me:secret@proxy:3128"
    assert load_settings(environ={**environ, "TRIVET_SOURCE_PROXY": proxy}).source_proxy == proxy
    with pytest.raises(ConfigError, match="source_proxy is no address") as caught:
        load_settings(environ={**environ, "TRIVET_SOURCE_PROXY": "me:secret@proxy"})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("price", ["-1", "nan", "inf"])
def test_a_price_is_a_number_from_0_on(tmp_path: Path, price: str) -> None:
    (tmp_path / "trivet.toml").write_text(f"[price.m]\nprompt = {price}\n")
    with pytest.raises(ConfigError, match=r"\[price\.m\]: prices are numbers"):
        load_settings(environ={"TRIVET_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    "origins",
    ["*", "null", "app.example.com", "https://app.example.com/", "https://a.example,HTTPS://b.example"],
)
def test_origins_are_what_browsers_send(origins: str) -> None:
    with pytest.raises(ConfigError, match=r"cors_origins has .* with commas between"):
        load_settings(environ={"TRIVET_CORS_ORIGINS": origins})
    good = "https://a.example, http://localhost:3000"
    assert load_settings(environ={"TRIVET_CORS_ORIGINS": good}).cors_origins == good


@pytest.mark.parametrize("name", ["password", "sslpassword", "PASSWORD"])
def test_a_password_where_nothing_would_hide_it_is_refused_without_being_shown(name: str) -> None:
    url = f"postgresql+psycopg://db/trivet?user=trivet&{name}=s3cret"
    with pytest.raises(ConfigError, match="database_url has a password behind its") as caught:
        load_settings(environ={"TRIVET_DATABASE_URL": url})
    assert "s3cret" not in str(caught.value)
