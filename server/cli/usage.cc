#include "server/cli/usage.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "engine/base/edit_distance.h"
#include "engine/base/error.h"

namespace tandem::server {
namespace {

std::vector<const CLI::App*> ChildrenOf(const CLI::App& verb) {
  return verb.get_subcommands([](const CLI::App*) { return true; });
}

std::string DidYouMean(const std::string& nearest) {
  return nearest.empty() ? "" : "; did you mean " + nearest + "?";
}

std::string HelpOf(const CLI::App& verb) {
  // "tandem help checkpoint ls": "help" comes after the program's name.
  const std::string path = VerbPath(verb);
  const size_t space = path.find(' ');
  return path.substr(0, space) + " help" + (space == std::string::npos ? "" : path.substr(space));
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
                      DidYouMean(NearestWord(word, names)) + "\nRun '" + HelpOf(*verb) +
                      "' to list the verbs.");
    }
    verb = next;
  }
  return *verb;
}

std::string UnknownWordMessage(const CLI::App& root) {
  const CLI::App* verb = &root;
  while (!verb->get_subcommands().empty()) verb = verb->get_subcommands().front();
  const std::vector<std::string> words = root.remaining(true);
  const auto flag = std::find_if(words.begin(), words.end(),
                                 [](const std::string& word) { return word.starts_with("-"); });
  const std::string help = "\nRun '" + HelpOf(*verb) + "' for the flags and arguments.";
  if (flag == words.end()) {
    return "'" + VerbPath(*verb) + "' takes no argument '" +
           (words.empty() ? "" : words.front().substr(0, 80)) + "' here" + help;
  }
  const std::string name = flag->substr(0, std::min<size_t>(flag->find('='), 80));
  return "'" + VerbPath(*verb) + "' has no flag " + name +
         DidYouMean(NearestWord(name, FlagsOf(*verb))) + help;
}

}  // namespace tandem::server
