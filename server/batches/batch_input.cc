#include "server/batches/batch_input.h"

#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <unordered_set>
#include <utility>

#include "engine/base/attempt.h"
#include "server/wire/field_reader.h"

namespace tandem::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kPieceBytes = 256 << 10;
constexpr size_t kMaxCustomIdBytes = 512;
constexpr size_t kMaxListedErrors = 50;

bool IsBlank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

Error LineError(const char* reason, const std::string& message, const char* param) {
  return Error(ErrorCode::kInvalidArgument, message).WithReason(reason).WithParam(param);
}

std::string RequiredText(const Json& line, const char* name) {
  const auto found = line.find(name);
  if (found == line.end() || found->is_null()) {
    throw LineError("missing_required_parameter",
                    "the line has no '" + std::string(name) +
                        "'; write {\"custom_id\", \"method\", \"url\", \"body\"}",
                    name);
  }
  if (!found->is_string()) {
    throw LineError("invalid_type", std::string(name) + " must be a string", name);
  }
  return found->get<std::string>();
}

// These would keep a line from having one whole answer.
void RefuseFlag(const Json& body, const char* name, const char* param) {
  const auto found = body.find(name);
  if (found == body.end() || found->is_null() || *found == Json(false)) return;
  throw LineError("unsupported_value",
                  std::string(name) + " must be false or absent in a batch: a line has one answer",
                  param);
}

}  // namespace

BatchInput::BatchInput(std::filesystem::path file, int64_t max_line_bytes)
    : path_(std::move(file)), max_line_bytes_(max_line_bytes) {
  struct stat status {};
  file_ = engine::OpenRegularFile(path_, status);
  bytes_ = status.st_size;
}

void BatchInput::ForEach(
    const std::function<bool(const LineSpan&, const std::string*)>& use) const {
  std::string text;  // of the line so far; stops growing beyond the bound
  LineSpan span{.number = 1};
  const auto end_line = [&] {
    const bool is_too_long = span.bytes > max_line_bytes_;
    const bool goes_on =
        (!is_too_long && IsBlank(text)) || use(span, is_too_long ? nullptr : &text);
    span = {.number = span.number + 1, .offset = span.offset + span.bytes + 1, .bytes = 0};
    text.clear();
    return goes_on;
  };
  std::string piece;
  for (int64_t at = 0; at < bytes_; at += static_cast<int64_t>(piece.size())) {
    piece.resize(static_cast<size_t>(std::min(kPieceBytes, bytes_ - at)));
    engine::ReadAllAt(file_, std::as_writable_bytes(std::span(piece)), at, path_);
    std::string_view rest = piece;
    while (!rest.empty()) {
      const size_t end = rest.find('\n');
      const std::string_view part = rest.substr(0, end);
      if (span.bytes <= max_line_bytes_) text += part;
      span.bytes += static_cast<int64_t>(part.size());
      if (end == std::string_view::npos) break;
      if (!end_line()) return;
      rest.remove_prefix(end + 1);
    }
  }
  if (span.bytes > 0) end_line();
}

std::string BatchInput::Read(const LineSpan& span) const {
  std::string text(static_cast<size_t>(span.bytes), '\0');
  engine::ReadAllAt(file_, std::as_writable_bytes(std::span(text)), span.offset, path_);
  return text;
}

BatchLine ParseBatchLine(std::string_view text, std::string_view endpoint) {
  const auto as_line = [](const Error& error) {
    return Error(ErrorCode::kInvalidArgument,
                 "the line is not one JSON object: " + std::string(error.what()))
        .WithReason("invalid_json_line");
  };
  Json line = WithContext(as_line, [&] { return ParseJsonObject(text); });
  BatchLine out;
  out.custom_id = RequiredText(line, "custom_id");
  if (out.custom_id.empty() || out.custom_id.size() > kMaxCustomIdBytes) {
    throw LineError("invalid_value", "custom_id must have 1 to 512 bytes", "custom_id");
  }
  if (const std::string method = RequiredText(line, "method"); method != "POST") {
    throw LineError("invalid_method", "method must be 'POST', got " + ShortForm(Json(method)),
                    "method");
  }
  if (const std::string url = RequiredText(line, "url"); url != endpoint) {
    throw LineError("invalid_url",
                    "url must be the endpoint of the batch, '" + std::string(endpoint) + "', got " +
                        ShortForm(Json(url)),
                    "url");
  }
  const auto body = line.find("body");
  if (body == line.end() || body->is_null()) {
    throw LineError("missing_required_parameter", "the line has no 'body'", "body");
  }
  if (!body->is_object()) throw LineError("invalid_type", "body must be an object", "body");
  RefuseFlag(*body, "stream", "body.stream");
  RefuseFlag(*body, "background", "body.background");
  if (const auto model = body->find("model"); model != body->end() && model->is_string()) {
    out.model = model->get<std::string>();
  }
  out.body = body->dump();
  return out;
}

CheckedInput CheckBatchInput(const BatchInput& input, std::string_view endpoint,
                             const std::function<bool()>& is_stopping) {
  CheckedInput checked;
  std::unordered_set<std::string> custom_ids;
  bool has_one_model = true;
  const auto note = [&](BatchError error) {
    checked.errors.push_back(std::move(error));
    return checked.errors.size() < kMaxListedErrors;
  };
  input.ForEach([&](const LineSpan& span, const std::string* text) {
    if (is_stopping()) throw Error(ErrorCode::kCancelled, "the server is stopping");
    if (static_cast<int64_t>(checked.lines.size()) == kMaxBatchLines) {
      note({.code = "too_many_requests",
            .message = "the input has more than " + std::to_string(kMaxBatchLines) +
                       " lines; split it into several batches",
            .line = span.number});
      return false;
    }
    checked.lines.push_back(span);
    if (text == nullptr) {
      return note({.code = "request_too_large",
                   .message = "the line has " + std::to_string(span.bytes) +
                              " bytes, which is more than --max-body",
                   .line = span.number});
    }
    std::optional<BatchLine> line;
    if (const auto error = ErrorOf({ErrorCode::kInvalidArgument},
                                   [&] { line = ParseBatchLine(*text, endpoint); })) {
      return note({error->reason(), error->what(), error->param(), span.number});
    }
    if (checked.lines.size() == 1) checked.model = line->model;
    has_one_model = has_one_model && checked.model == line->model;
    if (!custom_ids.insert(line->custom_id).second) {
      return note({"duplicate_custom_id",
                   "an earlier line has the custom_id " + ShortForm(Json(line->custom_id)),
                   "custom_id", span.number});
    }
    return true;
  });
  if (checked.lines.empty()) {
    note({.code = "empty_file", .message = "the input file has no lines"});
  }
  if (!has_one_model || (checked.model && checked.model->empty())) checked.model.reset();
  return checked;
}

std::vector<LineSpan> LinesOf(const BatchInput& input) {
  std::vector<LineSpan> lines;
  input.ForEach([&](const LineSpan& span, const std::string*) {
    lines.push_back(span);
    return true;
  });
  return lines;
}

}  // namespace tandem::server
