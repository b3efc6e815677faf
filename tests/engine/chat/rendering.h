#pragma once

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/error.h"
#include "engine/chat/chat_template.h"

namespace tandem::engine {

// For readable failures: text from a client is in «».
inline void PrintTo(const RenderedPiece& piece, std::ostream* out) {
  *out << (piece.from_client ? "«" : "") << piece.text << (piece.from_client ? "»" : "");
}
inline bool operator==(const RenderedPiece& a, const RenderedPiece& b) {
  return a.text == b.text && a.from_client == b.from_client;
}

namespace testing {

using Json = nlohmann::ordered_json;

inline constexpr int64_t kNoonOf20250115 = 1736942400;  // 2025-01-15 12:00:00 UTC

inline std::vector<RenderedPiece> RenderPieces(std::string_view source,
                                               const Json& messages = Json::array(),
                                               const Json& extra = Json::object(),
                                               const Json& tools = Json()) {
  RenderInput input;
  input.messages = &messages;
  input.tools = &tools;
  input.extra = &extra;
  input.bos_token = "<s>";
  input.eos_token = "</s>";
  input.now_unix_s = kNoonOf20250115;
  return ChatTemplate::Compile(source)->Render(input);
}

inline std::string Render(std::string_view source, const Json& messages = Json::array(),
                          const Json& extra = Json::object(), const Json& tools = Json()) {
  return JoinPieces(RenderPieces(source, messages, extra, tools));
}

// The text of the fault, or "" without one.
inline std::string FaultOf(std::string_view source, const Json& messages = Json::array()) {
  try {
    Render(source, messages);
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace testing
}  // namespace tandem::engine
