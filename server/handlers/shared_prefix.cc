#include "server/handlers/shared_prefix.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "server/respond/generation_reply.h"

namespace tandem::server {
namespace {

bool IsInstruction(const nlohmann::ordered_json& message) {
  const auto role = message.find("role");
  return role != message.end() && (*role == "system" || *role == "developer");
}

// The pieces before `mark`; none if it is missing.
std::vector<engine::RenderedPiece> CutAt(std::vector<engine::RenderedPiece> pieces,
                                         const std::string& mark) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    const size_t at = pieces[i].text.find(mark);
    if (at == std::string::npos) continue;
    pieces[i].text.resize(at);
    pieces.resize(at == 0 ? i : i + 1);
    return pieces;
  }
  return {};
}

}  // namespace

int64_t SharedTokens(const engine::ChatTemplate& chat_template, const engine::Tokenizer& tokenizer,
                     engine::RenderInput input, std::string_view text,
                     const std::vector<TokenId>& ids) {
  const auto& messages = *input.messages;
  const auto first = std::find_if_not(messages.begin(), messages.end(), IsInstruction);
  if (first == messages.end()) return 0;
  const std::string mark = NewObjectId("begin");
  nlohmann::ordered_json marked(nlohmann::ordered_json::array());
  std::copy(messages.begin(), first, std::back_inserter(marked));
  marked.push_back({{"role", "user"}, {"content", mark}});
  input.messages = &marked;

  std::vector<engine::RenderedPiece> pieces;
  const auto refusal = ErrorOf({ErrorCode::kInvalidArgument, ErrorCode::kUnsupported},
                               [&] { pieces = CutAt(chat_template.Render(input), mark); });
  const std::string shared = engine::JoinPieces(pieces);
  if (refusal || !text.starts_with(shared)) return 0;
  const std::vector<TokenId> begin = tokenizer.EncodeMixed(shared, engine::ClientRanges(pieces));
  return std::mismatch(begin.begin(), begin.end(), ids.begin(), ids.end()).first - begin.begin();
}

}  // namespace tandem::server
