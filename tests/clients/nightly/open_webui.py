"""Open WebUI with both kinds of connections: models, chats, a knowledge file."""

import json
import os
import pathlib

from packages import python_beside
from programs import Program, free_port
from torch_programs import OFFLINE, torch_python

HERE = pathlib.Path(__file__).resolve().parent
QUESTION = [{"role": "user", "content": "Tell me a story about a dog."}]
NOTE = "The dog of the captain is named Zorp. Zorp lives in a red house."


def chunks(stream):
    lines = [line[len("data: "):] for line in stream.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]", stream
    return [json.loads(line) for line in lines[:-1]]


def text_of(stream):
    return "".join(choice["delta"].get("content") or "" for chunk in chunks(stream)
                   for choice in chunk.get("choices", []))


def check_chats(api, name):
    stream = api.text("POST", "/api/chat/completions",
                      {"model": name, "stream": True, "messages": QUESTION})
    assert len(text_of(stream)) > 40, stream
    answer = api.post("/api/chat/completions",
                      {"model": name, "stream": False, "messages": QUESTION, "max_tokens": 8})
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length" and choice["message"]["content"], answer
    assert answer["usage"]["completion_tokens"] == 8, answer


def check_knowledge(api, names):
    file = api.upload("/api/v1/files/?process=true&process_in_background=false", "note.txt", NOTE)
    knowledge = api.post("/api/v1/knowledge/create", {"name": "notes", "description": "notes"})
    api.post(f"/api/v1/knowledge/{knowledge['id']}/file/add", {"file_id": file["id"]})
    found = api.post("/api/v1/retrieval/query/collection", {
        "collection_names": [knowledge["id"]], "query": "Who lives in a red house?", "k": 1})
    assert found["documents"] == [[NOTE]], found
    for name in names:
        stream = api.text("POST", "/api/chat/completions", {
            "model": name, "stream": True, "messages": QUESTION,
            "files": [{"type": "collection", "id": knowledge["id"]}]})
        (sources,) = [chunk["sources"] for chunk in chunks(stream) if "sources" in chunk]
        assert sources[0]["document"] == [NOTE], sources
        assert text_of(stream), stream


def run_open_webui(context):
    python = python_beside(context.cache / "open_webui", HERE / "open_webui.txt",
                           torch_python(context))
    port = free_port()
    data = context.scratch / "data"
    data.mkdir()
    # A user sets the first three lines. The others keep the program from asking other services.
    settings = {"OLLAMA_BASE_URL": context.url, "OPENAI_API_BASE_URL": f"{context.url}/v1",
                "OPENAI_API_KEY": "none", "RAG_EMBEDDING_ENGINE": "ollama",
                "RAG_OLLAMA_BASE_URL": context.url, "RAG_EMBEDDING_MODEL": "tandem-stories",
                "OFFLINE_MODE": "true", "ENABLE_VERSION_UPDATE_CHECK": "false",
                "ANONYMIZED_TELEMETRY": "false", "SCARF_NO_ANALYTICS": "true",
                "DO_NOT_TRACK": "true", "DATA_DIR": str(data), "WEBUI_SECRET_KEY": "test",
                "HOME": str(context.scratch)}
    command = [python.parent / "open-webui", "serve", "--host", "127.0.0.1", "--port", port]
    environment = dict(os.environ, **OFFLINE, **settings)
    with Program(command, port, "/health", context.scratch / "log", environment) as api:
        api.token = api.post("/api/v1/auths/signup", {
            "name": "a", "email": "a@example.org", "password": "Passw0rd!"})["token"]
        owners = {model["id"]: model["owned_by"] for model in api.get("/api/models")["data"]}
        assert owners == {"tandem-stories": "openai", "tandem-stories:latest": "ollama"}, owners
        for name in owners:
            check_chats(api, name)
        check_knowledge(api, owners)
        for url, path in ((context.url, "/ollama/verify"), (f"{context.url}/v1", "/openai/verify")):
            api.post(path, {"url": url, "key": ""})
