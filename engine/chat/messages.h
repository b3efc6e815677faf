#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace tandem::engine {

// Most messages of a chat, in serving and in training. Training renders a chat up to each of its
// answers, which takes quadratic time in their number.
inline constexpr size_t kMaxMessages = 4096;
// The roles of the API. Templates build control tokens from them ('<|' + role + '|>'), so these
// words count as the template's. Any other role is a client's text.
inline constexpr std::array<std::string_view, 5> kMessageRoles = {"system", "developer", "user",
                                                                  "assistant", "tool"};

struct NormalizeOptions {
  // The list's name in errors: "messages" gives "messages[3].content".
  std::string path = "messages";
  bool developer_as_system = true;  // for templates that do not mention the role "developer"
  // The HTTP API requires `tool_call_id` in every message with role tool. Training rows do not:
  // most published sets have no ids.
  bool needs_tool_call_ids = false;
  // JSON values in the text of all calls' arguments together.
  int64_t max_argument_values = 1 << 20;
};

// The one normaliser of chat messages. Serving, /v1/render and training call it, so a template sees
// the same list in all three. It checks a list of messages and returns the form that templates
// expect. Every returned message has a string `role` and a string `content`. The rules are:
//
// - null means "not given", at every key of a message, of a part and of a call.
// - `role` is system, developer, user, assistant or tool. developer may become system.
// - `content` is a string, or text parts, which are joined with "\n". An assistant may also have
//   refusal parts. An assistant with calls, a refusal or a thought may omit content: it becomes "".
// - `refusal` of an assistant is text of the answer and follows the content, as a part would.
// - `tool_calls` belong to assistants only. An empty list is dropped. An absent `type` becomes
//   function, an absent `id` stays absent. `arguments` that spell a JSON object become that object;
//   other arguments stay text. Integers in that text keep all their digits. A call of type custom
//   becomes one of a function with the argument `input`.
// - `reasoning_content` is an assistant's thought. `reasoning` and `thinking` are other names for
//   it; they stay, and are copied to `reasoning_content`.
// - `weight` is dropped: it concerns the loss, not the text.
// - Unknown keys reach the template unchanged.
//
// Linear in the size of the list. Throws Error whose param is the path of the fault:
// kInvalidArgument with reason invalid_type, invalid_value or missing_required_parameter, or
// kUnsupported (unsupported_value) for parts other than text.
nlohmann::ordered_json NormalizeMessages(const nlohmann::ordered_json& messages,
                                         const NormalizeOptions& options = {});

}  // namespace tandem::engine
