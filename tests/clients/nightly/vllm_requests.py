"""Sends requests with the functions of `vllm bench serve`, from the file of the package.

`vllm_requests.py FILE URL`. The package itself needs torch and several GB of GPU libraries; this
file of it needs none of them.
"""

import asyncio
import importlib.util
import sys

import aiohttp

MODEL = "tandem-stories"
ROUTES = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}


def load(path):
    spec = importlib.util.spec_from_file_location("endpoint_request_func", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


async def main(path, url):
    functions = load(path)
    async with aiohttp.ClientSession() as session:
        for name, route in ROUTES.items():
            request = functions.RequestFuncInput(
                prompt="Once upon a time", api_url=url + route, prompt_len=4, output_len=16,
                model=MODEL, ignore_eos=True)
            answers = await asyncio.gather(*[functions.ASYNC_REQUEST_FUNCS[name](request, session)
                                             for _ in range(8)])
            for answer in answers:
                assert answer.success, answer.error
                assert answer.output_tokens == 16, answer
                assert answer.ttft > 0 and answer.generated_text, answer
            print(f"{name}: {len(answers)} answers, first token after "
                  f"{min(answer.ttft for answer in answers) * 1000:.1f} ms")


asyncio.run(main(*sys.argv[1:]))
