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

// A piece of a rendered prompt. Text from a client (message contents) must never turn into control
// tokens, so it is separate from the template's own text.
struct RenderedPiece {
  std::string text;
  bool from_client = false;  // tokenise as plain text
};

struct RenderInput {
  // Array, as returned by NormalizeMessages. An assistant's reasoning_content also has the name
  // `thinking` for templates that read it.
  const nlohmann::ordered_json* messages = nullptr;
  const nlohmann::ordered_json* tools = nullptr;  // array or null
  const nlohmann::ordered_json* extra = nullptr;  // chat_template_kwargs: object or null
  bool add_generation_prompt = true;
  std::string bos_token;
  std::string eos_token;
  std::optional<int64_t> now_unix_s;  // result of strftime_now, in UTC; absent: the system clock
};

// A compiled Jinja chat template (the language of Hugging Face's `chat_template`) in a sandbox: no
// access beyond its input, bounded work (steps, output size, recursion). Immutable and thread-safe.
class ChatTemplate {
 public:
  // Throws kUnsupported / kInvalidArgument with line and column for unknown syntax.
  static std::shared_ptr<const ChatTemplate> Compile(std::string_view source);
  virtual ~ChatTemplate() = default;

  // Adjacent pieces differ in origin; none is empty. Text derived from a client's (a slice, a
  // replacement, JSON) stays the client's, character by character. Throws kInvalidArgument when the
  // template rejects the messages (raise_exception: its message, param "messages"), and when
  // `extra` shadows a reserved name. Throws it with line and column for undefined operations or
  // exhausted budgets. Throws kUnsupported with line and column for an unknown filter or test that
  // this rendering reaches.
  virtual std::vector<RenderedPiece> Render(const RenderInput& input) const = 0;

  // As Render, and also returns the ranges of {% generation %} blocks in the text: [begin, end) in
  // bytes, in order. Throws kUnsupported for such a block in a macro or a {% set %}, because the
  // place of its text in the output is unknown.
  virtual std::vector<RenderedPiece> Render(
      const RenderInput& input, std::vector<std::pair<size_t, size_t>>* generations) const = 0;

  // Whether the source contains these words, for example the role "developer", the variable
  // "enable_thinking" or the mark "<think>".
  virtual bool Mentions(std::string_view words) const = 0;
  virtual std::string_view source() const = 0;
};

std::string JoinPieces(const std::vector<RenderedPiece>& pieces);
// The clients' parts of the text of JoinPieces: [begin, end) in bytes, in order.
std::vector<std::pair<size_t, size_t>> ClientRanges(const std::vector<RenderedPiece>& pieces);

}  // namespace tandem::engine
