// The bodies of JSON routes. The first byte picks the reader: (c)hat, com(p)letion, (t)okenize,
// (d)etokenize, (e)mbeddings, (s)core, (r)erank, resp(o)nses. Readers throw only Error. It becomes
// a 4xx whose body is valid UTF-8 JSON of at most 4 KiB, with the four keys of an API error.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "server/wire/chat_request.h"
#include "server/wire/completion_request.h"
#include "server/wire/embedding_request.h"
#include "server/wire/error_body.h"
#include "server/wire/field_reader.h"
#include "server/wire/responses/responses_request.h"
#include "server/wire/tokenize_request.h"

namespace tandem::server {
namespace {

void Require(bool truth) {
  if (!truth) std::abort();
}

void RequireIgnoredHeader(const std::vector<std::string>& ignored) {
  const std::string header = IgnoredParamsHeader(ignored);
  Require(header.size() <= 512);
  for (const char c : header) Require(c >= 0x20 && c < 0x7f);
}

void Read(char kind, std::string_view text) {
  const ModelLimits limits{.max_model_len = 512, .vocab_size = 1000};
  const nlohmann::ordered_json body = ParseJsonObject(text);
  switch (kind) {
    case 'c': {
      const ChatRequest request = ParseChatRequest(body, limits);
      Require(request.prompt.messages->is_array() && !request.prompt.messages->empty());
      RequireIgnoredHeader(request.ignored);
      break;
    }
    case 'p': {
      const CompletionRequest request = ParseCompletionRequest(body, limits);
      Require(!request.prompts.empty() && request.best_of >= request.generation.n);
      RequireIgnoredHeader(request.ignored);
      break;
    }
    case 't':
      RequireIgnoredHeader(ParseTokenizeRequest(body, limits).ignored);
      break;
    case 'd':
      RequireIgnoredHeader(ParseDetokenizeRequest(body, limits).ignored);
      break;
    case 'e': {
      const EmbeddingRequest request = ParseEmbeddingRequest(body, {1000, 64});
      Require(!request.inputs.empty() && request.dimensions >= 1 && request.dimensions <= 64);
      RequireIgnoredHeader(request.ignored);
      break;
    }
    case 's': {
      const ScoreRequest request = ParseScoreRequest(body);
      Require(request.first.size() == 1 || request.first.size() == request.second.size());
      RequireIgnoredHeader(request.ignored);
      break;
    }
    case 'r': {
      const RerankRequest request = ParseRerankRequest(body);
      Require(request.top_n >= 1 && request.top_n <= std::ssize(request.documents));
      RequireIgnoredHeader(request.ignored);
      break;
    }
    case 'o': {
      FieldReader(body).RequiredString("model");
      const ResponsesRequest request = ParseResponsesRequest(body, limits, {});
      Require(request.input.items.empty() == request.chat->contains("prompt_token_ids"));
      Require(request.settings->is_object());
      Require(request.input.messages.size() == request.input.paths.size());
      RequireIgnoredHeader(request.input.ignored);
      RequireIgnoredHeader(request.tools.ignored);
      WithContext([&](const Error& error) { return InResponsesTerms(error, request); },
                  [&] { RequireIgnoredHeader(ParseChatRequest(*request.chat, limits).ignored); });
      break;
    }
    default:
      break;
  }
}

void RequireGoodReply(const ErrorReply& reply) {
  Require(reply.status >= 400 && reply.status < 500);
  Require(reply.body.size() <= 4096);
  // Parsing also checks the UTF-8.
  const auto body = nlohmann::json::parse(reply.body, nullptr, false);
  Require(body.is_object() && body.contains("error"));
  const auto& error = body["error"];
  Require(error.size() == 4 && error["message"].is_string() && error["type"].is_string());
  Require(error["param"].is_string() || error["param"].is_null());
  Require(error["code"].is_string() || error["code"].is_null());
}

}  // namespace
}  // namespace tandem::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    server::Read(static_cast<char>(data[0]), text);
  } catch (const Error& error) {
    server::RequireGoodReply(server::MakeErrorReply(error, "req_fuzz"));
  }
  return 0;
}
