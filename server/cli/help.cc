#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "server/cli/usage.h"
#include "server/cli/verbs.h"

namespace tandem::server {

void AddHelp(CLI::App& command, int&) {
  const auto words = std::make_shared<std::vector<std::string>>();
  command.add_option("verb", *words, "the verb to explain; none: list the verbs");
  command.callback([&command, words] {
    const CLI::App& verb = FindVerb(*command.get_parent(), *words);
    std::printf(
        "%s",
        verb.get_formatter()->make_help(&verb, VerbPath(verb), CLI::AppFormatMode::Normal).c_str());
  });
}

}  // namespace tandem::server
