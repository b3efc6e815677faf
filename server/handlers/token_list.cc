#include "server/handlers/token_list.h"

#include <algorithm>

#include "engine/tokenizer/tokenizer.h"
#include "server/wire/field_reader.h"
#include "server/wire/json_text.h"
#include "server/wire/logprobs.h"

namespace tandem::server {

int64_t MostListedTokens(const ServedModel& model) {
  constexpr int64_t kAtLeast = 1 << 20;
  return std::max(kAtLeast, 2 * model.loaded().max_model_len);
}

void CheckListedTokens(const ServedModel& model, size_t n_tokens, const std::string& param) {
  const int64_t most = MostListedTokens(model);
  if (static_cast<int64_t>(n_tokens) <= most) return;
  throw BadValue(param, param + (param == "messages" ? " have " : " has ") +
                            std::to_string(n_tokens) + " tokens, and a reply lists at most " +
                            std::to_string(most) + ": send the text in parts");
}

void AppendTokenList(std::string& out, const ServedModel& model, std::span<const TokenId> ids,
                     const std::vector<bool>& loss) {
  const engine::Tokenizer& tokenizer = *model.loaded().tokenizer;
  const TokenNames names{model.loaded().tokenizer, false};
  out.push_back('[');
  for (size_t i = 0; i < ids.size(); ++i) {
    const TokenId id = ids[i];
    if (i > 0) out.push_back(',');
    out += R"({"id":)";
    AppendJsonInt(out, id);
    out += R"(,"text":)";
    AppendJsonString(out, names.Name(id));
    out += R"(,"bytes":)";
    AppendJsonBytes(out, tokenizer.TokenBytes(id));
    out += tokenizer.IsSpecial(id) ? R"(,"special":true)" : R"(,"special":false)";
    out += loss[i] ? R"(,"loss":true})" : R"(,"loss":false})";
  }
  out.push_back(']');
}

}  // namespace tandem::server
