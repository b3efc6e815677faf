// The text of an answer, in every format of tool calls: the first byte chooses the format and the
// cuts. The events keep their order, calls that ended have a JSON object, and the cuts of the text
// change nothing.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <variant>

#include "engine/chat/answers/answer_parser.h"
#include "engine/chat/answers/json_scanner.h"

namespace {

using namespace tandem::engine;

void Require(bool truth) {
  if (!truth) std::abort();
}

const std::shared_ptr<const DeclaredTools>& Tools() {
  static const auto tools = std::make_shared<const DeclaredTools>(nlohmann::ordered_json::parse(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {
          "k": {"type": "integer"}}}}}])"));
  return tools;
}

bool IsObject(std::string_view text) {
  JsonScanner scanner;
  auto status = JsonScanner::Status::kMore;
  for (const char byte : text) status = scanner.Feed(byte);
  return status == JsonScanner::Status::kDone && text.starts_with('{');
}

// Checks the order of the events. Returns a text that equal events share.
std::string Check(const AnswerEvents& events, bool was_cut) {
  std::string spelled, arguments;
  char last = 0;
  int open = -1, n_begun = 0;
  const auto add = [&](char kind, std::string_view text) {
    if (kind != last) spelled.append({'\0', kind});
    last = kind;
    spelled += text;
  };
  for (const AnswerEvent& event : events) {
    Require(spelled.empty() || last != 'F');
    if (const auto* text = std::get_if<TextPart>(&event)) {
      Require(open < 0 && !text->text.empty());
      add('T', text->text);
    } else if (const auto* thought = std::get_if<ReasoningPart>(&event)) {
      Require(open < 0 && !thought->text.empty());
      add('R', thought->text);
    } else if (const auto* begin = std::get_if<CallBegin>(&event)) {
      Require(open < 0 && begin->index == n_begun && begin->name == "f");
      open = n_begun++;
      arguments.clear();
      add('B', {});
    } else if (const auto* part = std::get_if<CallArguments>(&event)) {
      Require(part->index == open && !part->text.empty());
      arguments += part->text;
      add('A', part->text);
    } else if (const auto* end = std::get_if<CallEnd>(&event)) {
      Require(end->index == open && IsObject(arguments));
      open = -1;
      add('E', {});
    } else if (const auto* dropped = std::get_if<CallDropped>(&event)) {
      Require(dropped->index == open);
      open = -1;
      add('D', dropped->written);
    } else {
      Require(open < 0 || was_cut);
      add('F', {});
    }
  }
  Require(last == 'F');
  return spelled;
}

std::string Read(const AnswerOptions& options, std::string_view text, size_t step, bool was_cut) {
  AnswerParser parser(options);
  AnswerEvents all;
  const auto take = [&all](AnswerEvents events) {
    for (AnswerEvent& event : events) all.push_back(std::move(event));
  };
  for (size_t at = 0; at < text.size(); at += step) take(parser.Push(text.substr(at, step)));
  take(parser.Finish(was_cut));
  return Check(all, was_cut);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  AnswerOptions options;
  options.format = &ToolFormats()[data[0] % ToolFormats().size()];
  options.tools = Tools();
  options.new_id = [] { return std::string("id"); };
  if (data[0] & 0x80) options.reasoning = ReasoningSplitter::State::kUndecided;
  const bool was_cut = (data[0] & 0x40) != 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  const std::string whole = Read(options, text, size, was_cut);
  Require(Read(options, text, 1, was_cut) == whole);
  Require(Read(options, text, 5, was_cut) == whole);
  return 0;
}
