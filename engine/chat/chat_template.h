#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
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
};

// A compiled Jinja chat template (the language of Hugging Face's `chat_template`), sandboxed: no
// access to anything but its input, bounded work (steps, output size, recursion). Immutable and
// thread-safe.
class ChatTemplate {
 public:
  // Throws kUnsupported / kInvalidArgument with line and column for syntax this does not know.
  static std::shared_ptr<const ChatTemplate> Compile(std::string_view source);
  virtual ~ChatTemplate() = default;

  // Throws kInvalidArgument when the template itself rejects the messages (raise_exception), and
  // for undefined operations or exhausted budgets.
  virtual std::vector<RenderedPiece> Render(const RenderInput& input) const = 0;
};

std::string JoinPieces(const std::vector<RenderedPiece>& pieces);

}  // namespace tandem::engine
