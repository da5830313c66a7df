"""`trivet generate`: the command. Heavy imports happen when it runs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trivet.commands.connecting import given_settings, is_path, local_model
from trivet.commands.offline import DEFAULT_MAX_TOKENS, add_model_options, load
from trivet.commands.output import note
from trivet.counted import counted
from trivet.errors import ConfigError, TrivetError
from trivet.plugins import Command
from trivet.sampling_params import SamplingParams

if TYPE_CHECKING:
    from trivet_web.batch.forms import Form
    from trivet_web.batch.input_file import InputFile
    from trivet_web.batch.journal import Journal

SAMPLING_OPTIONS = ("max_tokens", "temperature", "top_p", "seed")
MAX_THREADS = 512
EXIT_SOME_FAILED = 1


def commands() -> list[Command]:
    """For the hook `trivet_commands`."""
    return [Command("generate", "answer a file of requests in this process", _add_arguments, _run)]


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_options(parser)
    parser.set_defaults(max_tokens=None)  # so that lines of OpenAI's form have their own defaults
    parser.add_argument(
        "-i",
        "--input",
        type=Path,
        required=True,
        metavar="IN.jsonl",
        help='OpenAI\'s batch lines, or lines of {"prompt": ...} or {"messages": ...}',
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="OUT.jsonl",
        help="appears when all lines are answered; until then, and if the run is ended, they are in "
        "OUT.jsonl.partial, from which the same command goes on",
    )
    parser.add_argument(
        "--served-model-name",
        action="append",
        default=[],
        metavar="NAME",
        help="the `model` of the lines, if it is not MODEL's own name (repeatable)",
    )


def _run(given: argparse.Namespace) -> int:
    from trivet_web.batch.input_file import scan
    from trivet_web.batch.journal import Journal

    batch = scan(given.input)
    if given.output.exists() and given.output.samefile(given.input):
        raise ConfigError(f"-o {given.output} is the input; name another file")
    model = local_model(given.model)
    sampling = {name: v for name in SAMPLING_OPTIONS if (v := getattr(given, name)) is not None}
    SamplingParams(**sampling).check()
    journal = Journal(given.output, _about(batch, given, model, sampling), batch.num_lines)
    try:
        if given.output.is_file() and not journal.tally.lines:
            note(f"{given.output} is there already: all lines are answered again, then it is replaced")
        if journal.tally.lines:
            note(f"going on: {journal.tally.lines} of {batch.num_lines} lines are in {journal.path}")
        if journal.tally.lines < batch.num_lines:
            _answer_all(batch, given, sampling, journal)
        journal.finish()
    except (KeyboardInterrupt, TrivetError):
        if journal.tally.lines:
            kept = f"{journal.tally.lines} of {batch.num_lines} lines are kept"
            note(f"stopped: {kept} in {journal.path}; the same command goes on")
        raise
    finally:
        journal.close()
    tally = journal.tally
    lines, tokens = counted(tally.lines, "line"), counted(tally.tokens, "token")
    note(f"{lines}, {tally.failed} failed, {tokens}: {given.output}")
    return EXIT_SOME_FAILED if tally.failed else 0


def _about(
    batch: InputFile, given: argparse.Namespace, model: Path, sampling: Mapping[str, Any]
) -> dict[str, str]:
    """What decides the results. Engine settings and the device do not: a run may go on with others.

    Raises: ConfigError where lines were added to the input of a run that is to go on.
    """
    from trivet_web.batch.input_file import sha256_of_start
    from trivet_web.batch.journal import begun_for

    about = {"model": str(model), "input": f"{batch.size_bytes} bytes with sha256 {batch.sha256}"}
    about |= {f"--{name.replace('_', '-')}": str(value) for name, value in sampling.items()}
    if given.served_model_name:
        about["--served-model-name"] = ", ".join(given.served_model_name)
    before = (begun_for(given.output) or {}).get("input", about["input"])
    old_bytes = int(before.partition(" ")[0])
    if old_bytes < batch.size_bytes and before.endswith(sha256_of_start(batch.path, old_bytes)):
        raise ConfigError(
            f"{given.input} has {batch.size_bytes - old_bytes} bytes more at its end than the run that is to "
            "go on began with; give the added lines a file and an output of their own, or delete "
            f"{given.output}.partial to start over"
        )
    return about


def _answer_all(
    batch: InputFile, given: argparse.Namespace, sampling: Mapping[str, Any], journal: Journal
) -> None:
    """Raises: EngineEnded, ConfigError; what was answered stands in the journal."""
    from trivet_web.batch.input_file import read_lines
    from trivet_web.batch.offline_site import OfflineSite
    from trivet_web.batch.progress import Progress
    from trivet_web.batch.run import run_batch

    with load(given) as llm:
        names = given.served_model_name or _names(given.model, llm.engine.files.name)
        # As many again as run at a time: one is always ready when another ends.
        num_threads = min(2 * llm.engine.placement.config.max_num_seqs, MAX_THREADS)
        site = OfflineSite(llm, names, num_threads, given_settings(given))
        progress = Progress(batch.num_lines, journal.tally, note)
        try:
            run_batch(
                site, _form(batch, names[0], sampling), read_lines(batch.path), journal, progress, num_threads
            )
        finally:
            progress.close()
            site.close()


def _names(model: str, files_name: str) -> list[str]:
    """As `trivet launch MODEL` would call it, and its files' own name."""
    return [files_name] if is_path(model) else [model.partition(":")[0], files_name]


def _form(batch: InputFile, model: str, sampling: Mapping[str, Any]) -> Form:
    from trivet_web.batch.forms import BatchForm, SimpleForm
    from trivet_web.batch.input_file import FormName

    if batch.form is FormName.BATCH:
        return BatchForm(model, sampling)
    return SimpleForm(model, sampling, DEFAULT_MAX_TOKENS)
