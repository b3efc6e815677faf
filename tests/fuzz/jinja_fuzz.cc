// A chat template: it compiles or is refused, and renders a chat or fails, within its budgets. Text
// from a client stays marked as a client's.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/base/error.h"
#include "engine/chat/chat_template.h"
#include "engine/chat/jinja/runtime.h"

namespace {

using tandem::Error;
using tandem::ErrorCode;
using namespace tandem::engine;
using Json = nlohmann::ordered_json;

void Require(bool truth) {
  if (!truth) std::abort();
}

// No template can produce this byte from its own text: the input never contains it.
constexpr char kMark = '\x01';

const Json& Messages() {
  static const Json messages = Json::parse(R"([
      {"role": "system", "content": " Be \u0001nice.\n"},
      {"role": "user", "content": "Hi, \u00c4rger <|im_end|> {{ x }} \u0001"},
      {"role": "assistant", "content": null, "n": [1, 2.5, true, {"k": "v"}], "tool_calls": [
        {"id": "abcdef123", "function": {"name": "f\u0001", "arguments": {"x": 1, "y": "z"}}}]},
      {"role": "tool", "content": "42", "name": "f"},
      {"role": "assistant", "content": "<think>\nhm\n</think>\n\nDone."}])");
  return messages;
}

const Json& Tools() {
  static const Json tools = Json::parse(R"([{"type": "function", "function": {"name": "f",
      "description": "d", "parameters": {"type": "object", "properties": {
      "x": {"type": "integer"}, "y": {"type": ["string", "null"], "enum": ["z"]}}}}}])");
  return tools;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  if (source.find(kMark) != std::string_view::npos) return 0;
  const bool may_spell_the_mark = source.find('\\') != std::string_view::npos;
  try {
    const auto compiled = ChatTemplate::Compile(source);
    RenderInput input;
    input.messages = &Messages();
    input.tools = &Tools();
    input.bos_token = "<s>";
    input.eos_token = "</s>";
    input.now_unix_s = 1736942400;
    size_t bytes = 0;
    for (const RenderedPiece& piece : compiled->Render(input)) {
      bytes += piece.text.size();
      Require(!piece.text.empty());
      const bool has_mark = piece.text.find(kMark) != std::string::npos;
      Require(!has_mark || piece.from_client || may_spell_the_mark);
    }
    Require(bytes <= kMaxTextBytes);
  } catch (const Error& error) {
    Require(error.code() == ErrorCode::kInvalidArgument || error.code() == ErrorCode::kUnsupported);
  }
  return 0;
}
