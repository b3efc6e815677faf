#include "server/cli/manual/help_text.h"

#include <algorithm>
#include <vector>

#include "server/cli/manual/examples.h"
#include "server/cli/manual/exit_codes_doc.h"

namespace tandem::server {
namespace {

constexpr size_t kWidestLabel = 26;

// Appends words behind `column`, on lines of at most `columns`; later lines begin at `column`.
void AppendWrapped(std::string& out, std::string_view text, size_t column, size_t columns) {
  const size_t room = columns > column + 20 ? columns - column : 20;
  size_t used = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (word.empty()) continue;
    if (used > 0 && used + 1 + word.size() > room) {
      out += "\n" + std::string(column, ' ');
      used = 0;
    }
    if (used > 0) out += ' ';
    out += word;
    used += word.size() + (used > 0 ? 1 : 0);
  }
  out += '\n';
}

struct HelpRow {
  std::string label, text;
};

void AppendRows(std::string& out, const char* title, const std::vector<HelpRow>& rows,
                size_t columns) {
  if (rows.empty()) return;
  size_t widest = 0;
  for (const HelpRow& row : rows) {
    if (row.label.size() <= kWidestLabel) widest = std::max(widest, row.label.size());
  }
  const size_t column = 2 + widest + 2;
  out += "\n" + std::string(title) + ":\n";
  for (const HelpRow& row : rows) {
    out += "  " + row.label;
    if (row.text.empty()) {
      out += '\n';
      continue;
    }
    const bool is_long = row.label.size() > widest;
    out +=
        is_long ? "\n" + std::string(column, ' ') : std::string(widest - row.label.size() + 2, ' ');
    AppendWrapped(out, row.text, column, columns);
  }
}

std::vector<HelpRow> RowsOf(const std::vector<OptionDoc>& options) {
  std::vector<HelpRow> rows;
  for (const OptionDoc& option : options) {
    std::string text = FullHelp(option);
    const bool says_so = text.find("repeatable") != std::string::npos;
    if (option.is_repeatable && !option.flags.empty() && !says_so) text += "; repeatable";
    rows.push_back({OptionLabel(option), std::move(text)});
  }
  return rows;
}

}  // namespace

std::string OptionLabel(const OptionDoc& option) {
  if (option.flags.empty()) return option.name;
  std::string label;
  for (const std::string& flag : option.flags) label += (label.empty() ? "" : ", ") + flag;
  return option.value.empty() ? label : label + " " + option.value;
}

std::string UsageLine(const VerbDoc& verb) {
  std::string line = verb.path + " [flags]";
  for (const OptionDoc& argument : verb.arguments) {
    const std::string name = argument.name + (argument.is_repeatable ? "..." : "");
    line += argument.is_required ? " " + name : " [" + name + "]";
  }
  return verb.verbs.empty() ? line : verb.path + " VERB ...";
}

std::string HelpText(const VerbDoc& verb, int columns) {
  const auto width = static_cast<size_t>(std::clamp(columns, 40, 100));
  std::string out;
  AppendWrapped(out, verb.summary, 0, width);
  out += "Usage: " + UsageLine(verb) + "\n";
  AppendRows(out, "Arguments", RowsOf(verb.arguments), width);
  AppendRows(out, "Flags", RowsOf(verb.flags), width);
  std::vector<HelpRow> verbs;
  for (const VerbDoc& child : verb.verbs) verbs.push_back({child.name, child.summary});
  AppendRows(out, "Subcommands", verbs, width);
  if (!verb.notes.empty()) out += "\n" + verb.notes + "\n";
  const std::vector<VerbExample> examples = ExamplesOf(verb.path);
  if (!examples.empty()) out += "\nExamples:\n";
  for (const VerbExample& example : examples) {
    out += "  " + std::string(example.command) + "\n      ";
    AppendWrapped(out, example.effect, 6, width);
  }
  out += "\nExit codes: ";
  std::string codes;
  for (const ExitCodeDoc& each : kExitCodeDocs) {
    std::string meaning = each.meaning;
    std::replace(meaning.begin(), meaning.end(), ';', ',');
    codes += (codes.empty() ? "" : "; ") + std::to_string(each.code) + " " + meaning;
  }
  AppendWrapped(out, codes + ".", 12, width);
  return out;
}

std::string FirstScreen(const VerbDoc& root) {
  const auto has = [&](std::string_view name) {
    return std::any_of(root.verbs.begin(), root.verbs.end(),
                       [&](const VerbDoc& verb) { return verb.name == name; });
  };
  std::string out = root.summary + "\n\n";
  if (has("run")) out += "  tandem run              chat with the embedded model\n";
  out +=
      "  tandem serve            serve it over HTTP, with OpenAI's API: http://127.0.0.1:8080\n"
      "  tandem train SPEC       train or fine-tune a model\n";
  if (!has("run")) out += "  tandem generate -p TEXT continue a text with the embedded model\n";
  return out +
         "\nAn own model: --model DIR, FILE.gguf, ORG/NAME of the hub, or s3://BUCKET/KEY.\n"
         "'tandem help' lists all verbs, 'tandem help VERB' explains one.\n";
}

}  // namespace tandem::server
