"""A translation server: the APIs of LibreTranslate and DeepL and one of our own, over batches of all users' texts.

    from transduce.server import Served, Settings, application

    app = application([Served("demo", transduce.load("runs/demo/model"), (("en", "de"), ("de", "en")))])

Needs the extra `serve`; the models it serves need torch only where they are not converted.
"""

from __future__ import annotations

from transduce.server.application import application as application
from transduce.server.models import Served as Served
from transduce.server.settings import Settings as Settings
