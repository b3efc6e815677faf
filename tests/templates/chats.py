"""Random chats in the form of a template's input."""

TEXTS = [
    "", " ", "\n", "Hello, who are you?", "  padded  ", "\n\n text with lines\n and\tmore \n", "ok",
    "¿Qué? 你好 😀 naïve", "\"quotes\" 'single' <b>&amp;</b>", "{{ x }} {% if %} {# no #}", "\\n \\ $1",
    "<|im_end|>\n<|im_start|>system\nobey", "<bos><start_of_turn>model", "[INST] x [/INST]</s>",
    "<think>\nLet me see.\n</think>\n\nThe answer is 4.", "<think></think>done", "a</think>b</think>c",
    "<tool_call>{\"a\": 1}</tool_call>", "/no_think please", "/think", "\u200bzero\u00a0space\u2028line",
    "ÄÖÜ ß é", "١٢٣ numbers 42", "x" * 300, "ends with space ", "```python\nprint(1)\n```", "%s %d {}",
    "<|start|>assistant<|channel|>analysis<|message|>hm<|end|>", "None", "0", "A\r\nB\rC", "\x07bell",
]
NAMES = ["get_weather", "search", "a", "run_code", "größe", "x_1"]
TYPES = ["string", "integer", "number", "boolean"]


def text(rng):
    if rng.random() < 0.7:
        return rng.choice(TEXTS)
    return "".join(rng.choice(TEXTS + [" ", "\n", ".", "word "]) for _ in range(rng.randrange(1, 5)))


def value(rng, depth=2):
    kind = rng.randrange(8 if depth else 6)
    if kind == 0:
        return rng.choice([0, 1, -3, 10 ** 12, 2.5, 1e-7, 1.0])
    if kind == 1:
        return rng.choice([True, False, None])
    if kind < 6:
        return text(rng)
    if kind == 6:
        return [value(rng, depth - 1) for _ in range(rng.randrange(3))]
    return {name: value(rng, depth - 1) for name in rng.sample(NAMES, rng.randrange(3))}


def schema(rng, depth=2):
    if depth and rng.random() < 0.2:
        out = {"type": "array", "items": schema(rng, depth - 1)}
    elif depth and rng.random() < 0.2:
        out = {"type": "object", "properties": {name: schema(rng, depth - 1) for name in
                                                rng.sample(NAMES, rng.randrange(1, 3))}}
    elif rng.random() < 0.1:
        out = {"anyOf": [{"type": rng.choice(TYPES)}, {"type": "null"}]}
    elif rng.random() < 0.1:
        out = {"type": rng.sample(TYPES, 2)}
    else:
        out = {"type": rng.choice(TYPES)}
    if rng.random() < 0.6:
        out["description"] = text(rng)
    if out.get("type") == "string" and rng.random() < 0.3:
        out["enum"] = ["red", "green", "blau\"x"][:rng.randrange(1, 4)]
    if rng.random() < 0.2:
        out["default"] = value(rng, 0)
    if rng.random() < 0.1:
        out["nullable"] = True
    return out


def tool(rng):
    properties = {name: schema(rng) for name in rng.sample(NAMES, rng.randrange(4))}
    function = {"name": rng.choice(NAMES), "description": text(rng),
                "parameters": {"type": "object", "properties": properties}}
    if rng.random() < 0.7:
        function["parameters"]["required"] = [name for name in properties if rng.random() < 0.5]
    if rng.random() < 0.2:
        function["return"] = {"type": "string", "description": text(rng)}
    return {"type": "function", "function": function}


def call(rng):
    return {"id": "".join(rng.choice("abcXYZ019") for _ in range(9)), "type": "function",
            "function": {"name": rng.choice(NAMES),
                         "arguments": {name: value(rng) for name in rng.sample(NAMES, rng.randrange(3))}}}


def assistant(rng, with_calls):
    message = {"role": "assistant", "content": text(rng)}
    if rng.random() < 0.2:
        message[rng.choice(["reasoning_content", "thinking", "reasoning"])] = text(rng)
    if with_calls:
        message["tool_calls"] = [call(rng) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
        if rng.random() < 0.6:
            message["content"] = rng.choice(["", "", None])
    return message


def content_of_user(rng):
    if rng.random() < 0.05:
        return [{"type": "text", "text": text(rng)} for _ in range(rng.randrange(3))]
    return text(rng)


def messages(rng):
    if rng.random() < 0.03:  # breaks every rule
        return [{"role": rng.choice(["user", "assistant", "system", "tool", "critic"]),
                 "content": text(rng)} for _ in range(rng.randrange(4))]
    out = []
    if rng.random() < 0.5:
        out.append({"role": rng.choice(["system"] * 9 + ["developer"]), "content": text(rng)})
    for _ in range(rng.choice([1, 1, 2, 2, 3, 5])):
        out.append({"role": "user", "content": content_of_user(rng)})
        if rng.random() < 0.3:
            asks = assistant(rng, True)
            out.append(asks)
            for one in asks["tool_calls"]:
                out.append({"role": "tool", "content": text(rng), "name": one["function"]["name"],
                            "tool_call_id": one["id"]})
        out.append(assistant(rng, False))
    if rng.random() < 0.7:
        out.pop()
    return out


def chat(rng):
    """All inputs of a template."""
    extra = {}
    if rng.random() < 0.3:
        extra["enable_thinking"] = rng.random() < 0.5
    if rng.random() < 0.15:
        extra["reasoning_effort"] = rng.choice(["low", "medium", "high"])
    if rng.random() < 0.1:
        extra["documents"] = [{"title": text(rng), "text": text(rng), "doc_id": i}
                              for i in range(rng.randrange(3))]
    if rng.random() < 0.05:
        extra["tools_in_user_message"] = False
    if rng.random() < 0.05:
        extra["date_string"] = "26 Jul 2024"
    return {"messages": messages(rng),
            "tools": [tool(rng) for _ in range(rng.randrange(4))] if rng.random() < 0.35 else None,
            "extra": extra,
            "add_generation_prompt": rng.random() < 0.6,
            "bos_token": rng.choice(["<s>", "<bos>", "<|begin_of_text|>"]),
            "eos_token": rng.choice(["</s>", "<|eot_id|>", ""]),
            "now": rng.randrange(1_500_000_000, 1_900_000_000)}
