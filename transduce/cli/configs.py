"""Commands that look at configurations."""

from __future__ import annotations

import typer

from transduce import config as configs
from transduce.cli.arguments import Words, split_words

config = typer.Typer(no_args_is_help=True, help="Look at configurations.")


@config.command()
def show(words: Words = None) -> None:
    """Print the whole config that a file or preset and overrides give, with the place each value came from.

    Examples:

        transduce config show base model.decoder.layers=2
    """
    from transduce.experiment import Config

    layers = configs.layers(Config, *split_words(words))
    print(configs.dump(configs.resolve(Config, layers), layers.origins), end="")
