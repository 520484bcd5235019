"""Run eight published clients of LibreTranslate's and DeepL's protocols against our server.

    python benchmarks/clients.py en-de=models/small --environments FOLDER --install

Each package has an environment of its own in the folder (two are different versions of the same one);
`--install` makes the missing ones, with pip and npm. A client without an environment is reported as not installed.
The exit code is 1 if a client failed, or is not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@dataclass(frozen=True)
class Client:
    """A package, its environment, and a program that uses it: `URL`, `TEXT` and `EXPECTED` are its globals."""

    name: str
    environment: str
    packages: tuple[str, ...]
    program: str
    node: bool = False


LIBRE = """
from libretranslatepy import LibreTranslateAPI
api = LibreTranslateAPI(URL, "key")
assert api.translate(TEXT, "en", "de") == EXPECTED
assert api.detect(TEXT)[0]["language"] == "en"
"""
CLIENTS = (
    Client(
        "PyPI libretranslatepy 2.1.4",
        "libretranslatepy",
        ("libretranslatepy==2.1.4",),
        LIBRE + "assert {'en', 'de'} <= {one['code'] for one in api.languages()}\n",
    ),
    Client(
        "PyPI libretranslatepy 2.1.1",
        "libretranslatepy-old",
        ("libretranslatepy==2.1.1",),
        LIBRE
        + """
import urllib.error
try:
    api.languages()  # a POST, which LibreTranslate refuses too
except urllib.error.HTTPError as error:
    assert error.code == 405
else:
    raise AssertionError("POST /languages was answered")
""",
    ),
    Client(
        "PyPI translate 3.8.1",
        "translate",
        ("translate==3.8.1",),
        """
from translate import Translator
for language in ("en", "autodetect"):
    translator = Translator(provider="libre", from_lang=language, to_lang="de", base_url=URL, secret_access_key="key")
    assert translator.translate(TEXT) == EXPECTED
""",
    ),
    Client(
        "PyPI deep-translator 1.11.4",
        "deep-translator",
        ("deep-translator==1.11.4",),
        """
from deep_translator import LibreTranslator
translator = LibreTranslator(source="en", target="de", custom_url=URL + "/", api_key="key")
assert translator.translate(TEXT) == EXPECTED
assert translator.translate_batch([TEXT, TEXT]) == [EXPECTED] * 2
""",
    ),
    Client(
        "PyPI deepl 1.32.0",
        "deepl",
        ("deepl==1.32.0",),
        """
import deepl
client = deepl.Translator("key", server_url=URL)
found = client.translate_text(TEXT, target_lang="DE")
assert (found.text, found.detected_source_lang, found.billed_characters) == (EXPECTED, "EN", len(TEXT))
both = client.translate_text([TEXT, TEXT], source_lang="EN", target_lang="DE", formality="prefer_less")
assert [one.text for one in both] == [EXPECTED] * 2
assert "EN" in [one.code for one in client.get_source_languages()]
assert "DE" in [one.code for one in client.get_target_languages()]
assert client.get_usage().character.count >= len(TEXT)
try:
    client.translate_text(TEXT, target_lang="XX")
except deepl.DeepLException as error:
    assert "target_lang" in str(error)
""",
    ),
    Client(
        "npm translate 3.1.0",
        "npm",
        ("translate@3.1.0",),
        """
const translate = (await import("translate")).default;
Object.assign(translate, {engine: "libre", url: URL + "/translate", key: "key"});
equal(await translate(TEXT, {from: "en", to: "de"}), EXPECTED);
""",
        node=True,
    ),
    Client(
        "npm libretranslate-ts 0.5.12",
        "npm",
        ("libretranslate-ts@0.5.12",),
        """
const {libreTranslate} = await import("libretranslate-ts");
libreTranslate.setApiEndpoint(URL);
libreTranslate.setApiKey("key");
equal((await libreTranslate.translate(TEXT, "en", "de")).translatedText, EXPECTED);
// Alternatives need a beam search, whatever the model's default is: its best need not be EXPECTED.
const found = await libreTranslate.translate(TEXT, "en", "de", 2);
const body = JSON.stringify({q: TEXT, source: "en", target: "de", alternatives: 2});
const headers = {"content-type": "application/json"};
const direct = await (await fetch(URL + "/translate", {method: "POST", headers, body})).json();
equal(found.translatedText, direct.translatedText);
equal(JSON.stringify(found.alternatives), JSON.stringify(direct.alternatives));
equal(Array.isArray(found.alternatives), true);
equal((await libreTranslate.detect(TEXT)).language, "en");
equal((await libreTranslate.listLanguages()).some((one) => one.code === "en"), true);
""",
        node=True,
    ),
    Client(
        "npm libretranslate 1.0.1",
        "npm",
        ("libretranslate@1.0.1",),
        """
