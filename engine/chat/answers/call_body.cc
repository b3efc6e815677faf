#include "engine/chat/answers/call_body.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "engine/base/attempt.h"
#include "engine/chat/answers/literal_calls.h"
#include "engine/chat/answers/partial_mark.h"
#include "engine/io/json.h"

namespace tandem::engine {
namespace {

using Status = CallBody::Status;

// The longest name of a tool is 64 bytes; a note may follow it. The mark behind the name must be
// complete within this many bytes. So the result does not depend on how the text was cut.
constexpr size_t kMostNameBytes = 256;
// White space between two tags of a call. More of it is part of a value.
constexpr size_t kMostSpace = 64;

std::optional<std::string> ReadJsonString(std::string_view text) {
  std::optional<std::string> out;
  ErrorOf([&] {
    const nlohmann::ordered_json value = ParseUntrustedJson(text, "call");
    if (value.is_string()) out = value.get<std::string>();
  });
  return out;
}

// {"name": "f", "arguments": {…}}. Arguments that follow the name are passed on as they arrive;
// arguments before it wait for the end of the object.
class JsonBody : public CallBody {
 public:
  explicit JsonBody(const ToolFormat& format) : format_(format) {}

  Status Read(AnswerInput& input, AnswerWriter& writer) override {
    const std::string_view text = input.text();
    size_t n_read = 0;
    Status status = Status::kMore;
    while (status == Status::kMore && n_read < text.size()) {
      status = Next(text[n_read], writer);
      if (status != Status::kBad) ++n_read;
    }
    writer.Arguments(std::exchange(streamed_, {}));
    if (status == Status::kDone) writer.End();
    input.Take(n_read);
    return status;
  }

 private:
  Status Next(char byte, AnswerWriter& writer) {
    const bool is_member = scanner_.depth() == 1;
    const bool expected_value = is_member && scanner_.expects_value();
    const bool was_in_key = is_member && scanner_.is_in_key();
    const JsonScanner::Status status = scanner_.Feed(byte);
    if (status == JsonScanner::Status::kBad) return Status::kBad;
    if (was_in_key && scanner_.is_in_key()) key_.push_back(byte);
    if (is_member && !was_in_key && scanner_.is_in_key()) key_.clear();
    if (was_in_key && !scanner_.is_in_key() && !MayHaveKey(writer)) return Status::kBad;
    if (expected_value && !scanner_.expects_value()) BeginValue(byte, writer);
    if (is_in_value_) (is_streaming_ ? streamed_ : value_).push_back(byte);
    const bool ends_value = is_in_value_ && scanner_.depth() == 1 && scanner_.expects_comma();
    if (ends_value && !EndValue(writer)) return Status::kBad;
    if (status != JsonScanner::Status::kDone) return Status::kMore;
    return EndObject(writer) ? Status::kDone : Status::kBad;
  }

  bool IsArgumentsKey() const { return key_ == "arguments" || key_ == "parameters"; }

  // Where no mark tells a call from other JSON, its keys do.
  bool MayHaveKey(const AnswerWriter& writer) const {
    if (!format_.only_at_beginning || writer.is_in_call()) return true;
    return key_ == "name" || key_ == "type" || key_ == "id" || IsArgumentsKey();
  }

  void BeginValue(char byte, AnswerWriter& writer) {
    is_in_value_ = true;
    value_.clear();
    if (!IsArgumentsKey() || name_.empty() || writer.is_in_call() || byte != '{') return;
    is_streaming_ = true;
    writer.Begin(name_);
  }

  // Numbers end without notice, and are no name and no arguments.
  bool EndValue(const AnswerWriter& writer) {
    is_in_value_ = false;
    if (std::exchange(is_streaming_, false) || writer.is_in_call()) return true;
    if (key_ == "name") {
      name_ = ReadJsonString(value_).value_or("");
      return writer.MayCall(name_);
    }
    return !IsArgumentsKey() || KeepArguments();
  }

  bool KeepArguments() {
    if (value_ == "null") return true;
    if (value_.starts_with('"')) value_ = ReadJsonString(value_).value_or("");
    const size_t begin = value_.find_first_not_of(kWhiteSpace);
    if (begin == std::string::npos || value_[begin] != '{' || !IsJsonValue(value_)) return false;
    arguments_ = value_;
    return true;
  }

  bool EndObject(AnswerWriter& writer) {
    if (writer.is_in_call()) return true;
    if (name_.empty()) return false;
    writer.Begin(name_);
    streamed_ = arguments_;
    return true;
  }

  const ToolFormat& format_;
  JsonScanner scanner_;
  std::string key_, value_;
  std::string name_;
  std::string arguments_ = "{}";
  std::string streamed_;  // arguments since the last event
  bool is_in_value_ = false;
  bool is_streaming_ = false;
};

// f[ARGS]{…}
class NamedBody : public CallBody {
 public:
  explicit NamedBody(const ToolFormat& format) : format_(format) {}

