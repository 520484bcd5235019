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
# A word of the text has a translation of ours: v2's glossaries, and v3's, of several dictionaries, which can be edited.
PYTHON_GLOSSARIES = """
word, term = TEXT.split()[-1].strip("."), "zwölf"
client = deepl.DeepLClient("key", server_url=URL)
translated = lambda **given: client.translate_text(TEXT, source_lang="EN", target_lang="DE", **given).text
assert ("en", "de") in [(one.source_lang, one.target_lang) for one in client.get_glossary_languages()]
old = client.create_glossary("v2", "EN", "DE", {word: term, "other": "anders"})
assert (old.name, old.ready, old.source_lang, old.target_lang, old.entry_count) == ("v2", True, "EN", "DE", 2)
assert client.get_glossary(old.glossary_id).creation_time == old.creation_time
assert old.glossary_id in [one.glossary_id for one in client.list_glossaries()]
assert client.get_glossary_entries(old) == {word: term, "other": "anders"}
assert term in translated(glossary=old).lower()
assert term in translated(glossary=old.glossary_id).lower()
found = client.translate_text_with_glossary([TEXT, TEXT], old)
assert all(term in one.text.lower() for one in found)
table = client.create_glossary_from_csv("csv", "EN", "DE", f"{word},acht")
assert client.get_glossary_entries(table) == {word: "acht"}
from deepl.api_data import MultilingualGlossaryDictionaryEntries as dictionary
new = client.create_multilingual_glossary(
    "v3", [dictionary("EN", "DE", {"other": "anders"}), dictionary("DE", "EN", {"anders": "other"})]
)
assert [(one.source_lang, one.target_lang, one.entry_count) for one in new.dictionaries] == [
    ("EN", "DE", 1), ("DE", "EN", 1)
]
assert client.update_multilingual_glossary_name(new, "renamed").name == "renamed"
changed = client.update_multilingual_glossary_dictionary(new, dictionary("EN", "DE", {word: term}))
assert changed.dictionaries[0].entry_count == 2
(entries,) = client.get_multilingual_glossary_entries(new, "EN", "DE").dictionaries
assert entries.entries.splitlines() == ["other\\tanders", f"{word}\\t{term}"]  # as text in this version
assert term in translated(glossary=changed).lower()
assert term in translated(glossary_ids=[changed, table]).lower()
assert "acht" in translated(glossary_ids=[table.glossary_id, changed]).lower()
assert client.replace_multilingual_glossary_dictionary(new, dictionary("EN", "DE", {word: "acht"})).entry_count == 1
assert client.replace_multilingual_glossary_dictionary_from_csv(new, "EN", "DE", f"{word},neun").entry_count == 1
assert client.update_multilingual_glossary_dictionary_from_csv(new, "EN", "DE", "a,b").dictionaries[0].entry_count == 2
client.delete_multilingual_glossary_dictionary(new, source_lang="DE", target_lang="EN")
assert len(client.get_multilingual_glossary(new.glossary_id).dictionaries) == 1
assert new.glossary_id in [one.glossary_id for one in client.list_multilingual_glossaries()]
many = client.create_multilingual_glossary_from_csv("csv", "EN", "DE", f"{word},acht")
for one in (new, many):
    client.delete_multilingual_glossary(one)
for one in (old, table):
    client.delete_glossary(one)
for ask in (client.get_glossary, client.get_multilingual_glossary, lambda number: translated(glossary=number)):
    try:
        ask(new.glossary_id)
    except deepl.DeepLException as error:
        assert error.http_status_code == 404
    else:
        raise AssertionError("a deleted glossary was found")
try:
    client.create_glossary("no", "EN", "EN", {"a": "b"})
except deepl.DeepLException as error:
    assert error.http_status_code == 400
"""
NODE_GLOSSARIES = """
const word = TEXT.split(" ").pop().replace(".", ""), term = "zwölf";
const multi = new deepl.DeepLClient("key", {serverUrl: URL});
const entries = (given) => new deepl.GlossaryEntries({entries: given});
const has = async (expected, options) =>
    equal((await multi.translateText(TEXT, "en", "de", options)).text.toLowerCase().includes(expected), true);
equal((await multi.getGlossaryLanguagePairs()).some((one) => one.sourceLang === "en" && one.targetLang === "de"), true);
const old = await multi.createGlossary("v2", "en", "de", entries({[word]: term}));
equal([old.name, old.ready, old.entryCount].join(), "v2,true,1");
equal((await multi.getGlossary(old.glossaryId)).sourceLang, "en");
equal((await multi.listGlossaries()).some((one) => one.glossaryId === old.glossaryId), true);
equal((await multi.getGlossaryEntries(old)).entries()[word], term);
await has(term, {glossary: old});
const table = await multi.createGlossaryWithCsv("csv", "en", "de", Buffer.from(word + ",acht"));
equal((await multi.getGlossaryEntries(table)).entries()[word], "acht");
const made = await multi.createMultilingualGlossary("v3", [
    {sourceLangCode: "en", targetLangCode: "de", entries: entries({other: "anders"})},
    {sourceLangCode: "de", targetLangCode: "en", entries: entries({anders: "other"})},
]);
equal(made.dictionaries.length, 2);
equal((await multi.updateMultilingualGlossaryName(made, "renamed")).name, "renamed");
const dictionary = (given) => ({sourceLangCode: "en", targetLangCode: "de", entries: entries(given)});
const changed = await multi.updateMultilingualGlossaryDictionary(made, dictionary({[word]: term}));
equal(changed.dictionaries[0].entryCount, 2);
const kept = await multi.getMultilingualGlossaryDictionaryEntries(made, "en", "de");
equal(kept.entries.entries()[word], term);
await has(term, {glossary: changed});
await has(term, {glossaryIds: [changed, table]});
await has("acht", {glossaryIds: [table.glossaryId, changed.glossaryId]});
equal((await multi.replaceMultilingualGlossaryDictionary(made, dictionary({a: "b"}))).entryCount, 1);
equal((await multi.replaceMultilingualGlossaryDictionaryWithCsv(made, "en", "de", "a,b")).entryCount, 1);
const more = await multi.updateMultilingualGlossaryDictionaryWithCsv(made, "en", "de", "c,d");
equal(more.dictionaries[0].entryCount, 2);
await multi.deleteMultilingualGlossaryDictionary(made, "de", "en");
equal((await multi.getMultilingualGlossary(made.glossaryId)).dictionaries.length, 1);
equal((await multi.listMultilingualGlossaries()).some((one) => one.glossaryId === made.glossaryId), true);
const csv = await multi.createMultilingualGlossaryWithCsv("csv", "en", "de", word + ",acht");
for (const one of [made, csv]) await multi.deleteMultilingualGlossary(one);
for (const one of [old, table]) await multi.deleteGlossary(one);
let error = "";
await multi.getGlossary(old.glossaryId).catch((failure) => { error = failure.constructor.name; });
equal(error, "GlossaryNotFoundError");
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
"""
        + PYTHON_GLOSSARIES,
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
"""
        + NODE_GLOSSARIES,
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
