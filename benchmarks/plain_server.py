"""A minimal server for comparison: Starlette over CTranslate2, each request by itself, in CTranslate2's threads.

    python benchmarks/plain_server.py CTRANSLATE2_FOLDER BEAM

The folder is written by `transduce export --to ctranslate2`; int8 on the CPU, as ours. It serves the /v1/translate
requests of benchmarks/serving.py, without limits, splitting or anything else.
"""

from __future__ import annotations

import os
import socket
import sys

import ctranslate2  # type: ignore[import-not-found]
import sentencepiece
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


def main() -> None:
    folder, beam = sys.argv[1], int(sys.argv[2])
    cores = len(os.sched_getaffinity(0))
    translator = ctranslate2.Translator(folder, compute_type="int8", inter_threads=cores, intra_threads=1)
    source, target = (
        sentencepiece.SentencePieceProcessor(model_file=f"{folder}/{side}.spm") for side in ("source", "target")
    )

    def work(text: str) -> str:
        pieces = source.encode(text, out_type=str)
        (found,) = translator.translate_batch([pieces], beam_size=beam)
        return str(target.decode(found.hypotheses[0]))

    async def translate(request: Request) -> JSONResponse:
        text = (await request.json())["text"]
        return JSONResponse({"translations": [{"text": await run_in_threadpool(work, text)}]})

    listener = socket.create_server(("127.0.0.1", 0))
    print(f"listening on http://127.0.0.1:{listener.getsockname()[1]}", file=sys.stderr, flush=True)
    app = Starlette(routes=[Route("/v1/translate", translate, methods=["POST"])])
    uvicorn.Server(uvicorn.Config(app, http="httptools", log_level="warning", access_log=False)).run([listener])


if __name__ == "__main__":
    main()
