#include "engine/chat/answers/tool_detection.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/engine/chat/answers/reading.h"

namespace tandem::engine {
namespace {

using testing::ReadBytes;
using testing::ReadsCalls;
using Json = nlohmann::ordered_json;

// A template whose calls have the form of one row: the text before all calls, of each call, between
// two calls and after them. Written after the forms that the families' templates use.
struct Form {
  const char* format;
  std::string before, call, between, after;
};

const std::string kName = "{{ c.function.name }}";
const std::string kJson = "{{ c.function.arguments | tojson }}";

const std::vector<Form>& Forms() {
  static const std::vector<Form> forms = {
      {"hermes", "",
       R"(<tool_call>{{ '\n{"name": "' }})" + kName + R"(", "arguments": )" + kJson +
           "}{{ '\\n' }}</tool_call>",
       "{{ '\\n' }}", "<|im_end|>"},
      {"qwen3-coder", "",
       "<tool_call>{{ '\\n<function=' }}" + kName +
           "{{ '>' }}{% for k, v in c.function.arguments | items %}{{ '\\n<parameter=' ~ k ~ "
           "'>\\n' ~ (v if v is string else v | tojson) ~ '\\n</parameter>' }}{% endfor %}"
           "{{ '\\n</function>\\n' }}</tool_call>",
       "{{ '\\n' }}", "<|im_end|>"},
      {"mistral", "[TOOL_CALLS] [",
       R"({"name": ")" + kName + R"(", "arguments": )" + kJson + R"(, "id": "{{ c.id }}"})", ", ",
       "]</s>"},
      {"mistral-args", "", "[TOOL_CALLS]" + kName + "[ARGS]" + kJson, "", "</s>"},
      {"functiongemma", "",
       "<start_function_call>call:" + kName +
           "{{ '{' }}{% for k, v in c.function.arguments | items %}{{ k ~ ':' }}"
           "{{ '<escape>' ~ v ~ '<escape>' if v is string else v | tojson }}"
           "{{ ',' if not loop.last }}{% endfor %}{{ '}' }}<end_function_call>",
       "", "<end_of_turn>"},
      {"gemma4", "",
       "<|tool_call>call:" + kName +
           "{{ '{' }}{% for k, v in c.function.arguments | items %}{{ k ~ ':' }}"
           "{{ '<|\"|>' ~ v ~ '<|\"|>' if v is string else v | tojson }}"
           "{{ ',' if not loop.last }}{% endfor %}{{ '}' }}<tool_call|>",
       "", "<turn|>"},
      {"harmony", "",
       " to=functions." + kName + "<|channel|>commentary json<|message|>" + kJson + "<|call|>",
       "<|start|>assistant", ""},
      {"llama3-json", "", R"({"name": ")" + kName + R"(", "parameters": )" + kJson + "}", "; ",
       "<|eot_id|>"},
      {"pythonic", "[",
       kName + "({% for k, v in c.function.arguments | items %}{{ k ~ '=' }}"
               "{{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %})",
       ", ", "]<|eot|>"},
      {"json", "[", R"({"name": ")" + kName + R"(", "arguments": )" + kJson + "}", ", ", "]<end>"},
  };
  return forms;
}

std::shared_ptr<const ChatTemplate> Compiled(const Form& form) {
  return ChatTemplate::Compile(
      "{{ bos_token }}{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}"
      "{% for m in messages %}<|start|>{{ m.role }}{% if m.tool_calls %}" +
      form.before + "{% for c in m.tool_calls %}" + form.call + "{% if not loop.last %}" +
      form.between + "{% endif %}{% endfor %}" + form.after +
      "{% else %}:{{ m.content }}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<|start|>assistant{% endif %}");
}

Json Call(const char* name, Json arguments) {
  return {{"id", "abcdef123"},
          {"type", "function"},
          {"function", {{"name", name}, {"arguments", std::move(arguments)}}}};
}

// The answer that spells the calls: what the template adds to the prompt.
std::string Answered(const ChatTemplate& chat_template, const Json& calls) {
  Json messages = {{{"role", "user"}, {"content", "u"}}};
  RenderInput input;
  input.messages = &messages;
  input.tools = &testing::WeatherTools();
  const std::string prompt = JoinPieces(chat_template.Render(input));
  messages.push_back({{"role", "assistant"}, {"content", ""}, {"tool_calls", calls}});
  input.add_generation_prompt = false;
  const std::string chat = JoinPieces(chat_template.Render(input));
  EXPECT_TRUE(chat.starts_with(prompt));
  return chat.substr(prompt.size());
}

// The calls of an answer, as Call writes them but without ids.
Json CallsOf(const AnswerEvents& events) {
  Json calls = Json::array();
  std::string name, arguments;
  for (const AnswerEvent& event : events) {
    if (const auto* begin = std::get_if<CallBegin>(&event)) {
      name = begin->name;
      arguments.clear();
    } else if (const auto* part = std::get_if<CallArguments>(&event)) {
      arguments += part->text;
    } else if (std::holds_alternative<CallEnd>(event)) {
      calls.push_back({{"name", name}, {"arguments", Json::parse(arguments)}});
    }
  }
  return calls;
}

TEST(ToolDetection, EveryRowIsFoundInATemplateOfItsForm) {
  EXPECT_EQ(Forms().size(), ToolFormats().size());
  for (const Form& form : Forms()) {
    const ToolFormat* found = DetectToolFormat(*Compiled(form), "<s>", "</s>");

    ASSERT_NE(found, nullptr) << form.format;
    EXPECT_EQ(found->name, form.format);
  }
}

TEST(ToolDetection, CallsThatATemplateWritesAreReadBack) {
  const Json now = Call("now", Json::object());
  const Json weather =
      Call("get_weather", {{"city", "Bern, \"é\" 'x'"},
                           {"days", -3},
                           {"parts", Json::array({1.5, true, nullptr, Json{{"k", "v"}}})}});
  for (const Form& form : Forms()) {
    // Python has its own words for constants, and JSON's are no names there.
    const Json tricky = std::string(form.format) == "pythonic"
                            ? Call("get_weather", {{"city", "Bern, \"é\" 'x'"}, {"days", -3}})
                            : weather;
    const bool is_parallel = FindToolFormat(form.format)->is_parallel;
    const Json calls = is_parallel ? Json::array({tricky, now}) : Json::array({tricky});
    Json want = Json::array();
    for (const Json& call : calls) want.push_back(call["function"]);

    const std::string answer = Answered(*Compiled(form), calls);

    EXPECT_EQ(CallsOf(ReadBytes(ReadsCalls(form.format), answer)), want) << answer;
  }
}

TEST(ToolDetection, TemplatesWithoutCallsHaveNoFormat) {
  for (const char* source :
       {"{% for m in messages %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('no') }}{% endif %}"
        "{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "I call {{ c.function.name }}.{% endfor %}{% endfor %}"}) {
    EXPECT_EQ(DetectToolFormat(*ChatTemplate::Compile(source), "", ""), nullptr) << source;
  }
}

TEST(ToolDetection, AThoughtOfTheTemplateMayStandBeforeTheCall) {
  const auto thinks = ChatTemplate::Compile(
      "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}<think></think>"
      "{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{\"name\": \"" +
      kName + "\", \"arguments\": " + kJson +
      "}</tool_call>{% endfor %}{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>{% endif %}");

  const ToolFormat* found = DetectToolFormat(*thinks, "", "");

  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->name, "hermes");
}

TEST(ToolFormat, NamesAreDistinctAndFound) {
  for (const ToolFormat& row : ToolFormats()) {
    EXPECT_EQ(FindToolFormat(row.name), &row);
    EXPECT_NE(ToolFormatNames().find(row.name), std::string::npos);
  }
  EXPECT_EQ(FindToolFormat("none"), nullptr);
}

}  // namespace
}  // namespace tandem::engine
