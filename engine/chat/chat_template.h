#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tandem::engine {

// A piece of a rendered prompt. Text that came from a client (message contents) must never turn
// into control tokens, so it is kept apart from the template's own text.
struct RenderedPiece {
  std::string text;
  bool from_client = false;  // tokenise as plain text
};

struct RenderInput {
  const nlohmann::ordered_json* messages = nullptr;  // array, as the API received it (normalised)
  const nlohmann::ordered_json* tools = nullptr;     // array or null
  const nlohmann::ordered_json* extra = nullptr;     // chat_template_kwargs: object or null
  bool add_generation_prompt = true;
  std::string bos_token;
  std::string eos_token;
  std::optional<int64_t> now_unix_s;  // what strftime_now shows, in UTC; absent: the system clock
};

// A compiled Jinja chat template (the language of Hugging Face's `chat_template`), sandboxed: no
// access to anything but its input, bounded work (steps, output size, recursion). Immutable and
// thread-safe.
class ChatTemplate {
 public:
  // Throws kUnsupported / kInvalidArgument with line and column for syntax this does not know.
  static std::shared_ptr<const ChatTemplate> Compile(std::string_view source);
  virtual ~ChatTemplate() = default;

  // Adjacent pieces differ in origin; none is empty. Text derived from a client's (a slice,
  // a replacement, JSON) stays the client's, character by character. Throws kInvalidArgument when
  // the template itself rejects the messages (raise_exception: the message is the template's, param
  // is "messages"), when `extra` shadows a reserved name, and for undefined operations or exhausted
  // budgets (with line and column). Throws kUnsupported, likewise with line and column, for an
  // unknown filter or test that this rendering reaches.
  virtual std::vector<RenderedPiece> Render(const RenderInput& input) const = 0;

  // The same, and where the blocks {% generation %} stand in the text: [begin, end) in bytes, in
  // order. Throws kUnsupported where such a block stands in a macro or a {% set %}, so that nobody
  // knows where its text ends up.
  virtual std::vector<RenderedPiece> Render(
      const RenderInput& input, std::vector<std::pair<size_t, size_t>>* generations) const = 0;

  // Whether the source contains these words: tells if a template knows the role "developer", the
  // variable "enable_thinking" or the mark "<think>".
  virtual bool Mentions(std::string_view words) const = 0;
};

std::string JoinPieces(const std::vector<RenderedPiece>& pieces);
// Where clients wrote in the text of JoinPieces: [begin, end) in bytes, in order.
std::vector<std::pair<size_t, size_t>> ClientRanges(const std::vector<RenderedPiece>& pieces);

}  // namespace tandem::engine
