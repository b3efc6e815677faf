#include "server/cli/manual/verb_doc.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>
#include <utility>

#include "server/cli/manual/usage.h"

namespace tandem::server {
namespace {

std::vector<std::string> SplitAt(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

ValueKind KindOf(std::string_view value) {
  if (value == "DIR" || value == "NAME=DIR") return ValueKind::kDirectory;
  // Free text may be a path: shells complete it like one.
  const bool may_be_path = value == "FILE" || value == "PATH" || value == "TEXT";
  return may_be_path ? ValueKind::kFile : ValueKind::kNone;
}

// A large upper limit only keeps numbers from overflowing.
std::string LimitsText(const std::string& least, const std::string& most) {
  constexpr size_t kDigitsOfManyMillions = 7;
  if (most.size() >= kDigitsOfManyMillions) return "at least " + least;
  return "from " + least + " to " + most;
}

// CLI11 names a type and its checks as "TEXT:{auto,f32}", "INT:INT in [0 - 4096]" or "TEXT:FILE".
void ReadType(const std::string& type, OptionDoc& option) {
  const size_t colon = std::min(type.find(':'), type.size());
  const std::string_view base = std::string_view(type).substr(0, colon);
  const std::string_view check = std::string_view(type).substr(std::min(colon + 1, type.size()));
  option.value = base == "INT" || base == "UINT" || base == "FLOAT" ? "N" : std::string(base);
  if (check == "FILE" || check == "DIR") option.value = check;
  if (const size_t open = check.find('{'); open != std::string_view::npos) {
    const size_t close = std::min(check.find('}', open), check.size());
    option.choices = SplitAt(check.substr(open + 1, close - open - 1), ',');
  } else if (base.find('|') != std::string_view::npos) {
    option.choices = SplitAt(base, '|');
  }
  if (const size_t in = check.find(" in ["); in != std::string_view::npos) {
    const std::vector<std::string> ends = SplitAt(check.substr(in + 5), ' ');
    if (ends.size() == 3) option.limits = LimitsText(ends[0], ends[2].substr(0, ends[2].find(']')));
  }
  if (!option.choices.empty()) option.value = "WORD";
}

// Values of flags that CLI11 knows as text only. A name means the same in every verb.
void NameValue(OptionDoc& option) {
  static constexpr std::pair<std::string_view, std::string_view> kValues[] = {
      {"--adapter", "DIR"},      {"--api-keys-db", "FILE"},   {"--base", "PATH"},
      {"--cache-size", "BYTES"}, {"--chat-template", "FILE"}, {"--data", "FILE"},
      {"--data-dir", "DIR"},     {"--database", "URL"},       {"--database-password-file", "FILE"},
      {"--dir", "DIR"},          {"--file", "FILE"},          {"--job", "DIR"},
      {"--log-level", "LEVEL"},  {"--memory", "BYTES"},       {"--model", "PATH"},
      {"--out", "FILE"},         {"--report", "FILE"},        {"--shard-bytes", "BYTES"},
      {"--text", "FILE"},        {"--tokenizer", "PATH"},     {"--tokens", "IDS"}};
  if (option.value != "TEXT" || option.flags.empty()) return;
  for (const auto& [flag, value] : kValues) {
    if (option.flags.back() == flag) option.value = value;
  }
}

OptionDoc DescribeOption(const CLI::Option& option) {
  OptionDoc doc;
  for (const std::string& name : option.get_snames()) doc.flags.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) doc.flags.push_back("--" + name);
  if (!option.nonpositional()) doc.name = option.get_name(true);
  doc.help = option.get_description();
  doc.is_required = option.get_required();
  if (option.get_items_expected_max() == 0) return doc;
  doc.is_repeatable = option.get_items_expected_max() > 1;
  ReadType(option.get_type_name(), doc);
  NameValue(doc);
  if (doc.choices.empty()) doc.kind = KindOf(doc.value);
  const std::string text = option.get_default_str();
  if (text != "[]" && text != "\"\"") doc.default_text = text;
  return doc;
}

}  // namespace

VerbDoc DescribeVerb(const CLI::App& verb) {
  VerbDoc doc;
  doc.path = VerbPath(verb);
  doc.name = verb.get_name();
  doc.summary = verb.get_description();
  doc.notes = verb.get_footer();
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    (option->nonpositional() ? doc.flags : doc.arguments).push_back(DescribeOption(*option));
  }
  for (const CLI::App* child : verb.get_subcommands([](const CLI::App*) { return true; })) {
    doc.verbs.push_back(DescribeVerb(*child));
  }
  return doc;
}

std::string FullHelp(const OptionDoc& option) {
  std::vector<std::string> notes;
  if (!option.choices.empty()) {
    std::string words;
    for (const std::string& choice : option.choices) words += (words.empty() ? "" : ", ") + choice;
    notes.push_back((option.choices.size() == 1 ? "only " : "one of ") + words);
  }
  if (!option.limits.empty()) notes.push_back(option.limits);
  if (option.is_required) notes.emplace_back("required");
  if (!option.default_text.empty()) notes.push_back("default: " + option.default_text);
  if (notes.empty()) return option.help;
  std::string text;
  for (const std::string& note : notes) text += (text.empty() ? "" : "; ") + note;
  if (option.help.empty()) return text;
  // "compute threads (0: one per core; default: 0)": one pair of parentheses.
  if (option.help.ends_with(')'))
    return option.help.substr(0, option.help.size() - 1) + "; " + text + ")";
  return option.help + " (" + text + ")";
}

}  // namespace tandem::server
