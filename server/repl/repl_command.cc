#include "server/repl/repl_command.h"

#include <algorithm>

#include "engine/base/edit_distance.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "server/repl/chat_settings.h"

namespace tandem::server {
namespace {

using CommandKind = ReplCommand::Kind;

enum class Arity { kNone, kOptional, kRequired };

struct CommandRow {
  std::string_view name;
  CommandKind kind;
  Arity arity;
  std::string_view argument;
  std::string_view effect;  // empty: another name of a command
};

constexpr CommandRow kCommands[] = {
    {"/help", CommandKind::kHelp, Arity::kNone, "", "lists the commands"},
    {"/system", CommandKind::kSystem, Arity::kOptional, "[TEXT|off]",
     "shows or sets the system prompt"},
    {"/set", CommandKind::kSet, Arity::kOptional, "[NAME VALUE]",
     "lists the settings, or sets one; VALUE default unsets it"},
    {"/show", CommandKind::kShow, Arity::kNone, "",
     "shows the model, the settings and the messages"},
    {"/save", CommandKind::kSave, Arity::kRequired, "FILE",
     "writes the chat; to FILE.jsonl, appends a training example"},
    {"/load", CommandKind::kLoad, Arity::kRequired, "FILE", "replaces the chat by a saved one"},
    {"/regen", CommandKind::kRegenerate, Arity::kNone, "", "answers the last question again"},
    {"/undo", CommandKind::kUndo, Arity::kNone, "", "removes the last question and its answer"},
    {"/clear", CommandKind::kClear, Arity::kNone, "",
     "removes all messages; system prompt and settings stay"},
    {"/tokens", CommandKind::kTokens, Arity::kOptional, "[TEXT]",
     "counts the tokens of the chat, or of a text"},
    {"/render", CommandKind::kRender, Arity::kNone, "", "shows the chat as the model receives it"},
    {"/exit", CommandKind::kExit, Arity::kNone, "", "leaves, like Ctrl-D"},
    {"/quit", CommandKind::kExit, Arity::kNone, "", ""},
    {"/bye", CommandKind::kExit, Arity::kNone, "", ""},
    {"/?", CommandKind::kHelp, Arity::kNone, "", ""},
};

std::string Usage(const CommandRow& row) {
  return std::string(row.name) + (row.argument.empty() ? "" : " " + std::string(row.argument));
}

std::string_view WithoutSpaces(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\n";
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

}  // namespace

ReplCommand ParseReplCommand(std::string_view line) {
  const size_t end = std::min(line.find_first_of(" \t\n"), line.size());
  const std::string name(line.substr(0, end));
  const std::string argument(WithoutSpaces(line.substr(end)));
  std::vector<std::string> names;
  for (const CommandRow& row : kCommands) {
    names.emplace_back(row.name);
    if (row.name != name) continue;
    const bool fits = argument.empty() ? row.arity != Arity::kRequired : row.arity != Arity::kNone;
    if (!fits) throw Error(ErrorCode::kInvalidArgument, "use it as " + Usage(row));
    return {row.kind, argument};
  }
  const std::string nearest = NearestWord(name, names);
  throw Error(ErrorCode::kInvalidArgument,
              "there is no command " + Quoted(name, 60) +
                  (nearest.empty() ? "" : "; did you mean " + nearest + "?") +
                  " /help lists the commands; a space before the slash sends it as text");
}

std::string ReplHelp() {
  std::string help;
  for (const CommandRow& row : kCommands) {
    if (row.effect.empty()) continue;
    std::string usage = Usage(row);
    usage.resize(22, ' ');
    help += "  " + usage + std::string(row.effect) + "\n";
  }
  return help +
         "  \"\"\"                   begins a text of several lines; \"\"\" at the end of a line "
         "ends it\n"
         "  \\ at the end          continues the text on the next line, like Alt-Enter\n"
         "  Ctrl-C                stops an answer; the part so far stays in the chat\n"
         "  arrows                edit the line; up and down go through earlier lines";
}

std::vector<std::string> CompleteReplCommand(std::string_view text) {
  std::vector<std::string> words;
  if (!IsReplCommand(text)) return words;
  constexpr std::string_view kSet = "/set ";
  if (text.starts_with(kSet)) {
    for (const std::string& name : ChatSettings::Names()) {
      std::string word = std::string(kSet) + name;
      if (word.starts_with(text)) words.push_back(std::move(word));
    }
    return words;
  }
  for (const CommandRow& row : kCommands) {
    if (!row.effect.empty() && row.name.starts_with(text)) words.emplace_back(row.name);
  }
  return words;
}

}  // namespace tandem::server
