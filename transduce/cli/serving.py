"""The command that serves models over HTTP."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from transduce.cli.arguments import Opening, opens_models
from transduce.core.errors import ConfigError, UserError, nearest, needed_by
from transduce.core.untrusted import read_small
from transduce.text.languages import pair_of

LARGEST_KEYS = 1 << 20  # bytes of the file of API keys


@opens_models
def serve(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[LANGUAGES=]MODEL|KEY=VALUE",
            help="Folders of models, default the shipped one; limits such as seconds=10.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all of this machine's.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 for a free one.")] = 5000,
    api_keys: Annotated[
        Path | None, typer.Option(help="File of API keys, one a line, that requests must have; SIGHUP reloads it.")
    ] = None,
    *,
    opening: Opening,
) -> None:
    """Translate over HTTP: LibreTranslate's and DeepL's protocols and our own, a web page, requests batched together.

    Examples:

        transduce serve

        transduce serve runs/demo/model

        transduce serve en-de=models/small de-en=models/back --port 8080 characters=10000

        transduce serve models/everyday --host 0.0.0.0 --api-keys keys.txt requests_a_minute=60 pivot=en
    """
    with needed_by("transduce serve", extra="serve"):
        from transduce.server.application import application
        from transduce.server.models import open_models
        from transduce.server.running import LOCAL, serve
        from transduce.server.settings import Settings
    from transduce.core import config as configs
    from transduce.translate.model_folder import shipped

    names, old_names = [field.name for field in dataclasses.fields(Settings)], configs.old_names(Settings)
    folders, overrides = split_settings(words or (), names, list(old_names))
    # The shipped model translates English to and from the others, which reach each other through it.
    settings = configs.load(Settings, None, overrides, defaults=[] if folders else [["pivot=en"]])
    if api_keys is not None:
        settings = dataclasses.replace(settings, keys=_keys(api_keys))
    if host in LOCAL and not settings.hosts:
        settings = dataclasses.replace(settings, hosts=LOCAL)
    with _hangups_noted() as hangups:
        models = open_models(folders or [str(shipped())], opening.load)
        read_keys = None if api_keys is None else lambda: _keys(api_keys)
        serve(application(models, settings), host, port, read_keys, hangups)


@contextmanager
def _hangups_noted() -> Iterator[list[int]]:
    """Record SIGHUP, which would end the process while models are loaded, for the server to answer."""
    noted = list[int]()
    before = signal.signal(signal.SIGHUP, lambda number, frame: noted.append(number))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGHUP, before)


def split_settings(
    words: Sequence[str], names: Sequence[str], old_names: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Split words into models and settings of the server; an unknown setting is an error that names the nearest."""
    folders, settings, accepted = list[str](), list[str](), {*names, *old_names}
    for word in words:
        key, sign, _ = word.partition("=")
        names_pair = any(pair_of(pair) for pair in key.split(","))
        if sign and key not in accepted and not names_pair and not Path(word).exists():
            raise ConfigError(
                f"'{word}': no such setting{nearest(key, names)}; settings here: {', '.join(names)};"
                " models are given as FOLDER or en-de=FOLDER"
            )
        (settings if sign and key in accepted else folders).append(word)
    return folders, settings


def _keys(path: Path) -> tuple[str, ...]:
    """Read API keys, one a line; blank lines and those that begin with # are left out."""
    try:
        lines = read_small(path, LARGEST_KEYS).split(b"\n")
    except (OSError, ValueError) as error:  # a pipe or a device never ends, and the server would wait for it
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"{path}: the file of API keys cannot be read: {why}; give --api-keys a file with one key a line"
        ) from None
    numbered = [(number, line.strip()) for number, line in enumerate(lines, 1) if not line.startswith(b"#")]
    keys = tuple(_key(line, f"{path}:{number}") for number, line in numbered if line)
    if not keys:
        raise UserError(f"{path}: no API key in it; give one a line, or leave out --api-keys")
    return keys


def _key(line: bytes, where: str) -> str:
    """Parse the key of a line, as a header can carry it."""
    from transduce.server.settings import check_keys

    key = line.decode("ascii", "replace")
    try:
        check_keys([key])
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}; give one key a line, and comments on lines of their own") from None
    return key
