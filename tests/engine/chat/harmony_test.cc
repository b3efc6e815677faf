#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/chat/messages.h"
#include "tests/engine/chat/answers/reading.h"
#include "tests/engine/chat/rendering.h"

// A chat in harmony from the request to the next prompt. The template gets the request's effort and
// the assistant's thought. The parser reads the channels of the answer, and its message renders as
// the model wrote it.

namespace tandem::engine::testing {
namespace {

// The parts of a harmony template that programs depend on.
constexpr std::string_view kHarmonyTemplate = R"({%- if reasoning_effort is not defined -%}
  {%- set reasoning_effort = "medium" -%}
{%- endif -%}
<|start|>system<|message|>Date: {{ strftime_now("%Y-%m-%d") }}
Reasoning: {{ reasoning_effort }}
{%- if tools %}{{ "\nTools: commentary" }}{% endif -%}<|end|>
{%- if messages[0].role in ["developer", "system"] or tools -%}
  <|start|>developer<|message|>
  {%- if messages[0].role in ["developer", "system"] %}{{ messages[0].content }}{% endif -%}
  {%- for tool in tools or [] %}{{ "\ntype " + tool.function.name }}{% endfor -%}
  <|end|>
{%- endif -%}
{%- set last = namespace(name=none) -%}
{%- for message in messages -%}
  {%- if message.role == "user" -%}
    <|start|>user<|message|>{{ message.content }}<|end|>
  {%- elif message.role == "assistant" and "tool_calls" in message -%}
    {%- if "thinking" in message -%}
      <|start|>assistant<|channel|>analysis<|message|>{{ message.thinking }}<|end|>
    {%- endif -%}
    {%- set call = message.tool_calls[0].function -%}
    {%- set last.name = call.name -%}
    <|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>
    {{- call.arguments | tojson }}<|call|>
  {%- elif message.role == "assistant" -%}
    <|start|>assistant<|channel|>final<|message|>{{ message.content }}<|end|>
  {%- elif message.role == "tool" -%}
    <|start|>functions.{{ last.name }} to=assistant<|channel|>commentary<|message|>
    {{- message.content | tojson }}<|end|>
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%})";

std::string Prompt(const Json& messages, const Json& extra = Json::object()) {
  return Render(kHarmonyTemplate, NormalizeMessages(messages, {.developer_as_system = false}),
                extra, WeatherTools());
}

const std::string kBegin =
    "<|start|>system<|message|>Date: 2025-01-15\nReasoning: medium\nTools: commentary<|end|>"
    "<|start|>developer<|message|>\ntype get_weather\ntype now<|end|>"
    "<|start|>user<|message|>Bern?<|end|>";

TEST(Harmony, TheEffortOfTheRequestReachesTheSystemMessage) {
  const Json messages = Json::parse(R"([{"role": "user", "content": "Bern?"}])");
  EXPECT_EQ(Prompt(messages), kBegin + "<|start|>assistant");
  for (const char* effort : {"low", "high"}) {
    const std::string text = Prompt(messages, {{"reasoning_effort", effort}});
    EXPECT_NE(text.find(std::string("Reasoning: ") + effort + "\n"), std::string::npos) << text;
  }
}

TEST(Harmony, ThoughtAndCallOfAnAnswerRenderAsTheModelWroteThem) {
  // The prompt ends with "<|start|>assistant"; the model ends with <|call|>.
  const std::string written =
      "<|channel|>analysis<|message|>I need the weather.<|end|>"
      "<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>"
      R"({"city": "Bern"}<|call|>)";
  const AnswerOptions reading = ReadsCalls("harmony");
  const std::string events =
      R"(r"I need the weather." begin(get_weather) a"{"city": "Bern"}" end finish(calls))";
  EXPECT_EQ(Spell(ReadWhole(reading, written)), events);
  EXPECT_EQ(Spell(ReadBytes(reading, written)), events);

  // The message that a client sends back, and the tool's reply.
  const Json messages = Json::parse(R"([
      {"role": "user", "content": "Bern?"},
      {"role": "assistant", "content": null, "reasoning_content": "I need the weather.",
       "tool_calls": [{"id": "c", "type": "function",
                       "function": {"name": "get_weather", "arguments": "{\"city\": \"Bern\"}"}}]},
      {"role": "tool", "tool_call_id": "c", "content": "sunny"}])");
  EXPECT_EQ(Prompt(messages),
            kBegin + "<|start|>assistant" + written +
                "<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"
                "\"sunny\"<|end|><|start|>assistant");
}

TEST(Harmony, TheFinalChannelIsTheTextOfTheAnswer) {
  const AnswerOptions reading = ReadsCalls("harmony");
  const std::string answer =
      "<|channel|>analysis<|message|>It is <b>sunny</b>.<|end|><|start|>assistant"
      "<|channel|>commentary<|message|>I looked. <|end|><|start|>assistant"
      "<|channel|>final<|message|>Sunny in Bern.<|return|>";
  const std::string events = R"(r"It is <b>sunny</b>." t"I looked. Sunny in Bern." finish)";
  EXPECT_EQ(Spell(ReadWhole(reading, answer)), events);
  EXPECT_EQ(Spell(ReadBytes(reading, answer)), events);
  // Cut within the thought, as by max_tokens.
  EXPECT_EQ(Spell(ReadWhole(reading, "<|channel|>analysis<|message|>It is", true)),
            R"(r"It is" finish)");
}

}  // namespace
}  // namespace tandem::engine::testing