const {translate} = await import("libretranslate");
equal(await translate({query: TEXT, source: "en", target: "de", apiurl: URL}), EXPECTED);
equal(await translate({query: TEXT, target: "de", apiurl: URL, apiKey: "key"}), EXPECTED);
""",
        node=True,
    ),
    Client(
        "npm deepl-node 1.28.0",
        "npm",
        ("deepl-node@1.28.0",),
        """
const deepl = await import("deepl-node");
const client = new deepl.Translator("key", {serverUrl: URL});
equal((await client.translateText(TEXT, null, "de")).text, EXPECTED);
const both = await client.translateText([TEXT, TEXT], "en", "de");
equal(both.map((one) => one.text).join("|"), EXPECTED + "|" + EXPECTED);
equal((await client.getSourceLanguages()).some((one) => one.code === "en"), true);
equal((await client.getTargetLanguages()).some((one) => one.code === "de"), true);
equal((await client.getUsage()).character.count > 0, true);
""",
        node=True,
    ),
)
EQUAL = "const equal = (a, b) => { if (a !== b) throw new Error(JSON.stringify([a, b])); };\n"


@contextlib.contextmanager
def serving(words: Sequence[str]) -> Iterator[str]:
    """Run a server and yield its address."""
    command = [sys.executable, "-m", "transduce", "serve", *words, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if match := re.search(r"listening on (\S+)", line):
                yield match[1]
                return
            print(line, end="")
        raise SystemExit("the server did not start")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def install(client: Client, folder: Path) -> None:
    """Make a client's environment, if it is missing."""
    place = folder / client.environment
    if client.node:
        place.mkdir(parents=True, exist_ok=True)
        packages = [one.rpartition("@")[0] for one in client.packages]
        if not all((place / "node_modules" / name).is_dir() for name in packages):
            subprocess.run(["npm", "install", "--silent", "--no-fund", *client.packages], cwd=place, check=True)
    elif not place.is_dir():
        venv.create(place, with_pip=True)
        pip = [place / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check", "-q"]
        subprocess.run([*pip, *client.packages], check=True)


def run(client: Client, folder: Path | None, names: dict[str, str]) -> str | None:
    """The error of a client; "" if there was none, None where the client is not installed.

    It is looked for in its environment below the folder, or, without a folder, beside this Python.
    """
    place = folder / client.environment if folder is not None else Path(sys.prefix)
    given = "".join(f"{'var ' if client.node else ''}{name} = {json.dumps(value)}\n" for name, value in names.items())
    if client.node:
        package = client.packages[0].rpartition("@")[0]
        if not (place / "node_modules" / package).is_dir() or shutil.which("node") is None:
            return None
        command = ["node", "--input-type=module", "-e", given + EQUAL + client.program]
    else:
        python = place / "bin" / "python"
        if not python.exists() if folder is not None else not _beside(client):
            return None
        command = [str(python), "-c", given + client.program]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=120)
    return done.stdout + done.stderr if done.returncode else ""


def _beside(client: Client) -> bool:
    """Whether this Python has a client's packages in exactly those versions."""
    try:
        return all(version(name) == wanted for name, _, wanted in (one.partition("==") for one in client.packages))
    except PackageNotFoundError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="arguments of `transduce serve`; one must go from English to German")
    parser.add_argument("--environments", type=Path, required=True)
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--text", default="A man is sleeping.")
    options = parser.parse_args()
    failed = 0
    with serving(options.models) as address:
        from urllib.request import Request, urlopen

        body = json.dumps({"q": options.text, "source": "en", "target": "de"}).encode()
        with urlopen(Request(f"{address}/translate", body, {"content-type": "application/json"})) as answer:
            expected = json.load(answer)["translatedText"]
        for client in CLIENTS:
            if options.install:
                install(client, options.environments)
            output = run(client, options.environments, {"URL": address, "TEXT": options.text, "EXPECTED": expected})
            failed += output != ""
            print(
                f"{client.name}: {'ok' if output == '' else 'NOT INSTALLED' if output is None else 'FAILED'}",
                flush=True,
            )
            if output:
                print(output)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
