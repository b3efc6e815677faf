#include "server/wire/embedding_request.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxTexts = 2048;

std::string ElementOf(const std::string& param, size_t i) {
  return param + "[" + std::to_string(i) + "]";
}

void RefuseEmptyText(const std::string& text, const std::string& param) {
  if (text.empty()) throw BadValue(param, param + " must not be empty");
}

std::optional<engine::Pooling> ReadPooling(FieldReader& reader) {
  static constexpr std::pair<std::string_view, engine::Pooling> kNames[] = {
      {"mean", engine::Pooling::kMean},
      {"last", engine::Pooling::kLast},
      {"cls", engine::Pooling::kCls}};
  const std::optional<std::string> name = reader.String("pooling");
  if (!name) return std::nullopt;
  for (const auto& [known, pooling] : kNames) {
    if (*name == known) return pooling;
  }
  throw BadValue("pooling", "pooling must be mean, last or cls, got " + ShortForm(Json(*name)));
}

// Fields of other servers that change the result and that this server does not implement.
void RefuseOtherResults(FieldReader& reader, const char* texts) {
  if (reader.Any("truncate_prompt_tokens") != nullptr) {
    throw UnsupportedField(
        "truncate_prompt_tokens",
        std::string("truncate_prompt_tokens is not supported: shorten ") + texts + " instead");
  }
  if (!reader.Bool("normalize").value_or(true)) {
    throw UnsupportedField("normalize",
                           "normalize: false is not supported: embeddings have norm 1");
  }
}

// A text, or an object with the field `text`.
std::string ReadDocument(const Json& value, const std::string& param) {
  std::string text;
  if (value.is_string()) {
    text = value.get<std::string>();
  } else if (value.is_object()) {
    FieldReader members(value, param);
    text = members.RequiredString("text");
  } else {
    throw WrongType(param, "a string, or an object with the field text", value);
  }
  RefuseEmptyText(text, param);
  return text;
}

std::vector<std::string> ReadDocuments(const Json& list, const std::string& param) {
  if (list.empty()) throw BadValue(param, param + " must not be an empty array");
  if (list.size() > kMaxTexts) {
    throw BadValue(param, param + " must have at most " + std::to_string(kMaxTexts) +
                              " entries, got " + std::to_string(list.size()));
  }
  std::vector<std::string> texts;
  for (size_t i = 0; i < list.size(); ++i) {
    texts.push_back(ReadDocument(list[i], ElementOf(param, i)));
  }
  return texts;
}

std::vector<std::string> ReadTexts(FieldReader& reader, const std::string& param) {
  const Json* value = reader.Any(param);
  if (value == nullptr) throw MissingField(param);
  if (value->is_array()) return ReadDocuments(*value, param);
  if (!value->is_string()) throw WrongType(param, "a string or an array of strings", *value);
  return {ReadDocument(*value, param)};
}

}  // namespace

EmbeddingRequest ParseEmbeddingRequest(const Json& body, const EmbeddingLimits& limits) {
  FieldReader reader(body);
  reader.Accept({"model", "user"});
  EmbeddingRequest request;
  const Json* input = reader.Any("input");
  if (input == nullptr) throw MissingField("input");
  request.inputs = ReadPrompts(*input, "input", limits.vocab_size);
  for (size_t i = 0; i < request.inputs.size(); ++i) {
    const auto* text = std::get_if<std::string>(&request.inputs[i]);
    if (text != nullptr)
      RefuseEmptyText(*text, input->is_array() ? ElementOf("input", i) : "input");
  }
  const std::string encoding = reader.String("encoding_format").value_or("float");
  if (encoding == "base64") {
    request.encoding = EmbeddingEncoding::kBase64;
  } else if (encoding != "float") {
    throw BadValue("encoding_format",
                   "encoding_format must be float or base64, got " + ShortForm(Json(encoding)));
  }
  request.dimensions = reader.Int("dimensions", 1, limits.hidden_dim).value_or(limits.hidden_dim);
  request.pooling = ReadPooling(reader);
  request.priority = ReadPriority(reader);
  RefuseOtherResults(reader, "the input");
  request.ignored = reader.unknown();
  return request;
}

ScoreRequest ParseScoreRequest(const Json& body) {
  FieldReader reader(body);
  reader.Accept({"model", "user"});
  ScoreRequest request;
  request.first = ReadTexts(reader, "text_1");
  request.second = ReadTexts(reader, "text_2");
  if (request.first.size() != 1 && request.first.size() != request.second.size()) {
    throw BadValue("text_1", "text_1 must have one text, or as many as text_2 (" +
                                 std::to_string(request.second.size()) + "), got " +
                                 std::to_string(request.first.size()));
  }
  request.pooling = ReadPooling(reader);
  request.priority = ReadPriority(reader);
  RefuseOtherResults(reader, "the texts");
  request.ignored = reader.unknown();
  return request;
}

RerankRequest ParseRerankRequest(const Json& body) {
  FieldReader reader(body);
  reader.Accept({"model", "user"});
  RerankRequest request;
  request.query = reader.RequiredString("query");
  RefuseEmptyText(request.query, "query");
  const Json* documents = reader.Array("documents");
  if (documents == nullptr) throw MissingField("documents");
  request.documents = ReadDocuments(*documents, "documents");
  const auto n_documents = static_cast<int64_t>(request.documents.size());
  request.top_n = reader.Int("top_n", 1, std::numeric_limits<int64_t>::max()).value_or(n_documents);
  request.top_n = std::min(request.top_n, n_documents);
  request.return_documents = reader.Bool("return_documents").value_or(false);
  request.pooling = ReadPooling(reader);
  request.priority = ReadPriority(reader);
  RefuseOtherResults(reader, "the documents");
  request.ignored = reader.unknown();
  return request;
}

}  // namespace tandem::server