  Status Read(AnswerInput& input, AnswerWriter& writer) override {
    if (!arguments_) {
      const AnswerInput::Found found = input.Find({&format_.name_end, 1});
      const size_t n_bytes =
          found.mark.empty() ? input.text().size() + 1 : found.at + found.mark.size();
      if (n_bytes > kMostNameBytes) return Status::kBad;
      if (found.mark.empty()) return Status::kMore;
      std::string_view name = input.text().substr(0, found.at);
      name = name.substr(0, std::min(name.find(format_.name_note), name.size()));
      name.remove_prefix(std::min(name.find_first_not_of(kWhiteSpace), name.size()));
      name = name.substr(0, name.find_last_not_of(kWhiteSpace) + 1);
      if (!writer.MayCall(name)) return Status::kBad;
      arguments_.emplace(std::string(name));
      input.Take(found.at + found.mark.size());
    }
    return arguments_->Read(input, input.text().size(), writer);
  }

 private:
  const ToolFormat& format_;
  std::optional<ArgumentsBody> arguments_;
};

// <function=f><parameter=k>v</parameter></function>. A value may hold any text except its own end.
class XmlBody : public CallBody {
 public:
  Status Read(AnswerInput& input, AnswerWriter& writer) override {
    Status status = Status::kMore;
    do {
      at_before_ = input.text().size();
      status = is_in_value_ ? ReadValue(input, writer) : ReadTag(input, writer);
    } while (status == Status::kMore && input.text().size() < at_before_);
    return status;
  }

 private:
  static constexpr std::string_view kFunction = "<function=", kFunctionEnd = "</function>";
  static constexpr std::string_view kParameter = "<parameter=", kParameterEnd = "</parameter>";

  Status ReadTag(AnswerInput& input, AnswerWriter& writer) {
    if (!input.SkipSpace()) return Status::kMore;
    const bool is_member = !name_.empty();
    if (is_member) {
      const AnswerInput::Match end = input.Begins(kFunctionEnd);
      if (end == AnswerInput::Match::kYes) return End(input, writer);
      if (end == AnswerInput::Match::kMore) return Status::kMore;
    }
    const std::string_view open = is_member ? kParameter : kFunction;
    const AnswerInput::Match begins = input.Begins(open);
    if (begins == AnswerInput::Match::kNo) return Status::kBad;
    const size_t close = std::min(input.text().find('>'), input.text().size());
    if (close >= kMostNameBytes) return Status::kBad;
    if (begins == AnswerInput::Match::kMore || close == input.text().size()) return Status::kMore;
    const std::string_view name = input.text().substr(open.size(), close - open.size());
    if (!is_member && !writer.MayCall(name)) return Status::kBad;
    (is_member ? parameter_ : name_) = name;
    if (is_member) {
      is_in_value_ = true;
      search_from_ = 0;
    } else {
      writer.Begin(name_);
      writer.Arguments("{");
    }
    input.Take(close + 1);
    return Status::kMore;
  }

  Status ReadValue(AnswerInput& input, AnswerWriter& writer) {
    const std::string_view text = input.text();
    while (true) {
      const size_t end = text.find(kParameterEnd, search_from_);
      if (end == std::string_view::npos) {
        search_from_ =
            std::max(search_from_, text.size() - std::min(text.size(), kParameterEnd.size() - 1));
        return Status::kMore;
      }
      search_from_ = end;
      const std::string_view behind = text.substr(end + kParameterEnd.size());
      const size_t n_space = std::min(behind.find_first_not_of(kWhiteSpace), behind.size());
      if (n_space > kMostSpace) {
        search_from_ = end + 1;
        continue;
      }
      const std::string_view next = behind.substr(n_space);
      const std::string_view enough = next.substr(0, kFunctionEnd.size());
      if (next.starts_with(kParameter) || next.starts_with(kFunctionEnd)) {
        WriteValue(text.substr(0, end), writer);
        input.Take(end + kParameterEnd.size());
        is_in_value_ = false;
        return Status::kMore;
      }
      if (kParameter.starts_with(enough) || kFunctionEnd.starts_with(enough)) return Status::kMore;
      search_from_ = end + 1;
    }
  }

  // Templates write a line break on both sides of the value.
  void WriteValue(std::string_view value, AnswerWriter& writer) {
    if (value.starts_with('\n')) value.remove_prefix(1);
    if (value.ends_with('\n')) value.remove_suffix(1);
    std::string member = is_first_ ? "" : ", ";
    is_first_ = false;
    member += ToJsonString(parameter_);
    member += ": ";
    const bool is_json = writer.tools().IsJson(name_, parameter_) && IsJsonValue(value);
    member += is_json ? std::string(value) : ToJsonString(value);
    writer.Arguments(member);
  }

