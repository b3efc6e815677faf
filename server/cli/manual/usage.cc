#include "server/cli/manual/usage.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "engine/base/edit_distance.h"
#include "engine/base/error.h"

namespace tandem::server {
namespace {

std::vector<const CLI::App*> ChildrenOf(const CLI::App& verb) {
  return verb.get_subcommands([](const CLI::App*) { return true; });
}

std::string HelpOf(const CLI::App& verb) {
  // "tandem help checkpoint ls": "help" comes after the program's name.
  const std::string path = VerbPath(verb);
  const size_t space = path.find(' ');
  return path.substr(0, space) + " help" + (space == std::string::npos ? "" : path.substr(space));
}

// The deepest verb that the command line names.
const CLI::App& GivenVerb(const CLI::App& root) {
  const CLI::App* verb = &root;
  while (!verb->get_subcommands().empty()) verb = verb->get_subcommands().front();
  return *verb;
}

std::string HelpHint(const CLI::App& verb) {
  return "\nRun '" + HelpOf(verb) + "' for the flags and arguments.";
}

std::vector<std::string> SplitWords(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const size_t end = std::min(text.find(','), text.size());
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

// CLI11 says "--dtype: int9 not in {auto,f32}". Returns the same with the nearest word; empty for
// other messages.
std::string ChoiceMessage(std::string_view fault) {
  const size_t colon = fault.find(": ");
  const size_t set = fault.rfind(" not in {");
  if (colon == std::string_view::npos || set == std::string_view::npos || set < colon) return "";
  const std::string given(fault.substr(colon + 2, set - colon - 2));
  std::string_view words = fault.substr(set + 9);
  words = words.substr(0, words.find('}'));
  std::string list(words);
  for (size_t at = 0; (at = list.find(',', at)) != std::string::npos; at += 2) {
    list.replace(at, 1, ", ");
  }
  return std::string(fault.substr(0, colon)) + " must be one of " + list + ", got '" +
         given.substr(0, 80) + "'" + DidYouMean(given, SplitWords(words));
}

std::vector<std::string> FlagsOf(const CLI::App& verb) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : verb.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

}  // namespace

std::string VerbPath(const CLI::App& verb) {
  const CLI::App* parent = verb.get_parent();
  return parent == nullptr ? verb.get_name() : VerbPath(*parent) + " " + verb.get_name();
}

const CLI::App& FindVerb(const CLI::App& root, std::span<const std::string> words) {
  const CLI::App* verb = &root;
  for (const std::string& word : words) {
    const std::vector<const CLI::App*> children = ChildrenOf(*verb);
    if (children.empty() || word.empty() || word.front() == '-') break;
    std::vector<std::string> names;
    const CLI::App* next = nullptr;
    for (const CLI::App* child : children) {
      names.push_back(child->get_name());
      if (child->get_name() == word) next = child;
    }
    if (next == nullptr) {
      throw Error(ErrorCode::kInvalidArgument,
                  "there is no verb '" + VerbPath(*verb) + " " + word.substr(0, 80) + "'" +
                      DidYouMean(word, names) + "\nRun '" + HelpOf(*verb) + "' to list the verbs.");
    }
    verb = next;
  }
  return *verb;
}

std::string UnknownWordMessage(const CLI::App& root) {
  const CLI::App* const verb = &GivenVerb(root);
  const std::vector<std::string> words = root.remaining(true);
  const auto flag = std::find_if(words.begin(), words.end(),
                                 [](const std::string& word) { return word.starts_with("-"); });
  const std::string help = HelpHint(*verb);
  if (flag == words.end()) {
    return "'" + VerbPath(*verb) + "' takes no argument '" +
           (words.empty() ? "" : words.front().substr(0, 80)) + "' here" + help;
  }
  const std::string name = flag->substr(0, std::min<size_t>(flag->find('='), 80));
  return "'" + VerbPath(*verb) + "' has no flag " + name + DidYouMean(name, FlagsOf(*verb)) + help;
}

std::string WrongUsageMessage(const CLI::App& root, const CLI::ParseError& error) {
  const CLI::App& verb = GivenVerb(root);
  std::string fault = error.what();
  if (const size_t end = fault.find('\n'); end != std::string::npos) fault.resize(end);
  if (const std::string choice = ChoiceMessage(fault); !choice.empty()) {
    return choice + HelpHint(verb);
  }
  const std::string_view missing = " is required";
  if (error.get_name() == "RequiredError" && fault.ends_with(missing)) {
    // A misspelt flag says more than the argument that it did not give.
    if (!root.remaining(true).empty()) return UnknownWordMessage(root);
    const std::string name = fault.substr(0, fault.size() - missing.size());
    if (const auto children = ChildrenOf(verb); !children.empty()) {
      std::string names;
      for (const CLI::App* child : children) {
        names += (names.empty() ? "" : ", ") + child->get_name();
      }
      return "'" + VerbPath(verb) + "' needs a verb: " + names + HelpHint(verb);
    }
    const CLI::Option* const option = verb.get_option_no_throw(name);
    const std::string what = option == nullptr ? "" : option->get_description();
    return "'" + VerbPath(verb) + "' needs " + name + (what.empty() ? "" : ": " + what) +
           HelpHint(verb);
  }
  return "'" + VerbPath(verb) + "': " + fault + HelpHint(verb);
}

}  // namespace tandem::server