  Status End(AnswerInput& input, AnswerWriter& writer) {
    input.Take(kFunctionEnd.size());
    writer.Arguments("}");
    writer.End();
    return Status::kDone;
  }

  std::string name_, parameter_;
  bool is_in_value_ = false;
  bool is_first_ = true;
  size_t search_from_ = 0;  // in the unread text
  size_t at_before_ = 0;
};

// Calls that become JSON once they are complete.
class LiteralBody : public CallBody {
 public:
  explicit LiteralBody(const ToolFormat& format)
      : format_(format),
        end_({.is_python = format.style == CallStyle::kPythonic, .quote = format.quote}) {}

  Status Read(AnswerInput& input, AnswerWriter& writer) override {
    const std::string_view text = input.text();
    if (!has_name_) {
      const Status status = CheckBeginning(text, writer);
      if (!has_name_) return status;
    }
    const std::optional<size_t> end = end_.Find(text);
    if (!end) return Status::kMore;
    const std::vector<WrittenCall> calls = Calls(text.substr(0, *end));
    if (calls.empty() || !std::all_of(calls.begin(), calls.end(), [&](const WrittenCall& call) {
          return writer.MayCall(call.name);
        })) {
      return Status::kBad;
    }
    for (const WrittenCall& call : calls) {
      writer.Begin(call.name);
      writer.Arguments(call.arguments);
      writer.End();
    }
    input.Take(*end);
    return Status::kDone;
  }

 private:
  // Other text must not wait for a bracket that never comes, so the first name decides.
  Status CheckBeginning(std::string_view text, const AnswerWriter& writer) {
    const bool is_python = format_.style == CallStyle::kPythonic;
    const std::string_view before = is_python ? "[" : "call:";
    const std::string_view whole = text;
    const Status undecided = whole.size() >= kMostNameBytes ? Status::kBad : Status::kMore;
    text.remove_prefix(std::min(text.find_first_not_of(kWhiteSpace), text.size()));
    if (!text.starts_with(before)) return before.starts_with(text) ? undecided : Status::kBad;
    text.remove_prefix(before.size());
    text.remove_prefix(std::min(text.find_first_not_of(kWhiteSpace), text.size()));
    const size_t end = text.find(is_python ? '(' : '{');
    if (end == std::string_view::npos) return undecided;
    const auto n_before = static_cast<size_t>(text.data() - whole.data());
    if (n_before + end >= kMostNameBytes) return Status::kBad;
    has_name_ = writer.MayCall(text.substr(0, end));
    return has_name_ ? Status::kMore : Status::kBad;
  }

  std::vector<WrittenCall> Calls(std::string_view text) const {
    if (format_.style == CallStyle::kPythonic) {
      return ReadPythonicCalls(text).value_or(std::vector<WrittenCall>());
    }
    std::vector<WrittenCall> calls;
    if (auto call = ReadKeyedCall(text, format_.quote)) calls.push_back(*std::move(call));
    return calls;
  }

  const ToolFormat& format_;
  LiteralEnd end_;
  bool has_name_ = false;
};

}  // namespace

Status ArgumentsBody::Read(AnswerInput& input, size_t n, AnswerWriter& writer) {
  const std::string_view text = input.text().substr(0, n);
  const size_t begin =
      scanner_.depth() == 0 ? std::min(text.find_first_not_of(kWhiteSpace), text.size()) : 0;
  if (scanner_.depth() == 0 && begin < text.size()) {
    if (text[begin] != '{') return Status::kBad;
    writer.Begin(name_);
  }
  size_t end = begin;
  JsonScanner::Status status = JsonScanner::Status::kMore;
  while (end < text.size() && status == JsonScanner::Status::kMore) {
    status = scanner_.Feed(text[end]);
    if (status != JsonScanner::Status::kBad) ++end;
  }
  writer.Arguments(text.substr(begin, end - begin));
  input.Take(end);
  if (status == JsonScanner::Status::kMore) return Status::kMore;
  if (status == JsonScanner::Status::kBad) return Status::kBad;
  writer.End();
  return Status::kDone;
}

std::unique_ptr<CallBody> MakeCallBody(const ToolFormat& format) {
  switch (format.style) {
    case CallStyle::kNameThenJson:
      return std::make_unique<NamedBody>(format);
    case CallStyle::kXmlParameters:
      return std::make_unique<XmlBody>();
    case CallStyle::kPythonic:
    case CallStyle::kKeyedValues:
      return std::make_unique<LiteralBody>(format);
    case CallStyle::kJson:
    case CallStyle::kHarmony:
      break;
  }
  return std::make_unique<JsonBody>(format);
}

}  // namespace tandem::engine
